#include "engine/generator.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "core/error.h"

namespace mdi {

namespace {
double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "?";
}

Generator::Generator(Context& context, const Model& model, int64_t max_length, int32_t chunk)
    : context_(context), model_(model), max_length_(max_length), chunk_(chunk) {
  if (max_length < 1 || max_length > model.config().max_position_embeddings) {
    throw Error("generate", "a length of " + std::to_string(max_length) + " tokens is outside 1.." +
                                std::to_string(model.config().max_position_embeddings) + " (max_position_embeddings)");
  }
  if (chunk < 1) throw Error("generate", "chunk: expected 1 or more, found " + std::to_string(chunk));
  chunk_ = static_cast<int32_t>(std::min<int64_t>(chunk, max_length));
  const int64_t blocks = blocks_for(max_length);
  state_ = make_state(context, model, 1, blocks);
  buffers_ = std::make_unique<StepBuffers>(context, model, chunk_, 1, 1, static_cast<int32_t>(blocks));
  blocks_.resize(static_cast<size_t>(blocks));
  std::iota(blocks_.begin(), blocks_.end(), 0);
  logits_.resize(static_cast<size_t>(model.config().vocab_size));
}

std::span<const float> Generator::advance(std::span<const int32_t> tokens, int64_t start, bool sample) {
  const auto count = static_cast<int32_t>(tokens.size());
  const int32_t last = count - 1;
  const StepSequence sequence{.slot = 0,
                              .start = static_cast<int32_t>(start),
                              .tokens = tokens,
                              .dead = {},
                              .blocks = blocks_,
                              .sample_tokens = sample ? std::span(&last, 1) : std::span<const int32_t>()};
  const Step step = make_step(model_, state_, {&sequence, 1});
  forward(context_, model_, state_, step, *buffers_);
  commit(context_, model_, state_, step, *buffers_, {&count, 1});
  if (!sample) return {};
  context_.ops->copy_out(context_, logits_.data(), buffers_->logits.as<float>(),
                         static_cast<int64_t>(logits_.size() * sizeof(float)));
  return logits_;
}

GenerateResult Generator::run(const GenerateRequest& request, const GenerateCallbacks& callbacks) {
  const auto total = static_cast<int64_t>(request.prompt.size());
  if (total == 0) throw Error("generate", "the prompt has no tokens");
  if (request.max_tokens < 1) throw Error("generate", "max_tokens: expected 1 or more");
  if (total + request.max_tokens > max_length_) {
    throw Error("generate", "a prompt of " + std::to_string(total) + " tokens and " +
                                std::to_string(request.max_tokens) + " new ones do not fit " +
                                std::to_string(max_length_));
  }
  check_sampling(request.sampling, "generate");
  clear_slot(context_, state_, 0);

  GenerateResult result;
  const auto prefill_start = std::chrono::steady_clock::now();
  std::span<const float> logits;
  for (int64_t at = 0; at < total;) {
    const int64_t count = std::min<int64_t>(chunk_, total - at);
    const std::span tokens(request.prompt.data() + at, static_cast<size_t>(count));
    logits = advance(tokens, at, at + count == total);
    at += count;
    if (callbacks.on_prefill && !callbacks.on_prefill(at, total)) {
      result.finish = FinishReason::kCancelled;
      return result;
    }
  }
  result.prefill_seconds = seconds_since(prefill_start);

  const auto decode_start = std::chrono::steady_clock::now();
  int64_t length = total;
  for (;;) {
    const int32_t token = sample(logits, request.sampling, 0, static_cast<uint64_t>(length));
    result.tokens.push_back(token);
    const bool go_on = !callbacks.on_token || callbacks.on_token(token);
    const bool stop = std::find(request.stop_ids.begin(), request.stop_ids.end(), token) != request.stop_ids.end();
    if (!go_on || stop) {
      result.finish = FinishReason::kStop;
      break;
    }
    if (static_cast<int32_t>(result.tokens.size()) == request.max_tokens) break;
    logits = advance({&token, 1}, length, true);
    ++length;
    ++result.decode_steps;
  }
  result.decode_seconds = seconds_since(decode_start);
  return result;
}

}  // namespace mdi
