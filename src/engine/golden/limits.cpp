#include "engine/golden/limits.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "core/mapped_file.h"

namespace mdi::golden {
namespace {

constexpr JsonLimits kLimits{.max_bytes = size_t{16} << 20, .max_depth = 16};

// A value of our own moves as far as the reference's did, give or take: its flips are others.
constexpr double kOverTwoRuns = 2;

std::string key(std::string_view file, std::string_view quantity) {
  return std::string(file) + "/" + std::string(quantity);
}

}  // namespace

TwoRuns::TwoRuns(const std::filesystem::path& path) {
  const MappedFile text(path);
  const nlohmann::json tree = parse_json(text.text(), path.filename().string(), kLimits);
  const auto files = tree.find("files");
  if (files == tree.end() || !files->is_object()) throw Error("two_runs.json", "expected an object 'files'");
  for (const auto& [file, quantities] : files->items()) {
    if (!quantities.is_object()) throw Error("two_runs.json", "files." + file + ": expected an object");
    for (const auto& [name, entry] : quantities.items()) {
      if (!entry.is_object()) continue;
      const std::string where = "files." + file + "." + name;
      const auto number = [&where](const nlohmann::json& value) {
        if (!value.is_number()) throw Error("two_runs.json", where + ": expected numbers");
        return value.get<double>();
      };
      if (entry.contains("rel_rms") && entry.contains("rows_rel_median") && entry.contains("argmax_equal")) {
        moved_[key(file, name)] = {number(entry["rel_rms"]), number(entry["rows_rel_median"]),
                                   number(entry["argmax_equal"])};
      }
    }
  }
}

std::optional<TwoRuns::Moved> TwoRuns::moved(std::string_view file, std::string_view quantity) const {
  const auto found = moved_.find(key(file, quantity));
  return found == moved_.end() ? std::nullopt : std::optional<Moved>(found->second);
}

namespace {

struct Bounds {
  double median_row, rel, outlier;
};

// Measured on the five golden prompts with the CPU backend, largest (median row, all rows): logits 3.2e-2, 3.8e-2;
// stream 1.8e-2, 3.2e-2; sublayers 2.7e-2, 5.3e-2; mixes 1.5e-2, 1.9e-2; window rows 5.7e-2, 6.3e-2; compressed rows
// and keys 0, 2.9e-2; index scores 1.3e-1, 1.3e-1. The largest difference over the root mean square was at most 0.74 in
// logits, 0.61 in streams and 4.2 in sublayers between the reference's two runs.
Bounds whole_model_bounds(Kind kind) {
  switch (kind) {
    case Kind::kLogits:
    case Kind::kStream:
    case Kind::kMix:
      return {5e-2, 1e-1, 1.5};
    case Kind::kFp8Rows:
      return {1e-1, 2e-1, 4};
    case Kind::kSublayer:
    case Kind::kFp4Rows:
      return {1.5e-1, 4e-1, 8};
    case Kind::kConfidence:
      return {1e-1, 2e-1, 1.5};
    case Kind::kScores:
      return {2.5e-1, 5e-1, 8};
  }
  return {0, 0, 0};
}

// The same, fed: 0 in the median row of every kind but for fp32 sums' last bits, and over all rows 1.1e-4 of a stream,
// 1.5e-4 of a sublayer, 5e-5 of mixes, 0 of window rows, 1.3e-2 of index keys, 1e-2 of index scores. The bounds leave
// room for another order of summation: a flip moves a row, not the median.
Bounds fed_layer_bounds(Kind kind) {
  switch (kind) {
    case Kind::kLogits:
    case Kind::kStream:
      return {1e-2, 5e-2, 1};
    case Kind::kMix:
      return {1e-2, 2e-2, 0.5};
    case Kind::kFp8Rows:
      return {1e-2, 5e-2, 2};
    case Kind::kSublayer:
      return {1e-2, 2e-1, 4};
    case Kind::kFp4Rows:
    case Kind::kScores:
    case Kind::kConfidence:
      return {1e-2, 1e-1, 4};
  }
  return {0, 0, 0};
}

// A prompt on which the reference hardly moved is one that hardly forks: more is demanded of it. Decode is left at the
// usual bounds, because one flip in the first tokens stays in the caches for all that follow: the reference's own
// decode and prefill of the shortest text prompt are 3e-2 apart.
constexpr double kHardlyMoved = 1e-2;
constexpr double kRelWhereHardlyMoved = 3e-2;

bool is_prefill_logits(std::string_view quantity) { return quantity == "prefill.logits"; }

}  // namespace

Tolerances whole_model(Kind kind, std::string_view quantity, std::optional<TwoRuns::Moved> moved, int64_t rows) {
  Bounds b = whole_model_bounds(kind);
  if (moved) {
    if (is_prefill_logits(quantity) && moved->rel < kHardlyMoved) b.rel = kRelWhereHardlyMoved;
    b.median_row = std::max(b.median_row, kOverTwoRuns * moved->median_row);
    b.rel = std::max(b.rel, kOverTwoRuns * moved->rel);
  }
  Tolerances tolerances = {{Rule::kMedianRow, b.median_row}, {Rule::kRelative, b.rel}, {Rule::kOutlier, b.outlier}};
  if (kind == Kind::kLogits) {
    // Of few rows one may always differ.
    const double one_row = 1 - 1 / static_cast<double>(std::max<int64_t>(1, rows));
    tolerances.push_back({Rule::kSameArgmax, std::min({0.9, one_row, moved ? moved->same_argmax - 0.1 : 0.9})});
  }
  return tolerances;
}

Tolerances fed_layer(Kind kind) {
  const Bounds b = fed_layer_bounds(kind);
  return {{Rule::kMedianRow, b.median_row}, {Rule::kRelative, b.rel}, {Rule::kOutlier, b.outlier}};
}

}  // namespace mdi::golden
