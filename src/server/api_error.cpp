#include "server/api_error.h"

#include <algorithm>
#include <cctype>

#include "core/printable.h"

namespace mdi {

int ApiError::status() const {
  switch (kind_) {
    case ApiErrorKind::kInvalid:
      return 400;
    case ApiErrorKind::kAuthentication:
      return 401;
    case ApiErrorKind::kNotFound:
      return 404;
    case ApiErrorKind::kMethod:
      return 405;
    case ApiErrorKind::kTooLarge:
      return 413;
    case ApiErrorKind::kBusy:
      return 429;
    case ApiErrorKind::kInternal:
      return 500;
    case ApiErrorKind::kNotImplemented:
      return 501;
    case ApiErrorKind::kUnavailable:
      return 503;
    case ApiErrorKind::kTimeout:
      return 504;
  }
  return 500;
}

Headers ApiError::headers() const {
  if (kind_ == ApiErrorKind::kBusy) return {{"retry-after", "1"}};
  if (kind_ == ApiErrorKind::kUnavailable) return {{"retry-after", "5"}};
  if (kind_ == ApiErrorKind::kAuthentication) return {{"www-authenticate", "Bearer"}};
  return {};
}

ApiError invalid_param(const std::string& param, std::string_view expected, std::string_view found) {
  return {ApiErrorKind::kInvalid, param + ": expected " + std::string(expected) + ", found " + printable(found, 120),
          param, "invalid_value"};
}

ApiError invalid_request(const Error& error) { return invalid_request(std::string(error.what())); }

ApiError invalid_request(const std::string& message) {
  const std::string_view where = std::string_view(message).substr(0, message.find(": "));
  const auto end = std::find_if_not(where.begin(), where.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '[' || c == ']';
  });
  const std::string path(where.begin(), end);
  // Behind the path of a grammar's source comes a place in its schema ("/properties/a"), or a name (" (add)").
  const std::string_view rest = where.substr(path.size());
  const bool member = !path.empty() && path != "request" && path != "body" &&
                      (rest.empty() || rest.front() == '/' || rest.starts_with(" ("));
  return {ApiErrorKind::kInvalid, message, member ? path : std::string(), "invalid_value"};
}

ApiErrorKind kind_of_status(int status) {
  for (const ApiErrorKind kind : {ApiErrorKind::kAuthentication, ApiErrorKind::kNotFound, ApiErrorKind::kMethod,
                                  ApiErrorKind::kTooLarge, ApiErrorKind::kBusy, ApiErrorKind::kInternal,
                                  ApiErrorKind::kNotImplemented, ApiErrorKind::kUnavailable, ApiErrorKind::kTimeout}) {
    if (ApiError(kind, "").status() == status) return kind;
  }
  if (status == 403) return ApiErrorKind::kAuthentication;
  if (status == 529) return ApiErrorKind::kUnavailable;  // Anthropic's
  return status < 500 ? ApiErrorKind::kInvalid : ApiErrorKind::kInternal;
}

ApiError api_error_of_status(int status, const std::string& message) { return {kind_of_status(status), message}; }

}  // namespace mdi
