#include "server/openai/completion_request.h"

#include <algorithm>
#include <cmath>

namespace mdi {

namespace {

constexpr size_t kMostAnswers = 128;  // prompts times n

struct Prompt {
  std::vector<int32_t> ids;
  std::string text;  // where it was given as text
};

Prompt read_prompt(const Service& service, const OrderedJson& value, const std::string& path, bool add_special) {
  Prompt prompt;
  if (value.is_string()) {
    prompt.text = value.get<std::string>();
    prompt.ids = text_prompt(service, prompt.text, add_special);
  } else {
    prompt.ids = read_token_ids(service, value, path);
  }
  if (prompt.ids.empty()) throw invalid_param(path, "at least one token", "none");
  return prompt;
}

// A text, a list of token ids, or a list of either.
std::vector<Prompt> read_prompts(Fields& body, const Service& service) {
  const bool add_special = body.boolean("add_special_tokens").value_or(true);
  const OrderedJson* given = body.find("prompt");
  if (given == nullptr) body.refuse("prompt", "a text, a list of token ids, or a list of these");
  const bool one = given->is_string() || (given->is_array() && !given->empty() && given->front().is_number());
  if (one) return {read_prompt(service, *given, "prompt", add_special)};
  const OrderedJson* list = body.list("prompt", 1, kMostAnswers);
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = "prompt[" + std::to_string(i) + "]";
    const OrderedJson& item = (*list)[i];
    if (!item.is_string() && !item.is_array()) {
      throw invalid_param(path, "a text or a list of token ids", describe_value(item));
    }
    prompts.push_back(read_prompt(service, item, path, add_special));
  }
  return prompts;
}

}  // namespace

std::vector<int32_t> text_prompt(const Service& service, const std::string& text, bool add_special) {
  service.check_text(text.size(), "prompt");
  std::vector<int32_t> ids = service.tokenizer().encode(text);
  const int32_t bos = service.model().config().bos_token_id;
  if (add_special && (ids.empty() || ids.front() != bos)) ids.insert(ids.begin(), bos);
  return ids;
}

std::vector<int32_t> read_token_ids(const Service& service, const OrderedJson& list, const std::string& path) {
  const auto most = static_cast<size_t>(service.engine().options().max_length);
  if (!list.is_array()) throw invalid_param(path, "a list of token ids", describe_value(list));
  if (list.size() > most) {
    throw ApiError(ApiErrorKind::kInvalid,
                   "This model's maximum context length is " + std::to_string(most) + " tokens; " + path + " has " +
                       std::to_string(list.size()) + ".",
                   path, "context_length_exceeded");
  }
  const int32_t vocab = service.model().config().vocab_size;
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const OrderedJson& item : list) {
    // 1.0 is whole, too, as everywhere in a body.
    const bool whole = item.is_number() && std::trunc(item.get<double>()) == item.get<double>();
    if (!whole || item < 0 || item >= vocab) {
      throw invalid_param(path + "[" + std::to_string(ids.size()) + "]",
                          "a token id of 0 to " + std::to_string(vocab - 1), describe_value(item));
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

CompletionRequest parse_completion_request(const OrderedJson& json, const Service& service) {
  CompletionRequest request;
  Fields body(json, "");
  Generation common;
  read_common(body, service, common);
  request.stream = read_stream(body, false);
  request.n = common.n;
  common.max_tokens = static_cast<int32_t>(body.integer("max_tokens", 1, INT32_MAX).value_or(16));
  if (const auto top = body.integer("logprobs", 0, kMaxTopLogprobs)) {
    common.logprobs = static_cast<int32_t>(*top);
    request.logprobs = true;
  }
  const bool echo = body.boolean("echo").value_or(false);
  if (echo && request.logprobs) {
    body.unsupported("echo", "log-probabilities of the prompt; ask for echo or logprobs alone");
  }
  if (const OrderedJson* suffix = body.find("suffix"); suffix != nullptr && *suffix != "") {
    body.unsupported("suffix", "this model was not trained to fill in the middle");
  }
  if (const auto best = body.integer("best_of", 1, 128); best && *best != common.n) {
    body.unsupported("best_of", "ask for n answers and choose among them");
  }
  read_format(body, false, common.grammar);
  const std::vector<Prompt> prompts = read_prompts(body, service);
  body.done();
  if (prompts.size() * static_cast<size_t>(common.n) > kMostAnswers) {
    throw invalid_param("n", "at most " + std::to_string(kMostAnswers) + " answers to all prompts together",
                        std::to_string(prompts.size() * static_cast<size_t>(common.n)));
  }
  for (const Prompt& prompt : prompts) {
    request.generations.push_back(common);
    request.generations.back().prompt = prompt.ids;
    std::string text;
    if (echo) text = prompt.text.empty() ? service.tokenizer().decode(prompt.ids, true) : prompt.text;
    request.echoes.push_back(std::move(text));
  }
  return request;
}

}  // namespace mdi
