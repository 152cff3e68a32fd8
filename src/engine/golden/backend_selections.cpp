#include "engine/golden/backend_selections.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "engine/golden/backend_layers.h"

namespace mdi::golden {
namespace {

constexpr bf16 kNotScored{0x7FC0};
constexpr int64_t kAllowed = 1;  // bf16 rounding from the threshold

bool contains(std::span<const int32_t> list, int32_t id) {
  return std::find(list.begin(), list.end(), id) != list.end();
}

int64_t entries_of(std::span<const int32_t> list) {
  return std::count_if(list.begin(), list.end(), [](int32_t id) { return id >= 0; });
}

bool is_filtered(const ModelConfig& c, int layer) {
  return c.candidate_source_layer >= 0 && layer > c.candidate_source_layer;
}

std::span<const int32_t> row_of(const TensorView& t, int64_t row) {
  const int64_t width = t.elements() / std::max<int64_t>(t.shape[0], 1);
  return {t.as<int32_t>() + row * width, static_cast<size_t>(width)};
}

// Scores by position: a filtered layer's lie behind each other, in the order of its candidates.
std::vector<bf16> by_position(const ModelConfig& c, const Recording& oracle, int layer, int64_t row) {
  const std::vector<bf16>& scores = oracle.scores(layer).at(static_cast<size_t>(row));
  if (!is_filtered(c, layer)) return scores;
  std::vector<bf16> out;
  size_t next = 0;
  const int64_t size = c.candidate_block_size;
  for (const int32_t block : row_of(oracle.get(layer_name(c.candidate_source_layer, "candidates")), row)) {
    if (block < 0) break;
    out.resize(static_cast<size_t>((block + 1) * size), kNotScored);
    for (int64_t at = block * size; at < (block + 1) * size && next < scores.size(); ++at, ++next) {
      out[static_cast<size_t>(at)] = scores[next];
    }
  }
  return out;
}

// The largest score of each block; the newest is always kept.
std::vector<bf16> by_block(const std::vector<bf16>& scores, int64_t size) {
  std::vector<bf16> best;
  for (size_t begin = 0; begin < scores.size(); begin += static_cast<size_t>(size)) {
    const size_t end = std::min(scores.size(), begin + static_cast<size_t>(size));
    const auto largest =
        std::max_element(scores.begin() + static_cast<ptrdiff_t>(begin), scores.begin() + static_cast<ptrdiff_t>(end),
                         [](bf16 a, bf16 b) { return to_float(a) < to_float(b); });
    best.push_back(end == scores.size() ? to_bf16(std::numeric_limits<float>::infinity()) : *largest);
  }
  return best;
}

struct Verdicts {
  OneSided all;
  int64_t rows = 0;
  std::string furthest, first_wrong;

  void add(const OneSided& row, const std::string& name, int64_t index) {
    ++rows;
    all.entries += row.entries;
    if (row.entries > 0 && (furthest.empty() || row.steps > all.steps)) {
      furthest = fmt::format("{} row {}", name, index);
    }
    all.steps = std::max(all.steps, row.steps);
    if (row.unexcused > 0 && all.unexcused == 0) {
      first_wrong = fmt::format("{} row {}: {} entries, {} bf16 roundings from the threshold", name, index,
                                row.unexcused, row.steps);
    }
    all.unexcused += row.unexcused;
  }
};

}  // namespace

int64_t bf16_steps(bf16 a, bf16 b) {
  const auto order = [](bf16 v) {
    const int64_t magnitude = v.bits & 0x7FFFu;
    return (v.bits & 0x8000u) != 0 ? -magnitude : magnitude;
  };
  return std::abs(order(a) - order(b));
}

OneSided one_sided(std::span<const int32_t> found, std::span<const int32_t> expected, std::span<const bf16> scores,
                   int64_t keep) {
  OneSided result;
  const auto score = [&](int32_t id) {
    return static_cast<size_t>(id) < scores.size() ? scores[static_cast<size_t>(id)] : kNotScored;
  };
  bf16 threshold = to_bf16(std::numeric_limits<float>::infinity());
  for (const int32_t id : expected) {
    if (id >= 0 && to_float(score(id)) < to_float(threshold)) threshold = score(id);
  }
  const bool choice = entries_of(expected) == keep && entries_of(found) == keep;
  const auto judge = [&](std::span<const int32_t> list, std::span<const int32_t> other) {
    for (const int32_t id : list) {
      if (id < 0 || contains(other, id)) continue;
      ++result.entries;
      const bool scored = !std::isnan(to_float(score(id)));
      const int64_t steps = scored ? bf16_steps(score(id), threshold) : std::numeric_limits<int64_t>::max();
      result.steps = std::max(result.steps, steps);
      if (!choice || steps > kAllowed) ++result.unexcused;
    }
  };
  judge(found, expected);
  judge(expected, found);
  return result;
}

void judge_selections(const Prompt& p, const Recording& run, const Recording& oracle) {
  const ModelConfig& c = p.model.config();
  Verdicts verdicts;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    if (p.model.ratio(layer) == 0 || !c.is_index_source(layer)) continue;
    const std::string name = layer_name(layer, "topk"), blocks = layer_name(layer, "candidates");
    const TensorView found = run.get(name), expected = oracle.get(name);
    if (found.elements() != expected.elements()) throw Error(name, "expected both backends to select in as many rows");
    const bool source = layer == c.candidate_source_layer;
    for (int64_t row = 0; row < expected.shape[0]; ++row) {
      const std::vector<bf16> scores = by_position(c, oracle, layer, row);
      verdicts.add(one_sided(row_of(found, row), row_of(expected, row), scores, c.index_topk), name, row);
      if (!source) continue;
      verdicts.add(one_sided(row_of(run.get(blocks), row), row_of(oracle.get(blocks), row),
                             by_block(scores, c.candidate_block_size), c.candidate_topk_blocks),
                   blocks, row);
    }
  }
  if (verdicts.rows == 0) return;
  Quantity q;
  q.name = p.prefix + "backends.selections";
  q.verdict = verdicts.all.unexcused == 0 ? Verdict::kPass : Verdict::kFail;
  q.compared = true;
  q.largest = static_cast<double>(verdicts.all.steps);
  q.mean = static_cast<double>(verdicts.all.entries) / static_cast<double>(verdicts.rows);
  q.tolerance = fmt::format("{} lists, {} entries in one alone, {} of them beyond one bf16 rounding", verdicts.rows,
                            verdicts.all.entries, verdicts.all.unexcused);
  if (verdicts.all.entries > 0) {
    q.tolerance +=
        fmt::format("; the furthest {} roundings from the threshold, {}", verdicts.all.steps, verdicts.furthest);
  }
  q.note = verdicts.first_wrong;
  p.report.add(std::move(q));
}

}  // namespace mdi::golden
