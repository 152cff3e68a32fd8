// What the answers of both of OpenAI's endpoints share.
#pragma once

#include <span>
#include <string>

#include "server/answer.h"
#include "server/api_error.h"
#include "text/ordered_json.h"
#include "text/tokenizer.h"

namespace mdi {

class HttpReply;
class Service;

// The members that every chunk and answer of one request begins with.
struct AnswerHead {
  std::string id;
  const char* object;
  int64_t created;
  std::string model, fingerprint;

  OrderedJson json() const;
};

// prompt_tokens, completion_tokens, total_tokens and their details.
OrderedJson usage_json(const AnswerUsage& usage);

// "stop", "length" or "tool_calls".
const char* finish_json(Finish finish);

// Why an answer that ended so is none; only for kCancelled, kDeadline and kError.
ApiError answer_error(const AnswerPart& part);
bool is_failure(Finish finish);
// Ends the reply with answer_error(part), which is counted: as an event and [DONE] in a stream that has begun, else as
// the whole answer.
void send_failure(Service& service, HttpReply& reply, const AnswerPart& part, bool begun);

// What a token looks like by itself: its bytes as text, with U+FFFD for parts of characters.
std::string token_text(const Tokenizer& tokenizer, int32_t id);
// -inf is no JSON number; the API's lowest is -9999.
double json_logprob(float logprob);

// The chat form: {"content": [...], "refusal": null, "reasoning_content": [...]}, each token with its bytes.
OrderedJson chat_logprobs(const Tokenizer& tokenizer, std::span<const AnswerToken> tokens);

}  // namespace mdi
