#include "engine/eval.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <string>

#include "core/error.h"
#include "engine/sampler.h"

namespace mdi {

namespace {

void check_options(const Model& model, std::span<const int32_t> tokens, std::span<const int32_t> byte_count,
                   const EvalOptions& o) {
  const ModelConfig& c = model.config();
  const auto fail = [](const std::string& message) { throw Error("eval", message); };
  if (o.context < 2 || o.context > c.max_position_embeddings) {
    fail("context: expected 2 to " + std::to_string(c.max_position_embeddings) + " (max_position_embeddings), found " +
         std::to_string(o.context));
  }
  if (o.prefix < 0 || o.prefix >= o.context) {
    fail("prefix: expected 0 to " + std::to_string(o.context - 1) + " (context - 1), found " +
         std::to_string(o.prefix));
  }
  if (o.chunk < 1) fail("chunk: expected 1 or more, found " + std::to_string(o.chunk));
  if (o.replay.rows > 0 && o.prefix <= o.replay.rows) {
    fail("prefix: replay of " + std::to_string(o.replay.rows) + " rows needs more tokens than that, found " +
         std::to_string(o.prefix));
  }
  if (static_cast<int64_t>(tokens.size()) < int64_t{o.prefix} + 2) {
    fail("expected a text of more than " + std::to_string(o.prefix) + " tokens, found " +
         std::to_string(std::max<size_t>(tokens.size(), 1) - 1));
  }
  if (byte_count.size() != static_cast<size_t>(c.vocab_size)) {
    fail("expected byte counts of " + std::to_string(c.vocab_size) + " tokens, found " +
         std::to_string(byte_count.size()));
  }
}

// -log2 softmax(row)[token].
double cost(std::span<const float> row, int32_t token) {
  const float largest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float v : row) sum += std::exp(static_cast<double>(v - largest));
  return (std::log(sum) - static_cast<double>(row[static_cast<size_t>(token)] - largest)) / std::log(2.0);
}

class Evaluation {
 public:
  Evaluation(Context& context, const Model& model, std::span<const int32_t> tokens, std::span<const int32_t> byte_count,
             const EvalOptions& options)
      : context_(context),
        model_(model),
        tokens_(tokens),
        byte_count_(byte_count),
        options_(options),
        state_(make_state(context, model, 1, blocks_for(options.context))),
        buffers_(context, model, std::min(options.chunk, options.context), std::min(options.chunk, options.context), 1,
                 static_cast<int32_t>(blocks_for(options.context))),
        blocks_(static_cast<size_t>(blocks_for(options.context))) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
  }

  EvalResult run(const EvalProgress& progress) {
    const auto begin = std::chrono::steady_clock::now();
    // The last token is predicted and never run.
    const auto runs = static_cast<int64_t>(tokens_.size()) - 1;
    const int64_t stride = options_.context - options_.prefix;
    for (int64_t at = 0; at + options_.prefix < runs; at += stride) {
      window(at, std::min<int64_t>(options_.context, runs - at));
      if (progress) progress(result_.tokens, runs - options_.prefix);
    }
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return result_;
  }

 private:
  void window(int64_t first, int64_t length) {
    clear_slot(context_, state_, 0);
    const ReplaySegment prefix = replay_segment(options_.replay.rows, 0, options_.prefix);
    const int32_t from = prefix.drops() ? prefix.kept_from : 0;
    for (const ReplayChunk& chunk : plan_replay(options_.replay.rows, 0, options_.prefix, options_.chunk)) {
      step(first, chunk.start, chunk.count, 0, from);
    }
    for (int64_t at = options_.prefix; at < length; at += options_.chunk) {
      const auto count = static_cast<int32_t>(std::min<int64_t>(options_.chunk, length - at));
      step(first, static_cast<int32_t>(at), count, count, from);
    }
  }

  // Runs and commits tokens [start, start + count) of the window that begins at token `first`, and scores what its last
  // `samples` tokens predict.
  void step(int64_t first, int32_t start, int32_t count, int32_t samples, int32_t replay_from) {
    std::vector<int32_t> sampled(static_cast<size_t>(samples));
    std::iota(sampled.begin(), sampled.end(), count - samples);
    const StepSequence sequence{
        .slot = 0,
        .start = start,
        .tokens = tokens_.subspan(static_cast<size_t>(first + start), static_cast<size_t>(count)),
        .dead = {},
        .blocks = blocks_,
        .sample_tokens = sampled,
        .replay_from = replay_from};
    const Step step = make_step(model_, state_, {&sequence, 1}, options_.replay.form);
    forward(context_, model_, state_, step, buffers_);
    if (samples > 0) score(first + start + count - samples, samples);
    commit(context_, model_, state_, step, buffers_, {&count, 1});
  }

  // The rows of buffers_.logits predict the tokens behind position `at`, at + 1, ...
  void score(int64_t at, int32_t rows) {
    const auto vocab = static_cast<size_t>(model_.config().vocab_size);
    logits_.resize(static_cast<size_t>(rows) * vocab);
    context_.ops->copy_out(context_, logits_.data(), buffers_.logits.as<float>(),
                           static_cast<int64_t>(logits_.size() * sizeof(float)));
    for (int32_t i = 0; i < rows; ++i) {
      const std::span row = std::span(logits_).subspan(static_cast<size_t>(i) * vocab, vocab);
      const int32_t token = tokens_[static_cast<size_t>(at + i + 1)];
      result_.bits += cost(row, token);
      result_.bytes += byte_count_[static_cast<size_t>(token)];
      result_.correct += argmax(row) == token ? 1 : 0;
      ++result_.tokens;
    }
  }

  Context& context_;
  const Model& model_;
  std::span<const int32_t> tokens_, byte_count_;
  EvalOptions options_;
  StatePools state_;
  StepBuffers buffers_;
  std::vector<int32_t> blocks_;
  std::vector<float> logits_;
  EvalResult result_;
};

}  // namespace

EvalResult evaluate(Context& context, const Model& model, std::span<const int32_t> tokens,
                    std::span<const int32_t> byte_count, const EvalOptions& options, const EvalProgress& progress) {
  check_options(model, tokens, byte_count, options);
  return Evaluation(context, model, tokens, byte_count, options).run(progress);
}

std::vector<int32_t> token_bytes(const Tokenizer& tokenizer, int32_t vocab) {
  std::vector<int32_t> count(static_cast<size_t>(vocab));
  for (int32_t id = 0; id < std::min(tokenizer.size(), vocab); ++id) {
    count[static_cast<size_t>(id)] = static_cast<int32_t>(tokenizer.bytes(id).size());
  }
  return count;
}

}  // namespace mdi
