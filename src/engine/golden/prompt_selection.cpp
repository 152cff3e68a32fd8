// Index scores, the selections made from them, and the candidate blocks.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "engine/golden/prompt.h"
#include "engine/golden/selection.h"

namespace mdi::golden {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A list of entries a row, as it lies in memory: the first `width` columns. What follows them should be -1 and takes
// the last column's place if it is not, so that it shows.
std::vector<int32_t> first_columns(const TensorView& t, int64_t rows, int64_t width) {
  const int64_t own = t.elements() / std::max<int64_t>(1, rows);
  std::vector<int32_t> list(static_cast<size_t>(rows * width), -1);
  for (int64_t i = 0; i < rows && width > 0; ++i) {
    const int32_t* row = t.as<int32_t>() + i * own;
    int32_t* to = list.data() + i * width;
    std::copy_n(row, std::min(own, width), to);
    for (int64_t j = width; j < own; ++j) {
      if (row[j] >= 0) to[width - 1] = row[j];
    }
  }
  return list;
}

bool is_filtered(const ModelConfig& c, int layer) {
  return c.candidate_source_layer >= 0 && layer > c.candidate_source_layer;
}

void read_margin(const Prompt& p, const std::string& name, Freedom& freedom) {
  if (!p.file.has(name)) return;
  const TensorView margin = p.file.get(name);
  const auto rows = std::min(static_cast<int64_t>(freedom.margin.size()), margin.elements());
  for (int64_t i = 0; i < rows; ++i) freedom.margin[static_cast<size_t>(i)] = static_cast<float>(element(margin, i));
}

// Scores of a layer as the stored ones lie: [rows, width], -inf where nothing was scored.
std::vector<bf16> laid_out_scores(const Prompt& p, const Phase& phase, int layer, int64_t width) {
  const ModelConfig& c = p.model.config();
  const auto& scores = phase.run.scores(layer);
  if (static_cast<int64_t>(scores.size()) != phase.rows) throw Error("index_scores", "expected a row a token");
  std::vector<bf16> out(static_cast<size_t>(phase.rows * width), to_bf16(-kInfinity));
  const TensorView candidates =
      is_filtered(c, layer) ? phase.run.get(layer_name(c.candidate_source_layer, "candidates")) : TensorView{};
  for (int64_t i = 0; i < phase.rows; ++i) {
    const std::vector<bf16>& row = scores[static_cast<size_t>(i)];
    bf16* to = out.data() + i * width;
    if (candidates.data == nullptr) {
      std::copy_n(row.begin(), std::min<int64_t>(width, static_cast<int64_t>(row.size())), to);
      continue;
    }
    const int64_t keep = candidates.shape[1], size = c.candidate_block_size;
    const int32_t* blocks = candidates.as<int32_t>() + i * keep;
    size_t next = 0;
    for (int64_t b = 0; b < keep && blocks[b] >= 0; ++b) {
      for (int64_t at = blocks[b] * size; at < (blocks[b] + 1) * size && next < row.size(); ++at, ++next) {
        if (at < width) to[at] = row[next];
      }
    }
  }
  return out;
}

// The k-th largest score minus the next one; infinity where there is no more than k to choose from.
double margin_of(std::vector<float> scores, int64_t k) {
  scores.erase(std::remove_if(scores.begin(), scores.end(), [](float v) { return !(v > -kInfinity); }), scores.end());
  if (k < 1 || static_cast<int64_t>(scores.size()) <= k) return kInfinity;
  std::sort(scores.begin(), scores.end(), std::greater<>());
  return double{scores[static_cast<size_t>(k - 1)]} - double{scores[static_cast<size_t>(k)]};
}

// A stored margin may lie from our own by as much as the two scores that make it.
void check_margins(const Prompt& p, const Phase& phase, const std::string& name, const std::vector<double>& own,
                   const Freedom& freedom) {
  if (!p.file.has(phase.stored + name)) return;
  Quantity q;
  q.name = p.prefix + phase.shown + name;
  q.compared = true;
  q.verdict = Verdict::kPass;
  q.tolerance = "within twice the scores' difference";
  double sum = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    const double stored = freedom.margin[i], moved = freedom.moved[i];
    if (own[i] == stored || moved == kInfinity) continue;
    const double difference = std::abs(own[i] - stored);
    q.largest = std::max(q.largest, difference);
    sum += difference;
    if (difference <= 2 * moved) continue;
    q.verdict = Verdict::kFail;
    q.note = "row " + std::to_string(i) + ": expected " + std::to_string(stored) + ", found " + std::to_string(own[i]);
  }
  q.mean = sum / static_cast<double>(std::max<size_t>(1, own.size()));
  p.report.add(std::move(q));
}

