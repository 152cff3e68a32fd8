// One sequence from prompt to tokens: prefill in chunks, then a token a step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "model/forward.h"

namespace mdi {

struct GenerateRequest {
  std::vector<int32_t> prompt;  // at least one token
  int32_t max_tokens = 0;
  SamplingParams sampling;
  std::vector<int32_t> stop_ids;  // generation ends after one of these; it is part of the tokens
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled };
const char* finish_reason_name(FinishReason reason);

struct GenerateResult {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kLength;
  double prefill_seconds = 0, decode_seconds = 0;
  int64_t decode_steps = 0;  // tokens after the first
};

struct GenerateCallbacks {
  // Prefilled so far and in all; called after each chunk. Return false to cancel.
  std::function<bool(int64_t done, int64_t total)> on_prefill;
  // A new token; called before the next step. Return false to end here (reason kStop).
  std::function<bool(int32_t token)> on_token;
};

// Runs one sequence at a time on a context; keeps pools and buffers between requests.
class Generator {
 public:
  // max_length: the longest sequence (prompt and answer) that it makes room for. chunk: prefill tokens a step.
  Generator(Context& context, const Model& model, int64_t max_length, int32_t chunk);

  // Throws mdi::Error when the request does not fit (empty prompt, unknown token, too long).
  GenerateResult run(const GenerateRequest& request, const GenerateCallbacks& callbacks = {});

 private:
  // Runs tokens at position `start`, commits them, and returns the logits of the last one when `sample` is set.
  std::span<const float> advance(std::span<const int32_t> tokens, int64_t start, bool sample);

  Context& context_;
  const Model& model_;
  int64_t max_length_;
  int32_t chunk_;
  StatePools state_;
  std::unique_ptr<StepBuffers> buffers_;
  std::vector<int32_t> blocks_;
  std::vector<float> logits_;
};

}  // namespace mdi
