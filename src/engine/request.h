// What a user of the engine asks for, and what comes back while it runs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cache/prefix_key.h"
#include "checkpoint/config.h"
#include "engine/image_prompt.h"
#include "engine/logprobs.h"
#include "engine/penalties.h"
#include "engine/sampler.h"

namespace mdi {

using RequestId = uint64_t;  // from 1 on, never used twice

enum class EndReason : uint8_t {
  kStop,       // a stop id or a stop string
  kLength,     // max_tokens
  kCancelled,  // by cancel(), or because the engine stopped
  kDeadline,
  kStalled,  // the watchdog saw no progress
  kError,    // Event::error says what
  kInvalid,  // by its own fault: Event::error says what of it, as mdi::Error does, and why
};
const char* end_reason_name(EndReason reason);

struct GeneratedToken {
  int32_t id = 0;
  Logprobs logprobs;  // where the request wants them
};

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, found in the prefix cache when it was first admitted
  int32_t completion_tokens = 0;
};

// Something about one sample (0..n-1) of a request. The tokens of all its events are what was generated, each once; the
// texts of all its events, one after the other, are its text.
struct Event {
  RequestId request = 0;
  int32_t sample = 0;
  std::vector<GeneratedToken> tokens;  // a stop id is the last of them
  std::string text;                    // whole UTF-8, up to a stop string; only where the request wants text
  std::optional<EndReason> end;        // the last event of this sample
  std::string error;
  Usage usage;        // up to here
  bool last = false;  // the last event of the request: all samples have ended
};

// A span of one image in the prompt: which positions it takes and which bytes it was made of.
struct ImageIdentity {
  int64_t start = 0, count = 0;
  ImageDigest digest{};
};

struct Request {
  std::vector<int32_t> prompt;                       // at least one token
  ImageSpans images = {};                            // of the prompt
  std::vector<ImageIdentity> image_identities = {};  // what the prefix cache knows the images by, ascending
  // Instead of images.rows: one for each identity, which the engine encodes, one a step, before it admits the request.
  std::vector<PreparedImage> pictures = {};
  std::string salt = {};  // prefixes are shared between requests of equal salt only
  SamplingParams sampling = {};
  int32_t max_tokens = 0;
  int32_t n = 1;                         // samples, which differ in their random numbers
  std::optional<int32_t> logprobs = {};  // log-probabilities, and this many of the most likely tokens
  std::vector<int32_t> stop_ids = {};    // generation ends after one of these
  std::vector<std::string> stop = {};    // generation ends before one of these; needs a tokenizer
  bool text = false;                     // events carry text; needs a tokenizer
  bool draft = true;                     // draft layers may be used, where the engine has drafting on
  double deadline = 0;                   // seconds from submission, queue included; 0: none
  double waited = 0;                     // seconds before submission that count as if they came after it
  AllowedTokens allowed = {};            // empty: everything
  // Whether calls of `allowed` take long at the moment: then a thread of its own makes them, and steps do not wait.
  // From any thread; empty: they do not. Where it is not, `allowed` has to allow for calls from several threads at
  // once.
  std::function<bool()> slow_masks = {};
  std::string client = {};  // whose it is: clients take turns where masks are slow
  // Called from the engine's thread, between steps; must not block. May call the engine's cancel(). What it throws
  // cancels the request.
  std::function<void(const Event&)> on_event = {};
};

// The hard caps of a request. All are checked before anything is allocated for it.
struct RequestLimits {
  int64_t max_length = 0;  // prompt and answer together
  int32_t max_n = 16;
  int32_t max_stop_strings = 16, max_stop_string_bytes = 256, max_stop_ids = 64;
  int32_t max_logit_bias = 1024;
  int32_t max_salt_bytes = 256;
  double max_deadline = 24 * 3600;
};

// Throws mdi::Error("request", ...) that says what was expected and found.
void check_request(const Request& request, const RequestLimits& limits, const ModelConfig& config, bool has_tokenizer);

}  // namespace mdi
