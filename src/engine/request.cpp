#include "engine/request.h"

#include <string>

#include "core/error.h"

namespace mdi {

const char* end_reason_name(EndReason reason) {
  switch (reason) {
    case EndReason::kStop:
      return "stop";
    case EndReason::kLength:
      return "length";
    case EndReason::kCancelled:
      return "cancelled";
    case EndReason::kDeadline:
      return "deadline";
    case EndReason::kStalled:
      return "stalled";
    case EndReason::kInvalid:
      return "invalid";
    case EndReason::kError:
      return "error";
  }
  return "?";
}

namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error("request", what); }

void check_range(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  refuse(std::string(name) + ": expected " + std::to_string(least) + " to " + std::to_string(most) + ", found " +
         std::to_string(value));
}

void check_tokens(const char* name, std::span<const int32_t> tokens, int32_t vocab) {
  for (int32_t token : tokens) check_range(name, token, 0, vocab - 1);
}

void check_identities(const Request& r) {
  int64_t flagged = 0;
  for (uint8_t flag : r.images.dead) flagged += flag != 0 ? 1 : 0;
  int64_t covered = 0;
  int64_t behind = 0;
  for (const ImageIdentity& image : r.image_identities) {
    if (image.start < behind || image.count < 1 || image.start + image.count > static_cast<int64_t>(r.prompt.size())) {
      refuse("images: a span of " + std::to_string(image.count) + " tokens at " + std::to_string(image.start) +
             " is outside the prompt or overlaps the one before");
    }
    behind = image.start + image.count;
    covered += image.count;
    for (int64_t i = image.start; i < behind; ++i) {
      if (r.images.dead.empty() || r.images.dead[static_cast<size_t>(i)] == 0) {
        refuse("images: token " + std::to_string(i) + " is in the span of an identity and not of an image");
      }
    }
  }
  if (covered != flagged) {
    refuse("images: expected an identity for each of " + std::to_string(flagged) + " image tokens, found " +
           std::to_string(covered));
  }
}

void check_pictures(const Request& r, const ModelConfig& config) {
  if (!config.has_vision) refuse("the model takes text only, found an image");
  if (!r.images.rows.empty()) refuse("images: expected rows or pictures, found both");
  if (r.images.dead.size() != r.prompt.size()) refuse("images: expected a flag for each token of the prompt");
  check_range("pictures (one for each image identity)", static_cast<int64_t>(r.pictures.size()),
              static_cast<int64_t>(r.image_identities.size()), static_cast<int64_t>(r.image_identities.size()));
  for (size_t i = 0; i < r.pictures.size(); ++i) {
    const int64_t tokens = r.pictures[i].grid.tokens();
    check_range("tokens of a picture's span", r.image_identities[i].count, tokens, tokens);
  }
}

}  // namespace

void check_request(const Request& r, const RequestLimits& limits, const ModelConfig& config, bool has_tokenizer) {
  const auto size = [](const auto& values) { return static_cast<int64_t>(values.size()); };
  if (r.prompt.empty()) refuse("the prompt has no tokens");
  check_range("max_tokens", r.max_tokens, 1, limits.max_length);
  if (size(r.prompt) + r.max_tokens > limits.max_length) {
    refuse("a prompt of " + std::to_string(r.prompt.size()) + " tokens and " + std::to_string(r.max_tokens) +
           " new ones do not fit " + std::to_string(limits.max_length));
  }
  check_range("n", r.n, 1, limits.max_n);
  check_range("stop", size(r.stop), 0, limits.max_stop_strings);
  for (const std::string& stop : r.stop)
    check_range("bytes of a stop string", size(stop), 1, limits.max_stop_string_bytes);
  check_range("stop_ids", size(r.stop_ids), 0, limits.max_stop_ids);
  check_range("logit_bias", size(r.sampling.logit_bias), 0, limits.max_logit_bias);
  check_range("bytes of the salt", size(r.salt), 0, limits.max_salt_bytes);
  if (r.logprobs) check_range("top logprobs", *r.logprobs, 0, kMaxTopLogprobs);
  if (!(r.deadline >= 0 && r.deadline <= limits.max_deadline)) {
    refuse("deadline: expected 0 (none) to " + std::to_string(limits.max_deadline) + " seconds, found " +
           std::to_string(r.deadline));
  }
  check_sampling(r.sampling, "request");
  if ((r.text || !r.stop.empty()) && !has_tokenizer) refuse("text and stop strings need a tokenizer.json, found none");

  check_tokens("prompt token", r.prompt, config.vocab_size);
  check_tokens("stop id", r.stop_ids, config.vocab_size);
  for (const LogitBias& b : r.sampling.logit_bias)
    check_range("token of logit_bias", b.token, 0, config.vocab_size - 1);
  if (!r.images.rows.empty() && !config.has_vision) refuse("the model takes text only, found tokens of an image");
  if (r.pictures.empty()) {
    check_spans(r.images, size(r.prompt), config.dim, "request");
  } else {
    check_pictures(r, config);
  }
  check_identities(r);
}

}  // namespace mdi
