// Errors as Anthropic's clients read them: {"type": "error", "error": {"type", "message"}, "request_id"}.
#pragma once

#include <string>

#include "server/api_error.h"

namespace mdi {

// An ErrorShape, with a request-id header. What is unavailable or full for everybody is 529 there.
HttpAnswer anthropic_error(const ApiError& error);

// The body alone: also the data of a stream's error event.
std::string anthropic_error_json(const ApiError& error, const std::string& request_id);

}  // namespace mdi
