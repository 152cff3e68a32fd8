#include "engine/golden/prompt.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <exception>

#include "core/error.h"
#include "engine/golden/backends.h"
#include "engine/golden/drafts.h"
#include "engine/golden/images.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/reference.h"

namespace mdi::golden {
namespace {

// How a prompt is cut for the run that prefills in chunks: none divides a window, a block or a pair evenly.
constexpr int64_t kChunks[] = {1, 7, 2, 17, 3};

struct Input {
  std::vector<int32_t> tokens;
  ImageSpans images;
};

std::vector<int32_t> read_tokens(GoldenFile& file, const std::string& name) {
  const TensorView t = file.get(name, DType::kI32, {kAnySize});
  return std::vector<int32_t>(t.as<int32_t>(), t.as<int32_t>() + t.elements());
}

Input read_input(const Prompt& p) {
  const ModelConfig& c = p.model.config();
  Input in;
  in.tokens = read_tokens(p.file, "input.tokens");
  const auto n = static_cast<int64_t>(in.tokens.size());
  if (n > c.max_position_embeddings) {
    throw Error(p.file_name,
                fmt::format("a prompt of {} tokens is past the model's limit of {}", n, c.max_position_embeddings));
  }
  if (!p.file.has("input.token_types")) return in;
  const TensorView types = p.file.get("input.token_types", DType::kI32, {n});
  const TensorView rows = p.file.get("prefill.embed_out", DType::kBF16, {n, c.dim});
  for (int64_t i = 0; i < n; ++i) {
    const bool image = types.as<int32_t>()[i] >= 0;
    in.images.dead.push_back(image ? 1 : 0);
    const bf16* row = rows.as<bf16>() + i * c.dim;
    if (image) in.images.rows.insert(in.images.rows.end(), row, row + c.dim);
  }
  return in;
}

// Tokens [first, first + count) of the prompt.
PromptPart part_of(const Input& in, int64_t first, int64_t count) {
  return part_of(in.tokens, in.images, first, count);
}

// The embedding, what the draft layers are fed with, the head's input and the logits.
void check_ends(const Prompt& p, const Phase& phase, const std::vector<float>& logits) {
  const ModelConfig& c = p.model.config();
  const int64_t hc = c.hc_mult, dim = c.dim;
  const TensorView stream = phase.run.get("embed_out");
  std::vector<bf16> first_copies(static_cast<size_t>(phase.rows * dim));
  for (int64_t i = 0; i < phase.rows; ++i) {
    std::copy_n(stream.as<bf16>() + i * hc * dim, dim, &first_copies[static_cast<size_t>(i * dim)]);
  }
  compare_exactly(p, phase, "embed_out", view(first_copies, {phase.rows, dim}));
  if (phase.run.has("main_hidden")) {
    compare_stored(p, phase, "main_hidden", phase.run.get("main_hidden"), Kind::kStream);
  }

  const TensorView last = phase.run.get(layer_name(c.n_layers - 1, "out"));
  const TensorView mix = phase.run.get(layer_name(c.n_layers - 1, "pre_mix"));
  std::vector<bf16> hidden(static_cast<size_t>(phase.rows * dim)), norm(static_cast<size_t>(dim));
  p.context.ops->copy_out(p.context, norm.data(), p.model.weights.norm, dim * static_cast<int64_t>(sizeof(bf16)));
  for (int64_t i = 0; i < phase.rows; ++i) {
    bf16* row = &hidden[static_cast<size_t>(i * dim)];
    cpu::hc_pre(last.as<bf16>() + i * hc * dim, mix.as<float>() + i * hc, c.hc_mult, c.dim, row);
    cpu::rms_norm(row, norm.data(), dim, c.norm_eps, row);
  }
  compare_stored(p, phase, "final_hidden", view(hidden), Kind::kStream);
  compare_stored(p, phase, "logits", view(logits), Kind::kLogits);
}

// Feeds layer n with the stored stream and mix of layer n - 1 where both are stored.
ForwardHooks feeding_hooks(const Prompt& p, int64_t rows, std::vector<bool>& fed) {
  const ModelConfig& c = p.model.config();
  fed.assign(static_cast<size_t>(c.n_layers), false);
  fed[0] = true;
  for (int layer = 1; layer < c.n_layers; ++layer) {
    fed[static_cast<size_t>(layer)] = p.file.has("prefill." + layer_name(layer - 1, "out")) &&
                                      p.file.has("prefill." + layer_name(layer - 1, "pre_mix"));
  }
  ForwardHooks hooks;
  hooks.before_layer = [&p, &c, rows, fed](int layer, StepBuffers& buffers) {
    if (layer == 0 || !fed[static_cast<size_t>(layer)]) return;
    const TensorView h = p.file.get("prefill." + layer_name(layer - 1, "out"), DType::kBF16, {rows, c.hc_mult, c.dim});
    const TensorView pre = p.file.get("prefill." + layer_name(layer - 1, "pre_mix"), DType::kF32, {rows, c.hc_mult});
    p.context.ops->copy_in(p.context, buffers.h.as<bf16>(), h.data, static_cast<int64_t>(h.bytes()));
    p.context.ops->copy_in(p.context, buffers.pre.as<float>(), pre.data, static_cast<int64_t>(pre.bytes()));
  };
  return hooks;
}

void check_fed_layers(const Prompt& p, const Input& in) {
  const auto n = static_cast<int64_t>(in.tokens.size());
  GoldenSequence sequence(p.context, p.model, n, n);
  Recording run;
  Phase phase{
      .stored = "prefill.", .shown = "fed.", .run = run, .first_position = 0, .rows = n, .offset = n, .fed = {}};
  const ForwardHooks hooks = feeding_hooks(p, n, phase.fed);
  sequence.append(part_of(in, 0, n), false, hooks, &run);
  check_layer_values(p, phase);
  check_selections(p, phase);
  check_state(p, phase, sequence);
}

// The tokens that drafts start from: each the largest of its step, or nearly.
void check_anchors(const Prompt& p, const std::vector<float>& logits, int64_t steps) {
  if (!p.file.has("dspark.anchor")) return;
  const TensorView anchors = p.file.get("dspark.anchor", DType::kI32, {steps});
  const int64_t vocab = p.model.config().vocab_size;
  std::vector<double> gaps;
  for (int64_t i = 0; i < steps; ++i)
    gaps.push_back(behind(logits.data() + i * vocab, vocab, anchors.as<int32_t>()[i]));
  report_tokens(p, "dspark.anchor", gaps, kDraftMargin);
}

// Logits of every row are a large array at a large vocabulary: they are asked for where they are stored.
bool wants_all_rows(const Prompt& p, int64_t rows) {
  return p.file.has("prefill.logits") && p.file.peek("prefill.logits").elements() == rows * p.model.config().vocab_size;
}

void check_prefill_and_decode(const Prompt& p, const Input& in, std::vector<float>& logits) {
  const ModelConfig& c = p.model.config();
  const auto n = static_cast<int64_t>(in.tokens.size());
  std::vector<int32_t> next;
  const bool steps_wanted = p.report.may_want(p.prefix + "decode.") || p.report.may_want(p.prefix + "dspark.");
  if (steps_wanted && p.file.has("decode.tokens")) next = read_tokens(p.file, "decode.tokens");
  GoldenSequence sequence(p.context, p.model, n + static_cast<int64_t>(next.size()), n);

  Recording prefill;
  logits = sequence.append(part_of(in, 0, n), wants_all_rows(p, n), {}, &prefill);
  const Phase prompt{.stored = "prefill.",
                     .shown = "prefill.",
                     .run = prefill,
                     .first_position = 0,
                     .rows = n,
                     .offset = n,
                     .fed = {}};
  check_ends(p, prompt, logits);
  if (p.oracle != nullptr) compare_backends(p, part_of(in, 0, n), logits, prefill);
  check_layer_values(p, prompt);
  check_selections(p, prompt);
  check_state(p, prompt, sequence);
  check_draft_rings(p, sequence);
  if (p.file.has("prefill.next_token")) {
    const TensorView token = p.file.get("prefill.next_token", DType::kI64, {1});
    const double gap =
        behind(&logits[logits.size() - static_cast<size_t>(c.vocab_size)], c.vocab_size, token.as<int64_t>()[0]);
    report_tokens(p, "prefill.next_token", {gap}, kGreedyMargin);
  }

  if (next.empty()) return;
  Recording decode;
  std::vector<float> rows;
  DraftRun drafts(p, "dspark.draft_ids", "dspark.logits", "dspark.confidence");
  for (size_t i = 0; i < next.size(); ++i) {
    const std::vector<float> row = sequence.append({.tokens = {&next[i], 1}}, true, {}, &decode);
    rows.insert(rows.end(), row.begin(), row.end());
    if (drafts.wanted()) drafts.add(sequence, static_cast<int64_t>(i));
  }
  const Phase steps{.stored = "decode.",
                    .shown = "decode.",
                    .run = decode,
                    .first_position = n,
                    .rows = static_cast<int64_t>(next.size()),
                    .offset = c.window_size,
                    .fed = {}};
  check_ends(p, steps, rows);
  check_layer_values(p, steps);
  check_selections(p, steps);
  if (drafts.wanted()) {
    check_anchors(p, rows, steps.rows);
    drafts.report();
  }
}

float margin_of_largest(const std::vector<float>& logits) {
  float first = -INFINITY, second = -INFINITY;
  for (float v : logits) {
    second = std::max(second, std::min(first, v));
    first = std::max(first, v);
  }
  return first - second;
}

// The prompt in chunks, which must not change a bit, then the stored greedy tokens one by one.
void check_greedy(const Prompt& p, const Input& in, const std::vector<float>& whole) {
  const ModelConfig& c = p.model.config();
  const auto n = static_cast<int64_t>(in.tokens.size());
  std::vector<int32_t> tokens;
  if (p.file.has("greedy.tokens") && p.report.may_want(p.prefix + "greedy."))
    tokens = read_tokens(p.file, "greedy.tokens");
  GoldenSequence sequence(p.context, p.model, n + static_cast<int64_t>(tokens.size()), n);
  const bool all_rows = static_cast<int64_t>(whole.size()) > c.vocab_size;
  std::vector<float> logits, all;
  size_t chunk = 0;
  for (int64_t at = 0; at < n; ++chunk) {
    const int64_t count = std::min(n - at, kChunks[chunk % std::size(kChunks)]);
    logits = sequence.append(part_of(in, at, count), all_rows, {}, nullptr);
    if (!all_rows) all.clear();
    all.insert(all.end(), logits.begin(), logits.end());
    at += count;
  }
  p.report.add(
      compare(p.prefix + "prefill.logits_in_chunks", view(all), view(whole), {{Rule::kExact, 0}}, c.vocab_size));
  logits.assign(all.end() - c.vocab_size, all.end());

  if (tokens.empty()) return;
  std::vector<double> gaps;
  std::vector<float> margins;
  DraftRun drafts(p, "greedy.draft_ids", "", "greedy.draft_confidence");
  for (size_t i = 0; i < tokens.size(); ++i) {
    const double gap = behind(logits.data(), c.vocab_size, tokens[i]);
    gaps.push_back(gap);
    margins.push_back(margin_of_largest(logits));
    if (i + 1 == tokens.size()) break;
    logits = sequence.append({.tokens = {&tokens[i], 1}}, false, {}, nullptr);
    if (drafts.wanted()) drafts.add(sequence, static_cast<int64_t>(i));
  }
  report_tokens(p, "greedy.tokens", gaps, kGreedyMargin);
  if (p.file.has("greedy.margin")) {
    p.report.add(compare(p.prefix + "greedy.margin", view(margins), p.file.get("greedy.margin"),
                         whole_model(Kind::kConfidence, "greedy.margin", std::nullopt, 1)));
  }
  if (drafts.wanted()) drafts.report();
}

void skip_what_is_left(const Prompt& p, bool complete) {
  const auto begins = [](const std::string& name, std::string_view prefix) {
    return name.substr(0, prefix.size()) == prefix;
  };
  bool published = false, drafts = false;
  int64_t left = 0;
  for (const std::string& name : p.file.unused()) {
    if (begins(name, "decode_as_published.")) {
      published = true;
    } else if (p.model.draft_stages() == 0 && (begins(name, "dspark.") || begins(name, "greedy.draft_"))) {
      drafts = true;
    } else if (complete) {
      p.report.skip(p.prefix + name, "nothing compares this tensor");
    } else {
      ++left;
    }
  }
  if (left > 0) p.report.skip(p.prefix + "*", fmt::format("{} tensors behind a failure were not compared", left));
  if (published) p.report.skip(p.prefix + "decode_as_published", "the uncorrected index keys are not reproduced");
  if (drafts) p.report.skip(p.prefix + "dspark", "the checkpoint has no draft layers");
}

}  // namespace

double behind(const float* logits, int64_t vocab, int64_t token) {
  if (token < 0 || token >= vocab) return INFINITY;
  const double gap = *std::max_element(logits, logits + vocab) - logits[token];
  return gap >= 0 ? gap : INFINITY;
}

void report_tokens(const Prompt& p, const std::string& name, const std::vector<double>& gaps, TokenMargin margin) {
  Quantity q;
  q.name = p.prefix + name;
  q.compared = true;
  double sum = 0;
  for (double gap : gaps) {
    q.largest = std::max(q.largest, gap);
    sum += gap;
  }
  q.mean = gaps.empty() ? 0 : sum / static_cast<double>(gaps.size());
  const bool within = q.largest <= margin.largest && q.mean <= margin.mean;
  q.verdict = within ? Verdict::kPass : Verdict::kFail;
  q.tolerance =
      fmt::format("behind the largest logit {:.2g} {} {:.2g}, {} of {} the same", q.largest, within ? "<=" : ">",
                  margin.largest, std::count(gaps.begin(), gaps.end(), 0.0), gaps.size());
  if (!within && q.largest <= margin.largest) {
    q.note = fmt::format("in the mean at most {:.2g} is allowed", margin.mean);
  }
  p.report.add(std::move(q));
}

void check_prompt(const Prompt& p) {
  bool complete = true;
  const auto part = [&](const char* name, const auto& check) {
    try {
      check();
    } catch (const std::exception& e) {
      complete = false;
      p.report.fail(p.prefix + name, e.what());
    }
  };
  Input in;
  part("input", [&] { in = read_input(p); });
  if (!complete) return;
  const auto wanted = [&](const char* phase) { return p.report.may_want(p.prefix + phase); };
  std::vector<float> logits;
  if (!in.images.dead.empty()) part("input.image_starts", [&] { check_span_starts(p); });
  if (!in.images.dead.empty() && wanted("prefill.span")) {
    if (p.context.ops->vision_attention != nullptr) {
      part("prefill.spans", [&] { check_span_rows(p); });
    } else {
      p.report.skip(p.prefix + "prefill.spans", "this backend does not run the vision tower");
    }
  }
  if (wanted("prefill.") || wanted("decode.") || wanted("dspark.") || wanted("greedy.")) {
    part("prefill", [&] { check_prefill_and_decode(p, in, logits); });
  }
  if (wanted("fed.")) part("fed", [&] { check_fed_layers(p, in); });
  if (!logits.empty() && (wanted("prefill.logits_in_chunks") || wanted("greedy."))) {
    part("greedy", [&] { check_greedy(p, in, logits); });
  }
  if (p.report.only.empty()) skip_what_is_left(p, complete);
}

}  // namespace mdi::golden
