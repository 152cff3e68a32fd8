// {"error": {"message", "type", "param", "code"}}
#pragma once

#include <string>

#include "server/api_error.h"

namespace mdi {

HttpAnswer openai_error(const ApiError& error);

// The object alone, as one line: for an event in the middle of a stream.
std::string openai_error_json(const ApiError& error);

}  // namespace mdi
