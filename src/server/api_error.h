// What a client is told when its request is refused or fails. Both APIs put it into their own shape
// (openai/errors.h, anthropic/errors.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "http/server.h"

namespace mdi {

enum class ApiErrorKind : uint8_t {
  kInvalid,         // 400: the request says something that cannot be done
  kAuthentication,  // 401
  kNotFound,        // 404: no such model or path
  kMethod,          // 405
  kTooLarge,        // 413
  kBusy,            // 429, with Retry-After: the queue is full, or the client has its share of it
  kInternal,        // 500
  kNotImplemented,  // 501
  kUnavailable,     // 503, with Retry-After: ending, or the engine has failed
  kTimeout,         // 504: the server's own limit for a request
};

class ApiError : public std::runtime_error {
 public:
  // message: a whole sentence for a person. param: the path of the member at fault, such as
  // "messages[2].content[0].type"; empty where there is none. code: a word for a program, such as
  // "context_length_exceeded"; may be empty.
  ApiError(ApiErrorKind kind, const std::string& message, std::string param = {}, std::string code = {})
      : std::runtime_error(message), kind_(kind), param_(std::move(param)), code_(std::move(code)) {}

  ApiErrorKind kind() const { return kind_; }
  int status() const;
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }
  // Retry-After, where it is of use to try again.
  Headers headers() const;

 private:
  ApiErrorKind kind_;
  std::string param_, code_;
};

// A member that is not what it should be: "PARAM: expected EXPECTED, found FOUND".
ApiError invalid_param(const std::string& param, std::string_view expected, std::string_view found);

// Where an API has its schemas.
struct SchemaPaths {
  std::string_view format, schema;  // of the answer: what asks for one, and the schema itself
  std::string_view parameters;      // of a tool: the schema of its arguments, in tools[i]
};
inline constexpr SchemaPaths kOpenaiSchemas{"response_format", "response_format.json_schema.schema",
                                            "function.parameters"};

// An mdi::Error's text with the paths of this API: of "response_format/properties/a: ..." and "tools[0] (f)/items:
// ...", as grammars name a place in a schema, are made "response_format.json_schema.schema.properties.a: ..." and
// "tools[0].function.parameters.items: ...". Other texts stay.
std::string with_api_paths(std::string_view what, const SchemaPaths& paths);

// An mdi::Error about the request (its `where` is the path of a member, as parse_messages' is, or a grammar's) as a
// 400.
ApiError invalid_request(const Error& error);
ApiError invalid_request(const std::string& what);  // Error::what()

// What an answer's status counts as.
ApiErrorKind kind_of_status(int status);

// How many errors were answered before an endpoint had the request, by ApiErrorKind.
struct EarlyErrors {
  std::atomic<int64_t> of[10] = {};
  void count(int status) { ++of[static_cast<size_t>(kind_of_status(status))]; }
};

// The one that `status` stands for: for what the transport refuses by itself.
ApiError api_error_of_status(int status, const std::string& message);

// An error in the shape of one API.
using ErrorShape = HttpAnswer (*)(const ApiError& error);

}  // namespace mdi
