// Parts of the answers to all prompts of one POST /v1/completions to what is sent: one object, or a stream of chunks.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/openai/completion_request.h"
#include "server/openai/parts_json.h"
#include "server/service.h"

namespace mdi {

class CompletionAnswer {
 public:
  CompletionAnswer(Service& service, std::shared_ptr<HttpReply> reply, const CompletionRequest& request);

  // One for each prompt. Thread-safe with open() and drop().
  void take(size_t prompt, const AnswerPart& part);
  // All prompts have been submitted: from now on something is sent.
  void open();
  // One could not be submitted: nothing is sent from here.
  void drop();

 private:
  struct Choice {
    std::string text;
    std::vector<AnswerToken> tokens;
    int64_t offset = 0;  // characters of text before `tokens`
    Finish finish = Finish::kStop;
    bool begun = false;
  };

  void handle(size_t prompt, const AnswerPart& part);
  void keep_alive();
  void stream(size_t index, Choice& choice, const AnswerPart& part);
  void finish();
  void fail(const AnswerPart& part);
  OrderedJson choice_json(size_t index, const std::string& text, Choice& choice, const char* finish) const;
  OrderedJson logprobs_json(Choice& choice) const;

  Service& service_;
  AnswerHead head_;
  StreamSettings settings_;
  bool logprobs_;
  size_t n_, open_prompts_;
  AnswerUsage usage_;
  std::vector<std::string> echoes_;

  std::mutex mutex_;  // of what follows
  std::shared_ptr<HttpReply> reply_;
  std::vector<Choice> choices_;  // [prompts, n]
  bool opened_ = false, begun_ = false;
  std::vector<std::pair<size_t, AnswerPart>> early_;  // parts from before open()
};

}  // namespace mdi
