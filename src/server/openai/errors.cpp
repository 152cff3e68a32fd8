#include "server/openai/errors.h"

#include "text/ordered_json.h"

namespace mdi {

namespace {

const char* type_of(ApiErrorKind kind) {
  switch (kind) {
    case ApiErrorKind::kInvalid:
    case ApiErrorKind::kNotFound:
    case ApiErrorKind::kMethod:
    case ApiErrorKind::kTooLarge:
      return "invalid_request_error";
    case ApiErrorKind::kAuthentication:
      return "authentication_error";
    case ApiErrorKind::kBusy:
      return "rate_limit_error";
    case ApiErrorKind::kInternal:
    case ApiErrorKind::kNotImplemented:
      return "server_error";
    case ApiErrorKind::kUnavailable:
      return "service_unavailable_error";
    case ApiErrorKind::kTimeout:
      return "timeout_error";
  }
  return "server_error";
}

OrderedJson text_or_null(const std::string& text) { return text.empty() ? OrderedJson() : OrderedJson(text); }

}  // namespace

std::string openai_error_json(const ApiError& error) {
  OrderedJson out;
  out["error"]["message"] = error.what();
  out["error"]["type"] = type_of(error.kind());
  out["error"]["param"] = text_or_null(error.param());
  out["error"]["code"] = text_or_null(error.code());
  return out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

HttpAnswer openai_error(const ApiError& error) {
  return {.status = error.status(),
          .content_type = "application/json",
          .body = openai_error_json(error),
          .headers = error.headers()};
}

}  // namespace mdi
