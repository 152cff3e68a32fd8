// One file of expected outputs: a prompt, its prefill, decode steps and greedy run, against the engine.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/golden/file.h"
#include "engine/golden/limits.h"
#include "engine/golden/report.h"
#include "engine/golden/run.h"
#include "model/model.h"

namespace mdi::golden {

struct Oracle;

struct Prompt {
  Context& context;
  const Model& model;
  GoldenFile& file;
  const TwoRuns& two_runs;
  Report& report;
  std::filesystem::path dir;       // of the checkpoint
  std::string file_name;           // "prompt0.safetensors": the key in two_runs.json
  std::string prefix;              // "tiny-text/prompt0/", before the names of quantities
  const Oracle* oracle = nullptr;  // the CPU backend, where `context` is another one
};

// Runs what the file holds and reports every tensor of it, compared or skipped with the reason.
void check_prompt(const Prompt& prompt);

// A run to compare: of the whole model, or with layers fed from the stored streams.
struct Phase {
  std::string stored;  // "prefill." or "decode.": before the stored names
  std::string shown;   // "prefill.", "decode." or "fed.": before the reported names
  const Recording& run;
  int64_t first_position = 0;
  int64_t rows = 0;
  int64_t offset = 0;     // of the stored topk_idxs
  std::vector<bool> fed;  // [layers] true: compare the layer as one fed with the stored stream; empty: whole model

  bool whole() const { return fed.empty(); }
};

// Runs `check`; what it throws is a FAIL of the quantity `name` of the phase, and the next quantity's turn comes.
template <class Check>
void guarded(const Prompt& prompt, const Phase& phase, const std::string& name, const Check& check) {
  try {
    check();
  } catch (const std::exception& e) {
    prompt.report.fail(prompt.prefix + phase.shown + name, e.what());
  }
}

// Sublayers, mixes, router, streams of every layer for which values are stored.
void check_layer_values(const Prompt& prompt, const Phase& phase);
// Index scores, selections, candidates.
void check_selections(const Prompt& prompt, const Phase& phase);
// Window rings, compressed rows, index keys, unfinished pairs, as they stand after the prompt.
void check_state(const Prompt& prompt, const Phase& phase, const GoldenSequence& sequence);

// One window ring, stored under `name`, against that of a layer (or draft stage).
void check_ring(const Prompt& prompt, const Phase& phase, const std::string& name, const GoldenSequence& sequence,
                int layer);

// How far the logit of a token lies behind the largest; infinity when it is not of the vocabulary.
double behind(const float* logits, int64_t vocab, int64_t token);
// Stored tokens that need not be the largest, but not far behind it.
void report_tokens(const Prompt& prompt, const std::string& name, const std::vector<double>& gaps, TokenMargin margin);

// The stored tensor of this name, or of this layer, as a quantity of the phase. Returns false when none is stored.
bool compare_stored(const Prompt& prompt, const Phase& phase, const std::string& name, const TensorView& found,
                    Kind kind, int64_t row = 0);
bool compare_exactly(const Prompt& prompt, const Phase& phase, const std::string& name, const TensorView& found);

}  // namespace mdi::golden
