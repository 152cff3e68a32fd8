#include "server/openai/models.h"

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

}  // namespace

void list_models(Service& service, const HttpRequest& /*http*/, HttpReply& reply) {
  OrderedJson list;
  list["object"] = "list";
  list["data"] = OrderedJson::array({model_json(service)});
  send_json(reply, 200, list);
}

void get_model(Service& service, const HttpRequest& http, HttpReply& reply) {
  try {
    service.check_model(http.path.substr(std::string_view("/v1/models/").size()));
    send_json(reply, 200, model_json(service));
  } catch (const ApiError& error) {
    service.refuse(reply, error, openai_error);
  }
}

}  // namespace mdi
