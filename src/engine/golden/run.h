// Running a model over stored tokens with everything recorded that a check may compare.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "engine/image_prompt.h"
#include "model/draft.h"
#include "model/forward.h"
#include "model/model.h"
#include "model/state.h"
#include "model/step.h"

namespace mdi::golden {

// What the steps of a run showed to the context's tap, rows of later steps behind those of earlier ones.
class Recording {
 public:
  // "embed_out", "layers.3.out", ...: the names of the stored tensors where there are such.
  bool has(const std::string& name) const { return values_.count(name) != 0; }
  // Throws mdi::Error when the run showed no such value.
  TensorView get(const std::string& name) const;
  // Index scores of one layer, one entry a query, as many as the query scored.
  bool has_scores(int layer) const { return scores_.count(layer) != 0; }
  const std::vector<std::vector<bf16>>& scores(int layer) const;

  void add(std::string_view name, int layer, const TensorView& value);

 private:
  struct Value {
    TensorView view;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Value> values_;
  std::map<int, std::vector<std::vector<bf16>>> scores_;
};

std::string layer_name(int layer, std::string_view name);  // "layers.3.out"

// One sequence with a state of its own, from position 0 on.
class GoldenSequence {
 public:
  // Room for `tokens` tokens, of which one step takes at most max_rows.
  GoldenSequence(Context& context, const Model& model, int64_t tokens, int64_t max_rows);

  // Appends the tokens in one step and commits them. Logits [tokens, vocab] of every row, or of the last one alone.
  std::vector<float> append(const PromptPart& tokens, bool all_rows, const ForwardHooks& hooks, Recording* recording);

  // Drafts one block from `anchor`, the token behind the last one; the chain is led along `tokens`, one for each row of
  // the block, whatever the logits say. Logits [block, vocab] and confidence [block]. The state does not change.
  struct DraftBlock {
    std::vector<float> logits, confidence;
  };
  DraftBlock draft(int32_t anchor, std::span<const int32_t> tokens);

  int64_t length() const { return length_; }
  // The ring of a layer or of a draft stage (n_layers + stage), dequantised, [window, head_dim]: slot = position mod
  // window.
  std::vector<float> window(int layer) const;
  // Compressed rows and index keys of a KV source, dequantised, [rows, head_dim] and [rows, key_dim].
  std::vector<float> compressed_rows(int source) const;
  std::vector<float> index_keys(int source) const;
  // (a, g) of the odd tail of a ratio-2 source, [2, head_dim].
  std::vector<float> pending(int source) const;

 private:
  std::vector<float> cache_rows(int source, bool keys) const;

  Context& context_;
  const Model& model_;
  StatePools state_;
  StepBuffers buffers_;
  std::unique_ptr<DraftBuffers> draft_buffers_;
  std::vector<int32_t> blocks_;
  int64_t length_ = 0;
};

}  // namespace mdi::golden
