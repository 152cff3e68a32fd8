// Anthropic's endpoints.
#pragma once

#include <vector>

#include "server/route.h"

namespace mdi {

// POST /v1/messages and /v1/messages/count_tokens. The service outlives them.
std::vector<Route> anthropic_routes(Service& service);

}  // namespace mdi
