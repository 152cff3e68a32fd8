#include "server/openai/models.h"

#include <array>
#include <ctime>

#include "server/anthropic/errors.h"
#include "server/openai/errors.h"
#include "server/service.h"
#include "server/wire.h"

namespace mdi {

namespace {

OrderedJson model_json(const Service& service) {
  OrderedJson model;
  model["id"] = service.options().model_name;
  model["object"] = "model";
  model["created"] = service.options().created;
  model["owned_by"] = "mdi";
  // What a client that fills the context, or offers images, wants to know.
  model["max_model_len"] = service.engine().options().max_length;
  model["input_modalities"] = {"text"};
  if (service.model().config().has_vision) model["input_modalities"].push_back("image");
  return model;
}

// Anthropic's clients ask at the same paths, and say who they are.
bool is_anthropic(const HttpRequest& http) { return !http.header("anthropic-version").empty(); }

OrderedJson anthropic_model_json(const Service& service) {
  OrderedJson model;
  model["type"] = "model";
  model["id"] = service.options().model_name;
  model["display_name"] = service.options().model_name;
  const std::time_t created = service.options().created;
  std::tm utc{};
  gmtime_r(&created, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  model["created_at"] = text.data();
  return model;
}

}  // namespace

void list_models(Service& service, const HttpRequest& http, HttpReply& reply) {
  OrderedJson list;
  if (is_anthropic(http)) {
    list["data"] = OrderedJson::array({anthropic_model_json(service)});
    list["has_more"] = false;
    list["first_id"] = service.options().model_name;
    list["last_id"] = service.options().model_name;
    return send_json(reply, 200, list);
  }
  list["object"] = "list";
  list["data"] = OrderedJson::array({model_json(service)});
  send_json(reply, 200, list);
}

void get_model(Service& service, const HttpRequest& http, HttpReply& reply) {
  try {
    service.check_model(http.path.substr(std::string_view("/v1/models/").size()));
    send_json(reply, 200, is_anthropic(http) ? anthropic_model_json(service) : model_json(service));
  } catch (const ApiError& error) {
    service.refuse(reply, error, is_anthropic(http) ? anthropic_error : openai_error);
  }
}

}  // namespace mdi
