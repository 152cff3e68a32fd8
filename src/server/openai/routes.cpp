#include "server/openai/routes.h"

#include <utility>

#include "server/health.h"
#include "server/log.h"
#include "server/openai/chat_answer.h"
#include "server/openai/completion_answer.h"
#include "server/openai/errors.h"
#include "server/openai/models.h"
#include "server/openapi.h"
#include "server/service.h"
#include "server/tokenize.h"

namespace mdi {

namespace {

using Work = void (*)(Service&, const HttpRequest&, const std::shared_ptr<HttpReply>&);

void chat_completions(Service& service, const HttpRequest& http, const std::shared_ptr<HttpReply>& reply) {
  const JsonTree body(parse_body(http.body));
  ChatRequest request = parse_chat_request(*body, service);
  request.generation.client = client_of(http);
  AnswerCallback answer = chat_answer(service, reply, request);
  reply->on_gone(service.generate(std::move(request.generation), noted(reply, std::move(answer))));
}

void completions(Service& service, const HttpRequest& http, const std::shared_ptr<HttpReply>& reply) {
  const JsonTree body(parse_body(http.body));
  CompletionRequest request = parse_completion_request(*body, service);
  const auto answer = std::make_shared<CompletionAnswer>(service, reply, request);
  std::vector<CancelGeneration> cancels;
  try {
    for (size_t i = 0; i < request.generations.size(); ++i) {
      request.generations[i].client = client_of(http);
      request.generations[i].further = i > 0;  // of several prompts all are taken, or none
      cancels.push_back(service.generate(std::move(request.generations[i]),
                                         noted(reply, [answer, i](const AnswerPart& part) { answer->take(i, part); })));
    }
  } catch (...) {
    answer->drop();
    for (const CancelGeneration& cancel : cancels) cancel();
    throw;
  }
  answer->open();
  reply->on_gone([cancels] {
    for (const CancelGeneration& cancel : cancels) cancel();
  });
}

Route on_worker(Service& service, const char* method, const char* path, Work work) {
  return {method, path, [&service, work](HttpRequest request, std::shared_ptr<HttpReply> reply) {
            service.on_worker(std::move(request), std::move(reply), openai_error,
                              [&service, work](const HttpRequest& http, const std::shared_ptr<HttpReply>& to) {
                                work(service, http, to);
                              });
          }};
}

// Little work, and of use also when all workers are busy.
Route at_once(Service& service, const char* path, void (*work)(Service&, const HttpRequest&, HttpReply&), bool open) {
  return {"GET", path,
          [&service, work](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
            work(service, request, *reply);
          },
          open};
}

}  // namespace

std::vector<Route> openai_routes(Service& service) {
  return {on_worker(service, "POST", "/v1/chat/completions", chat_completions),
          on_worker(service, "POST", "/v1/completions", completions),
          at_once(service, "/v1/models", list_models, false),
          at_once(service, "/v1/models/*", get_model, false),
          on_worker(service, "POST", "/tokenize", tokenize),
          on_worker(service, "POST", "/detokenize", detokenize),
          at_once(service, "/health", health, true),
          at_once(service, "/ready", ready, true),
          at_once(service, "/openapi.json", openapi_document, false)};
}

}  // namespace mdi
