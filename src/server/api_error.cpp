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

namespace {

// "/properties/a/anyOf/0" as ".properties.a.anyOf[0]".
std::string dotted(std::string_view pointer) {
  std::string path;
  while (!pointer.empty()) {
    pointer.remove_prefix(1);
    const std::string_view step = pointer.substr(0, pointer.find('/'));
    const bool index = !step.empty() && step.find_first_not_of("0123456789") == std::string_view::npos;
    path += index ? '[' : '.';
    path += step;
    if (index) path += ']';
    pointer.remove_prefix(step.size());
  }
  return path;
}

}  // namespace

std::string with_api_paths(std::string_view what, const SchemaPaths& paths) {
  const size_t end = std::min(what.find(": "), what.size());
  const std::string_view where = what.substr(0, end), why = what.substr(end);
  const size_t place = std::min(where.find('/'), where.size());
  const std::string_view whose = where.substr(0, place), pointer = where.substr(place);
  std::string path;
  if (whose == kOpenaiSchemas.format) {
    path = pointer.empty() ? paths.format : paths.schema;
  } else if (const size_t name = whose.find(" ("); whose.starts_with("tools[") && name != std::string_view::npos) {
    if (pointer.empty()) return std::string(what);
    path = whose.substr(0, name);
    path += '.';
    path += paths.parameters;
  } else {
    return std::string(what);
  }
  return path + dotted(pointer) + std::string(why);
}

ApiError invalid_request(const std::string& what) {
  const std::string message = with_api_paths(what, kOpenaiSchemas);
  const std::string_view where = std::string_view(message).substr(0, message.find(": "));
  if (message != what) return {ApiErrorKind::kInvalid, message, std::string(where), "invalid_value"};
  const auto end = std::find_if_not(where.begin(), where.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '[' || c == ']';
  });
  const std::string path(where.begin(), end);
  const std::string_view rest = where.substr(path.size());
  // Behind the path of a tool may stand its name.
  const bool member = !path.empty() && path != "request" && path != "body" && (rest.empty() || rest.starts_with(" ("));
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
