#include "engine/golden/backend_layers.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "engine/golden/backend_selections.h"

namespace mdi::golden {
namespace {

// In the order of model/layer.cpp.
constexpr const char* kStages[] = {"engram_hash_ids", "engram_out",   "attn_in",     "hc_attn_pre",
                                   "hc_attn_post",    "hc_attn_comb", "latent",      "index_scores",
                                   "candidates",      "topk",         "attn_out",    "ffn_in",
                                   "hc_ffn_pre",      "hc_ffn_post",  "hc_ffn_comb", "gate_scores_biased",
                                   "gate_indices",    "gate_weights", "ffn_out",     "out",
                                   "pre_mix"};

bool is_integer(DType dtype) { return dtype == DType::kI32 || dtype == DType::kI64 || dtype == DType::kU8; }

double bf16_step(double v) {
  constexpr double kSmallest = 0x1p-126;
  return std::ldexp(1.0, std::ilogb(std::max(std::fabs(v), kSmallest)) - 7);
}

// Adds rows [first, first + values) of one stage.
void add_row(StageDifference& d, int64_t row, const std::vector<double>& found, const std::vector<double>& expected,
             bool integers) {
  double sum = 0;
  for (const double v : expected) sum += std::isfinite(v) ? v * v : 0;
  const double rms = std::sqrt(sum / static_cast<double>(std::max<size_t>(expected.size(), 1)));
  d.values += static_cast<int64_t>(expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const double f = found[i], e = expected[i];
    if (f == e || (std::isnan(f) && std::isnan(e))) continue;
    if (d.differ++ == 0) d.row = row;
    if (integers) continue;
    double roundings = std::fabs(f - e) / bf16_step(std::max(std::fabs(e), rms));
    if (!std::isfinite(roundings)) roundings = INFINITY;
    if (roundings > d.roundings) {
      d.roundings = roundings;
      d.row = row;
    }
  }
}

StageDifference tensor_difference(std::string name, const TensorView& found, const TensorView& expected) {
  StageDifference d;
  if (found.elements() != expected.elements() || found.dtype != expected.dtype) {
    throw Error(name, "expected both backends to show " + shape_text(expected) + ", found " + shape_text(found));
  }
  d.name = std::move(name);
  const int64_t rows = expected.rank > 0 ? expected.shape[0] : 1;
  const int64_t width = rows > 0 ? expected.elements() / rows : 0;
  std::vector<double> f(static_cast<size_t>(width)), e(static_cast<size_t>(width));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      f[static_cast<size_t>(i)] = element(found, row * width + i);
      e[static_cast<size_t>(i)] = element(expected, row * width + i);
    }
    add_row(d, row, f, e, is_integer(expected.dtype));
  }
  return d;
}

StageDifference score_difference(std::string name, const std::vector<std::vector<bf16>>& found,
                                 const std::vector<std::vector<bf16>>& expected) {
  StageDifference d;
  d.name = std::move(name);
  const auto numbers = [](const std::vector<bf16>& row) {
    std::vector<double> v(row.size());
    std::transform(row.begin(), row.end(), v.begin(), [](bf16 x) { return double{to_float(x)}; });
    return v;
  };
  for (size_t row = 0; row < std::min(found.size(), expected.size()); ++row) {
    // Other candidates make other lists of scores, which say nothing about the scores.
    if (found[row].size() != expected[row].size()) continue;
    add_row(d, static_cast<int64_t>(row), numbers(found[row]), numbers(expected[row]), false);
  }
  return d;
}

std::string text(const StageDifference& d) {
  if (d.roundings == 0)
    return fmt::format("{}: {} of {} values differ, first in row {}", d.name, d.differ, d.values, d.row);
  return fmt::format("{}: {} of {} values differ, by at most {:.2g} bf16 roundings (row {})", d.name, d.differ,
                     d.values, d.roundings, d.row);
}

