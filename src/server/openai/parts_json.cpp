#include "server/openai/parts_json.h"

#include <algorithm>

#include "server/openai/errors.h"
#include "server/service.h"
#include "text/unicode.h"

namespace mdi {

OrderedJson AnswerHead::json() const {
  OrderedJson out;
  out["id"] = id;
  out["object"] = object;
  out["created"] = created;
  out["model"] = model;
  out["system_fingerprint"] = fingerprint;
  return out;
}

OrderedJson usage_json(const AnswerUsage& usage) {
  OrderedJson out;
  out["prompt_tokens"] = usage.prompt_tokens;
  out["completion_tokens"] = usage.completion_tokens;
  out["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  out["prompt_tokens_details"]["cached_tokens"] = usage.cached_tokens;
  out["completion_tokens_details"]["reasoning_tokens"] = usage.reasoning_tokens;
  return out;
}

const char* finish_json(Finish finish) {
  switch (finish) {
    case Finish::kLength:
      return "length";
    case Finish::kToolCalls:
      return "tool_calls";
    default:
      return "stop";
  }
}

bool is_failure(Finish finish) {
  return finish == Finish::kCancelled || finish == Finish::kDeadline || finish == Finish::kError;
}

ApiError answer_error(const AnswerPart& part) {
  if (part.finish == Finish::kDeadline) {
    return {ApiErrorKind::kTimeout, "The request took longer than this server allows.", {}, "timeout"};
  }
  if (part.finish == Finish::kCancelled) {
    return {ApiErrorKind::kUnavailable, "The request was cancelled: the server is shutting down.", {}, "cancelled"};
  }
  if (part.invalid) return invalid_request(part.error);
  return {ApiErrorKind::kInternal, "Generation failed: " + part.error, {}, "generation_failed"};
}

void send_failure(Service& service, HttpReply& reply, const AnswerPart& part, bool begun) {
  const ApiError error = answer_error(part);
  if (begun) {
    if (reply.write("data: " + openai_error_json(error) + "\n\ndata: [DONE]\n\n")) service.count(error);
    reply.end();
  } else {
    service.refuse(reply, error, openai_error);
  }
}

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  if (id >= tokenizer.size()) return {};
  Utf8Stream stream;
  std::string text;
  stream.push(tokenizer.bytes(id), text);
  stream.finish(text);
  return text;
}

double json_logprob(float logprob) { return std::max(static_cast<double>(logprob), -9999.0); }

namespace {

OrderedJson token_entry(const Tokenizer& tokenizer, int32_t id, float logprob) {
  OrderedJson out;
  out["token"] = token_text(tokenizer, id);
  out["logprob"] = json_logprob(logprob);
  OrderedJson bytes = OrderedJson::array();
  if (id < tokenizer.size()) {
    for (const char byte : tokenizer.bytes(id)) bytes.push_back(static_cast<int>(static_cast<unsigned char>(byte)));
  }
  out["bytes"] = std::move(bytes);
  return out;
}

}  // namespace

OrderedJson chat_logprobs(const Tokenizer& tokenizer, std::span<const AnswerToken> tokens) {
  OrderedJson content = OrderedJson::array(), reasoning = OrderedJson::array();
  for (const AnswerToken& token : tokens) {
    OrderedJson entry = token_entry(tokenizer, token.id, token.logprobs.logprob);
    entry["top_logprobs"] = OrderedJson::array();
    for (const TokenLogprob& top : token.logprobs.top) {
      entry["top_logprobs"].push_back(token_entry(tokenizer, top.token, top.logprob));
    }
    (token.reasoning ? reasoning : content).push_back(std::move(entry));
  }
  OrderedJson out;
  out["content"] = std::move(content);
  out["refusal"] = nullptr;
  if (!reasoning.empty()) out["reasoning_content"] = std::move(reasoning);
  return out;
}

}  // namespace mdi
