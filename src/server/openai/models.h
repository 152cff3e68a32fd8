// GET /v1/models and /v1/models/{id}: the one model of this server. With an anthropic-version header, as Anthropic's
// API has them.
#pragma once

#include "http/server.h"

namespace mdi {

class Service;

void list_models(Service& service, const HttpRequest& http, HttpReply& reply);
void get_model(Service& service, const HttpRequest& http, HttpReply& reply);

}  // namespace mdi
