// Small things that all endpoints write: identifiers, JSON text, events of a stream.
#pragma once

#include <string>
#include <string_view>

#include "http/server.h"
#include "text/ordered_json.h"

namespace mdi {

// prefix and 24 random letters and digits, such as "chatcmpl-...": nobody can guess another request's.
std::string random_id(std::string_view prefix);

// With its quotes. Line separators that are no line end to HTTP are escaped, because some clients split lines there.
void append_json_string(std::string_view text, std::string& out);
std::string json_string(std::string_view text);

// One line; what is not UTF-8 becomes U+FFFD.
std::string json_text(const OrderedJson& value);

// Seconds since 1970.
int64_t unix_time();

void send_json(HttpReply& reply, int status, const OrderedJson& value);

// Begins a stream of server-sent events.
void begin_events(HttpReply& reply);
// A comment, which readers of events pass over: proxies and clients see that the answer is still being made.
inline constexpr const char* kKeepAlive = ": keep-alive\n\n";

}  // namespace mdi
