// One sequence from prompt to tokens: prefill in chunks, then a token a step, or a drafted block a step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/image_prompt.h"
#include "engine/speculation.h"
#include "model/draft.h"
#include "model/forward.h"

namespace mdi {

struct GenerateRequest {
  std::vector<int32_t> prompt;  // at least one token
  int32_t max_tokens = 0;
  SamplingParams sampling;
  std::vector<int32_t> stop_ids;  // generation ends after one of these; it is part of the tokens
  bool draft = false;             // propose blocks with the draft layers and verify them; the model must have some
  ImageSpans images = {};         // of the prompt
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled };
const char* finish_reason_name(FinishReason reason);

struct GenerateResult {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kLength;
  double prefill_seconds = 0, decode_seconds = 0;
  int64_t reused_tokens = 0;  // of the prompt, kept from the request before
  int64_t decode_steps = 0;   // target steps after prefill
  // Drafting: how often the proposal at each place of the block was submitted, and how often it was accepted.
  std::vector<int64_t> proposed, accepted;
};

struct GenerateCallbacks {
  // Prefilled so far and in all; called after each chunk. Return false to cancel.
  std::function<bool(int64_t done, int64_t total)> on_prefill;
  // A new token; called before the next step. Return false to end here (reason kStop).
  std::function<bool(int32_t token)> on_token;
};

// Runs one sequence at a time on a context; keeps pools and buffers between requests. A request whose prompt goes on
// where the last one ended (a conversation's next turn) runs only what is new: the state kept is that of a cold run,
// except under bounded replay, where each prompt part is a segment of its own (model/replay.h).
class Generator {
 public:
  // max_length: the longest sequence (prompt and answer) that it makes room for. chunk: prefill tokens a step. Throws
  // mdi::Error where a length or a count is out of range, and for bounded replay of a model without KV sources.
  Generator(Context& context, const Model& model, int64_t max_length, int32_t chunk, ReplaySettings replay = {});

  // Throws mdi::Error when the request does not fit (empty prompt, unknown token, too long).
  GenerateResult run(const GenerateRequest& request, const GenerateCallbacks& callbacks = {});

 private:
  // Logits of one row of the step that ran last.
  std::span<const float> logits(int32_t sample) const;
  // Runs tokens at position `start` without committing them, and fetches the logits of the last `samples` of them.
  Step run_step(const PromptPart& part, int64_t start, int32_t samples);
  void commit_step(const Step& step, int32_t accepted);
  // Returns how many tokens of the prompt the state holds already, after making it empty where they differ.
  int64_t reuse(const GenerateRequest& request);
  bool prefill(const GenerateRequest& request, int64_t from, const GenerateCallbacks& callbacks);
  void forget();  // makes the state that of an empty sequence
  std::vector<Proposal> propose(const GenerateRequest& request, int32_t anchor, int64_t length);

  Context& context_;
  const Model& model_;
  int64_t max_length_;
  int32_t chunk_;
  ReplaySettings replay_;
  StatePools state_;
  std::unique_ptr<StepBuffers> buffers_;
  std::unique_ptr<DraftBuffers> draft_buffers_;  // null: the model has no draft layers
  std::vector<int32_t> blocks_;
  std::vector<int32_t> committed_;       // the tokens that the state holds
  ImageSpans committed_images_;          // and what they were embedded as: equal ids are not equal images
  std::vector<ReplaySegment> segments_;  // of committed_, those that dropped rows
  std::vector<float> logits_;
};

}  // namespace mdi
