#include "server/anthropic/routes.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "server/anthropic/errors.h"
#include "server/anthropic/messages_answer.h"
#include "server/anthropic/messages_request.h"
#include "server/fields.h"
#include "server/log.h"
#include "server/service.h"
#include "server/wire.h"

namespace mdi {

namespace {

using Signer = std::shared_ptr<const ThinkingSigner>;
using Work = void (*)(Service&, const Signer&, const HttpRequest&, const std::shared_ptr<HttpReply>&);

// What is wrong with a schema is said of the member that has it here.
constexpr SchemaPaths kSchemas{"output_config.format", "output_config.format.schema", "input_schema"};

CancelGeneration generate(Service& service, Generation generation, AnswerCallback answer) {
  const auto named = [answer = std::move(answer)](const AnswerPart& part) {
    if (!part.invalid) return answer(part);
    AnswerPart here = part;
    here.error = with_api_paths(part.error, kSchemas);
    answer(here);
  };
  try {
    return service.generate(std::move(generation), named);
  } catch (const Error& error) {
    throw invalid_request(with_api_paths(error.what(), kSchemas));
  }
}

void messages(Service& service, const Signer& signer, const HttpRequest& http,
              const std::shared_ptr<HttpReply>& reply) {
  const JsonTree body(parse_body(http.body));
  MessagesRequest request = parse_messages_request(*body, service, *signer);
  request.generation.client = client_of(http);
  AnswerCallback answer = messages_answer(service, *signer, reply, request);
  reply->on_gone(
      generate(service, std::move(request.generation),
               noted(reply, [signer, answer = std::move(answer)](const AnswerPart& part) { answer(part); })));
}

void count(Service& service, const Signer& signer, const HttpRequest& http, const std::shared_ptr<HttpReply>& reply) {
  const JsonTree body(parse_body(http.body));
  const MessagesRequest request = parse_count_request(*body, service, *signer);
  const Generation& g = request.generation;
  const EncodedChat encoded = service.encode(g.messages, g.thinking, g.effort);
  OrderedJson out;
  out["input_tokens"] = count_tokens(encoded, g.images);
  reply->send(200, "application/json", json_text(out), messages_headers(request));
}

Route on_worker(Service& service, const Signer& signer, const char* path, Work work) {
  return {"POST", path, [&service, signer, work](HttpRequest request, std::shared_ptr<HttpReply> reply) {
            service.on_worker(std::move(request), std::move(reply), anthropic_error,
                              [&service, signer, work](const HttpRequest& http, const std::shared_ptr<HttpReply>& to) {
                                work(service, signer, http, to);
                              });
          }};
}

}  // namespace

std::vector<Route> anthropic_routes(Service& service) {
  const auto signer = std::make_shared<const ThinkingSigner>();
  return {on_worker(service, signer, "/v1/messages", messages),
          on_worker(service, signer, "/v1/messages/count_tokens", count)};
}

}  // namespace mdi
