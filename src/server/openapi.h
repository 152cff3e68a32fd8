// GET /openapi.json: docs/openapi.json as it was when this program was built.
#pragma once

#include <string_view>

#include "http/server.h"

namespace mdi {

class Service;

std::string_view openapi_text();

void openapi_document(Service& service, const HttpRequest& http, HttpReply& reply);

}  // namespace mdi
