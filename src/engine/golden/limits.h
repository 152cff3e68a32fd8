// How far a value of a whole model may lie from the stored one.
//
// A last-bit difference in a sum can flip an fp8 or fp4 rounding, then an expert or a selected position, so a whole
// model is not compared value by value: what is bounded is how far rows move. two_runs.json says how far the reference
// itself moved when its sums were taken in another order; where that is more than the usual bound, the bound follows
// it.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/golden/compare.h"

namespace mdi::golden {

// The two runs of the reference, for one checkpoint.
class TwoRuns {
 public:
  struct Moved {
    double rel = 0, median_row = 0, same_argmax = 1;
  };

  TwoRuns() = default;  // knows nothing
  // Throws mdi::Error when the file is not of the expected form.
  explicit TwoRuns(const std::filesystem::path& file);

  std::optional<Moved> moved(std::string_view file, std::string_view quantity) const;

 private:
  std::map<std::string, Moved> moved_;  // "file/quantity"
};

// Kinds of values that differ in how a flipped rounding shows.
enum class Kind {
  kLogits,
  kStream,      // the residual stream, of which a sublayer adds 5 to 15%, and what is made from all of it
  kSublayer,    // what goes into and comes out of a sublayer
  kMix,         // hyper-connection mixes, router scores and weights: fp32 values of order one
  kFp8Rows,     // window rows
  kFp4Rows,     // compressed rows and index keys
  kScores,      // index scores
  kConfidence,  // the draft's confidence: one number a row, of order one
};

// The whole model from tokens on; `quantity` is the stored tensor's name.
Tolerances whole_model(Kind kind, std::string_view quantity, std::optional<TwoRuns::Moved> moved, int64_t rows);
// One layer, fed with the stored stream of the layer before.
Tolerances fed_layer(Kind kind);
// Share of the stored experts and selected positions that must be chosen again. Chance would find again topk / experts,
// index_topk / positions of them.
inline constexpr double kWholeOverlap = 0.6;
inline constexpr double kFedOverlap = 0.9;

// How far the logits of stored tokens may lie behind the largest ones.
struct TokenMargin {
  double largest, mean;
};
// Of a run that is fed with the stored tokens.
inline constexpr TokenMargin kGreedyMargin{0.3, 0.3};
// Of tokens that followed from an earlier flip, or that the draft layers made of a moved hidden state: 0.39 and 0.013
// on the golden prompts. An unrelated token lies several units behind.
inline constexpr TokenMargin kDraftMargin{1.0, 0.1};

}  // namespace mdi::golden