Quantity information(const Prompt& p, const std::string& name, const StageDifference& d, std::string line) {
  Quantity q;
  q.name = p.prefix + name;
  q.verdict = Verdict::kInfo;
  q.compared = true;
  q.largest = d.roundings;
  q.mean = d.values == 0 ? 0 : static_cast<double>(d.differ) / static_cast<double>(d.values);
  q.tolerance = std::move(line);
  return q;
}

// Copies a recorded array into the device's buffer.
void feed(const Prompt& p, const DeviceBuffer& to, const TensorView& value) {
  p.context.ops->copy_in(p.context, to.as<std::byte>(), value.data, static_cast<int64_t>(value.bytes()));
}

ForwardHooks oracle_hooks(const Prompt& p, const Recording& oracle) {
  ForwardHooks hooks;
  hooks.before_layer = [&p, &oracle](int layer, StepBuffers& buffers) {
    const ModelConfig& c = p.model.config();
    if (layer == 0) return;
    feed(p, buffers.h, oracle.get(layer_name(layer - 1, "out")));
    feed(p, buffers.pre, oracle.get(layer_name(layer - 1, "pre_mix")));
    if (p.model.ratio(layer) == 0) return;
    if (!c.is_index_source(layer)) feed(p, buffers.selected, oracle.get(layer_name(layer, "topk")));
    const int source = c.candidate_source_layer;
    if (source >= 0 && layer > source) feed(p, buffers.candidates, oracle.get(layer_name(source, "candidates")));
  };
  return hooks;
}

}  // namespace

std::vector<StageDifference> stage_differences(const ModelConfig& config, const Recording& found,
                                               const Recording& expected) {
  std::vector<StageDifference> all;
  const auto add = [&](const std::string& name) {
    if (found.has(name) && expected.has(name)) {
      all.push_back(tensor_difference(name, found.get(name), expected.get(name)));
    }
  };
  add("embed_out");
  for (int layer = 0; layer < config.n_layers; ++layer) {
    for (const char* stage : kStages) {
      if (std::strcmp(stage, "index_scores") != 0) {
        add(layer_name(layer, stage));
      } else if (found.has_scores(layer) && expected.has_scores(layer)) {
        all.push_back(score_difference(layer_name(layer, stage), found.scores(layer), expected.scores(layer)));
      }
    }
  }
  add("main_hidden");
  return all;
}

void report_first_difference(const Prompt& p, const Recording& run, const Recording& oracle) {
  const auto all = stage_differences(p.model.config(), run, oracle);
  const auto first = std::find_if(all.begin(), all.end(), [](const StageDifference& d) { return d.differ > 0; });
  if (first == all.end()) {
    p.report.add(information(p, "backends.first", {}, "no stage differs"));
  } else {
    p.report.add(information(p, "backends.first", *first, text(*first)));
  }
}

void compare_fed_layers(const Prompt& p, const PromptPart& tokens, const Recording& oracle) {
  const auto rows = static_cast<int64_t>(tokens.tokens.size());
  GoldenSequence sequence(p.context, p.model, rows, rows);
  Recording run;
  sequence.append(tokens, false, oracle_hooks(p, oracle), &run);
  const std::vector<StageDifference> all = stage_differences(p.model.config(), run, oracle);
  StageDifference furthest;
  int64_t equal = 0;
  for (const StageDifference& d : all) {
    equal += d.differ == 0 ? 1 : 0;
    if (d.roundings > furthest.roundings) furthest = d;
    if (d.differ > 0 && !p.report.only.empty()) {
      p.report.add(information(p, "backends.fed." + d.name, d, text(d)));
    }
  }
  const std::string share = fmt::format("{} of {} stages of layers fed alike are equal", equal, all.size());
  p.report.add(information(p, "backends.fed", furthest, furthest.differ > 0 ? share + "; " + text(furthest) : share));
  judge_selections(p, run, oracle);
}

}  // namespace mdi::golden
