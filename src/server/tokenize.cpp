#include "server/tokenize.h"

#include "server/openai/chat_request.h"
#include "server/openai/completion_request.h"
#include "server/openai/parts_json.h"
#include "server/service.h"
#include "server/wire.h"

namespace mdi {

void tokenize(Service& service, const HttpRequest& http, const std::shared_ptr<HttpReply>& reply) {
  const JsonTree json(parse_body(http.body));
  Fields body(*json, "");
  if (const auto model = body.string("model", 1024)) service.check_model(*model);
  const bool strings = body.boolean("return_token_strs").value_or(false);
  std::vector<int32_t> ids;
  if (json->contains("messages")) {
    Generation conversation;
    read_conversation(body, service, conversation);
    body.done();
    Request request;
    place_images(service.model().config(),
                 service.encode(conversation.messages, conversation.thinking, conversation.effort), conversation.images,
                 request);
    ids = std::move(request.prompt);
  } else {
    const bool add_special = body.boolean("add_special_tokens").value_or(true);
    const auto prompt = body.string("prompt", SIZE_MAX);
    if (!prompt) body.refuse("prompt", "a text (or messages)");
    body.done();
    ids = text_prompt(service, *prompt, add_special);
  }
  OrderedJson out;
  out["count"] = ids.size();
  out["max_model_len"] = service.engine().options().max_length;
  out["tokens"] = ids;
  if (strings) {
    out["token_strs"] = OrderedJson::array();
    for (const int32_t id : ids) out["token_strs"].push_back(token_text(service.tokenizer(), id));
  }
  send_json(*reply, 200, out);
}

void detokenize(Service& service, const HttpRequest& http, const std::shared_ptr<HttpReply>& reply) {
  const JsonTree json(parse_body(http.body));
  Fields body(*json, "");
  if (const auto model = body.string("model", 1024)) service.check_model(*model);
  const OrderedJson* tokens = body.find("tokens");
  if (tokens == nullptr) body.refuse("tokens", "a list of token ids");
  const std::vector<int32_t> ids = read_token_ids(service, *tokens, "tokens");
  body.done();
  OrderedJson out;
  out["prompt"] = service.tokenizer().decode(ids);
  send_json(*reply, 200, out);
}

}  // namespace mdi