// Compares a layer's scores and says how free the choice from them was. Where a row's candidates differ from the stored
// ones, positions scored on one side only say nothing, and the row may choose as it likes.
Freedom check_scores(const Prompt& p, const Phase& phase, int layer, const std::vector<uint8_t>& candidates_differ) {
  Freedom freedom = Freedom::unknown(phase.rows);
  const std::string name = layer_name(layer, "index_scores");
  read_margin(p, phase.stored + layer_name(layer, "index_margin"), freedom);
  if (!p.file.has(phase.stored + name)) return freedom;
  const TensorView stored = p.file.get(phase.stored + name, DType::kBF16, {phase.rows, kAnySizeOrNone});
  const int64_t width = stored.shape[1];
  std::vector<bf16> own = laid_out_scores(p, phase, layer, width);
  const std::vector<bf16> expected(stored.as<bf16>(), stored.as<bf16>() + stored.elements());
  std::vector<double> margins;
  for (int64_t i = 0; i < phase.rows; ++i) {
    const bool free = is_filtered(p.model.config(), layer) && candidates_differ[static_cast<size_t>(i)] != 0;
    float moved = 0;
    for (auto at = static_cast<size_t>(i * width); at < static_cast<size_t>((i + 1) * width); ++at) {
      const float f = to_float(own[at]), e = to_float(expected[at]);
      const bool both = std::isfinite(f) && std::isfinite(e);
      if (both) moved = std::max(moved, std::abs(f - e));
      if (!both && free) own[at] = expected[at];
    }
    freedom.moved[static_cast<size_t>(i)] = free ? kInfinity : moved;
    std::vector<float> row;
    for (int64_t at = i * width; at < (i + 1) * width; ++at) row.push_back(to_float(own[static_cast<size_t>(at)]));
    margins.push_back(margin_of(std::move(row), p.model.config().index_topk));
  }
  check_margins(p, phase, layer_name(layer, "index_margin"), margins, freedom);
  const Tolerances tolerances =
      phase.whole() ? whole_model(Kind::kScores, name, std::nullopt, phase.rows) : fed_layer(Kind::kScores);
  p.report.add(compare(p.prefix + phase.shown + name, view(own, {phase.rows, width}),
                       view(expected, {phase.rows, width}), tolerances));
  return freedom;
}

void check_choice(const Prompt& p, const Phase& phase, const std::string& name, const std::vector<int32_t>& found,
                  const std::vector<int32_t>& expected, int64_t width, const Freedom& freedom) {
  p.report.add(compare_selections(p.prefix + phase.shown + name, found, expected, width, freedom,
                                  phase.whole() ? kWholeOverlap : kFedOverlap));
}

// The blocks of a row of a mask over positions. A block that the query sees only in part is masked as a whole, or cut
// where the query's positions end.
std::vector<int32_t> blocks_of_mask(const uint8_t* mask, int64_t width, int64_t visible, int64_t size, int64_t keep) {
  std::vector<int32_t> blocks;
  for (int64_t begin = 0; begin < width; begin += size) {
    const uint8_t kept = mask[begin];
    for (int64_t at = begin; at < std::min({begin + size, width, std::max(begin + 1, visible)}); ++at) {
      if (mask[at] != kept) throw Error("candidates", "expected whole blocks, found a mask that parts one");
    }
    if (kept != 0) blocks.push_back(static_cast<int32_t>(begin / size));
  }
  if (static_cast<int64_t>(blocks.size()) > keep) {
    throw Error("candidates", "expected at most " + std::to_string(keep) + " blocks a row");
  }
  blocks.resize(static_cast<size_t>(keep), -1);
  return blocks;
}

// Scores of a query's blocks; the newest is always kept.
std::vector<float> block_scores(const std::vector<bf16>& scores, int64_t size) {
  std::vector<float> best;
  for (size_t begin = 0; begin < scores.size(); begin += static_cast<size_t>(size)) {
    float largest = -kInfinity;
    const size_t end = std::min(scores.size(), begin + static_cast<size_t>(size));
    for (size_t at = begin; at < end; ++at) largest = std::max(largest, to_float(scores[at]));
    best.push_back(end == scores.size() ? std::numeric_limits<float>::max() : largest);
  }
  return best;
}

