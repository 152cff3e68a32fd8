// What a request's head must be before anybody acts on it, beyond what the parser's library checks (RFC 9112, 3 to 7).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "http/server.h"

namespace mdi {

struct Refusal {
  int status = 0;
  std::string message;
};

struct RequestHead {
  HttpRequest request;  // without body
  bool http10 = false;
  bool keep_alive = true;
  bool chunked = false;
  bool expects_continue = false;
  uint64_t length = 0;  // of the body, where it is not chunked
};

// target: as sent, "/path?query" or "http://host/path". Sets path and query, or says why it is not one.
std::optional<Refusal> read_target(std::string_view target, HttpRequest& request);

// Reads framing, Host, Connection and Expect from head.request.headers, which are complete.
std::optional<Refusal> check_head(size_t max_headers, RequestHead& head);

}  // namespace mdi
