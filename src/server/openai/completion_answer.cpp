#include "server/openai/completion_answer.h"

#include <algorithm>

#include "server/wire.h"

namespace mdi {

namespace {

int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

CompletionAnswer::CompletionAnswer(Service& service, std::shared_ptr<HttpReply> reply, const CompletionRequest& request)
    : service_(service),
      head_{.id = random_id("cmpl-"),
            .object = "text_completion",
            .created = unix_time(),
            .model = service.options().model_name,
            .fingerprint = service.fingerprint()},
      settings_(request.stream),
      logprobs_(request.logprobs),
      n_(static_cast<size_t>(request.n)),
      open_prompts_(request.generations.size()),
      echoes_(request.echoes),
      reply_(std::move(reply)),
      choices_(request.generations.size() * n_) {}

void CompletionAnswer::take(size_t prompt, const AnswerPart& part) {
  const std::lock_guard lock(mutex_);
  if (part.silence) {
    keep_alive();
  } else if (opened_) {
    handle(prompt, part);
  } else {
    early_.emplace_back(prompt, part);
  }
}

void CompletionAnswer::keep_alive() {
  if (!opened_ || reply_ == nullptr || !settings_.stream) return;
  if (!std::exchange(begun_, true)) begin_events(*reply_);
  reply_->write(kKeepAlive);
}

void CompletionAnswer::open() {
  const std::lock_guard lock(mutex_);
  opened_ = true;
  for (const auto& [prompt, part] : std::exchange(early_, {})) handle(prompt, part);
}

void CompletionAnswer::drop() {
  const std::lock_guard lock(mutex_);
  reply_.reset();
  opened_ = true;
  early_.clear();
}

void CompletionAnswer::handle(size_t prompt, const AnswerPart& part) {
  if (reply_ == nullptr) return;
  if (part.finish && is_failure(*part.finish)) return fail(part);
  const size_t index = prompt * n_ + static_cast<size_t>(part.sample);
  Choice& choice = choices_[index];
  choice.tokens.insert(choice.tokens.end(), part.tokens.begin(), part.tokens.end());
  if (!std::exchange(choice.begun, true)) choice.text = echoes_[prompt];
  choice.text += part.text;
  if (part.finish) choice.finish = *part.finish;
  if (settings_.stream) stream(index, choice, part);
  if (!part.last) return;
  usage_.prompt_tokens += part.total.prompt_tokens;
  usage_.cached_tokens += part.total.cached_tokens;
  usage_.completion_tokens += part.total.completion_tokens;
  if (--open_prompts_ == 0) finish();
}

void CompletionAnswer::stream(size_t index, Choice& choice, const AnswerPart& part) {
  if (choice.text.empty() && choice.tokens.empty() && !part.finish) return;
  if (!std::exchange(begun_, true)) begin_events(*reply_);
  OrderedJson out = head_.json();
  out["choices"] =
      OrderedJson::array({choice_json(index, choice.text, choice, part.finish ? finish_json(*part.finish) : nullptr)});
  if (settings_.include_usage) out["usage"] = nullptr;
  reply_->write("data: " + json_text(out) + "\n\n");
  choice.text.clear();
  choice.tokens.clear();
}

void CompletionAnswer::finish() {
  OrderedJson out = head_.json();
  out["choices"] = OrderedJson::array();
  if (settings_.stream) {
    out["usage"] = usage_json(usage_);
    if (settings_.include_usage) reply_->write("data: " + json_text(out) + "\n\n");
    reply_->write("data: [DONE]\n\n");
    reply_->end();
  } else {
    for (size_t i = 0; i < choices_.size(); ++i) {
      out["choices"].push_back(choice_json(i, choices_[i].text, choices_[i], finish_json(choices_[i].finish)));
    }
    out["usage"] = usage_json(usage_);
    send_json(*reply_, 200, out);
  }
  reply_.reset();
}

void CompletionAnswer::fail(const AnswerPart& part) {
  send_failure(service_, *reply_, part, begun_);
  reply_.reset();
}

OrderedJson CompletionAnswer::choice_json(size_t index, const std::string& text, Choice& choice,
                                          const char* finish) const {
  OrderedJson out;
  out["text"] = text;
  out["index"] = index;
  out["logprobs"] = logprobs_ ? logprobs_json(choice) : OrderedJson();
  out["finish_reason"] = finish == nullptr ? OrderedJson() : OrderedJson(finish);
  return out;
}

OrderedJson CompletionAnswer::logprobs_json(Choice& choice) const {
  OrderedJson out;
  for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    out[name] = OrderedJson::array();
  }
  for (const AnswerToken& token : choice.tokens) {
    const std::string text = token_text(service_.tokenizer(), token.id);
    out["tokens"].push_back(text);
    out["token_logprobs"].push_back(json_logprob(token.logprobs.logprob));
    OrderedJson top = OrderedJson::object();
    for (const TokenLogprob& t : token.logprobs.top) {
      top[token_text(service_.tokenizer(), t.token)] = json_logprob(t.logprob);
    }
    out["top_logprobs"].push_back(std::move(top));
    out["text_offset"].push_back(choice.offset);
    choice.offset += characters(text);
  }
  return out;
}

}  // namespace mdi