// Candidate blocks, stored as a mask over positions. Sets a flag for each row whose blocks differ from the stored ones.
void check_candidates(const Prompt& p, const Phase& phase, int layer, Freedom freedom, std::vector<uint8_t>& differ) {
  const ModelConfig& c = p.model.config();
  const std::string name = layer_name(layer, "candidates"), margin_name = layer_name(layer, "candidate_margin");
  if (!p.file.has(phase.stored + name)) return;
  const TensorView mask = p.file.get(phase.stored + name, DType::kU8, {phase.rows, kAnySizeOrNone});
  const int64_t width = mask.shape[1], keep = c.candidate_topk_blocks, size = c.candidate_block_size;
  std::vector<int32_t> expected;
  std::vector<double> margins;
  const auto& scores = phase.run.scores(layer);
  for (int64_t i = 0; i < phase.rows; ++i) {
    const int64_t visible = (phase.first_position + i + 1) / p.model.ratio(layer);
    const auto blocks = blocks_of_mask(mask.as<uint8_t>() + i * width, width, visible, size, keep);
    expected.insert(expected.end(), blocks.begin(), blocks.end());
    margins.push_back(margin_of(block_scores(scores.at(static_cast<size_t>(i)), size), keep));
  }
  const std::vector<int32_t> found = first_columns(phase.run.get(name), phase.rows, keep);
  for (int64_t i = 0; i < phase.rows; ++i) {
    const auto row = found.begin() + i * keep;
    differ[static_cast<size_t>(i)] = std::equal(row, row + keep, expected.begin() + i * keep) ? 0 : 1;
  }
  std::fill(freedom.margin.begin(), freedom.margin.end(), 0.0f);
  read_margin(p, phase.stored + margin_name, freedom);
  check_margins(p, phase, margin_name, margins, freedom);
  check_choice(p, phase, name, found, expected, keep, freedom);
}

// The selected positions of a layer, its own or its index source's.
void check_topk(const Prompt& p, const Phase& phase, const std::string& name, int layer, const Freedom& freedom) {
  const TensorView stored = p.file.get(phase.stored + name, DType::kI32, {phase.rows, kAnySizeOrNone});
  std::vector<int32_t> expected(stored.as<int32_t>(), stored.as<int32_t>() + stored.elements());
  for (int32_t& at : expected) {
    if (at >= 0) at = static_cast<int32_t>(std::max<int64_t>(0, at - phase.offset));
  }
  const int64_t width = stored.shape[1];
  check_choice(p, phase, name, first_columns(phase.run.get(layer_name(layer, "topk")), phase.rows, width), expected,
               width, freedom);
}

}  // namespace

void check_selections(const Prompt& p, const Phase& phase) {
  const ModelConfig& c = p.model.config();
  // Of a fed run only what is made from stored streams alone: the layer's own, its keys', its list's.
  const auto fed = [&](int layer) { return phase.whole() || phase.fed[static_cast<size_t>(layer)]; };
  std::vector<Freedom> freedom(static_cast<size_t>(c.n_layers), Freedom::unknown(phase.rows));
  std::vector<uint8_t> candidates_differ(static_cast<size_t>(phase.rows), 0);
  for (int layer = 0; layer < c.n_layers; ++layer) {
    const int source = c.index_source_of(layer);
    if (source < 0 || !fed(layer) || !fed(source) || !fed(c.kv_source_of(layer))) continue;
    if (is_filtered(c, layer) && !fed(c.candidate_source_layer)) continue;
    if (source == layer) {
      guarded(p, phase, layer_name(layer, "index_scores"),
              [&] { freedom[static_cast<size_t>(layer)] = check_scores(p, phase, layer, candidates_differ); });
    }
    if (layer == c.candidate_source_layer) {
      guarded(p, phase, layer_name(layer, "candidates"),
              [&] { check_candidates(p, phase, layer, freedom[static_cast<size_t>(layer)], candidates_differ); });
    }
    const std::string name = layer_name(layer, "topk_idxs");
    if (!p.file.has(phase.stored + name)) continue;
    guarded(p, phase, name, [&] { check_topk(p, phase, name, layer, freedom[static_cast<size_t>(source)]); });
  }
}

}  // namespace mdi::golden
