// The keys of config.json in both forms, with the range of each value: one table that reading and checking share.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "checkpoint/config.h"

namespace mdi {

enum class ConfigForm : uint8_t { kNested, kFlat };

// Where a key lives in the nested form; in the flat form all keys share one object.
enum class KeyPlace : uint8_t { kTop, kText, kRope };

// When a key has to be there.
enum class KeyGroup : uint8_t {
  kAlways,
  kTokenIds,  // always in the nested form; the flat form leaves them to the tokenizer
  kNested,    // always in the nested form; in the flat form derived from other keys when absent
  kIndex,     // where a layer has compressed rows
  kCandidates,
  kEngram,
  kDraft,
};

template <class S>
struct ConfigField {
  using Member = std::variant<int32_t S::*, int64_t S::*, float S::*, double S::*, std::vector<int32_t> S::*,
                              std::vector<int64_t> S::*>;
  const char* flat;
  const char* nested;
  KeyPlace place;
  KeyGroup group;
  Member member;
  double low, high;  // inclusive; of each element of a list
};

// In the order in which they are read: what a group depends on comes before it.
std::span<const ConfigField<ModelConfig>> model_fields();
std::span<const ConfigField<VisionConfig>> vision_fields();  // place and group say nothing here

bool group_applies(KeyGroup group, const ModelConfig& config);

// "text_config.rope_scaling.factor" or "rope_factor": how an error names a key of the table, given by its flat name.
std::string key_name(ConfigForm form, std::string_view flat);

// Throws unless every value is in range and all of them fit together (spec model.md 1, checkpoint.md 1, engram.md 2).
void check_config(const ModelConfig& config, ConfigForm form, std::string_view where);

}  // namespace mdi
