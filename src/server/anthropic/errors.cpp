#include "server/anthropic/errors.h"

#include "server/wire.h"

namespace mdi {

namespace {

const char* type_of(ApiErrorKind kind) {
  switch (kind) {
    case ApiErrorKind::kInvalid:
    case ApiErrorKind::kMethod:
      return "invalid_request_error";
    case ApiErrorKind::kAuthentication:
      return "authentication_error";
    case ApiErrorKind::kNotFound:
      return "not_found_error";
    case ApiErrorKind::kTooLarge:
      return "request_too_large";
    case ApiErrorKind::kBusy:
      return "rate_limit_error";
    case ApiErrorKind::kUnavailable:
      return "overloaded_error";
    case ApiErrorKind::kTimeout:
      return "timeout_error";
    case ApiErrorKind::kInternal:
    case ApiErrorKind::kNotImplemented:
      return "api_error";
  }
  return "api_error";
}

}  // namespace

std::string anthropic_error_json(const ApiError& error, const std::string& request_id) {
  OrderedJson out;
  out["type"] = "error";
  out["error"]["type"] = type_of(error.kind());
  out["error"]["message"] = error.what();
  out["request_id"] = request_id;
  return json_text(out);
}

HttpAnswer anthropic_error(const ApiError& error) {
  const std::string id = random_id("req_");
  HttpAnswer answer{.status = error.kind() == ApiErrorKind::kUnavailable ? 529 : error.status(),
                    .content_type = "application/json",
                    .body = anthropic_error_json(error, id),
                    .headers = error.headers()};
  answer.headers.emplace_back("request-id", id);
  return answer;
}

}  // namespace mdi
