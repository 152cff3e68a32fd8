// OpenAI's endpoints, and those of this server that have no other home.
#pragma once

#include <vector>

#include "server/route.h"

namespace mdi {

// /v1/chat/completions, /v1/completions, /v1/models, /v1/models/{id}, /tokenize, /detokenize, /health, /ready,
// /openapi.json. The service outlives them.
std::vector<Route> openai_routes(Service& service);

}  // namespace mdi
