#include "server/wire.h"

#include <sodium.h>

#include <array>
#include <chrono>

namespace mdi {

std::string random_id(std::string_view prefix) {
  static constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string id(prefix);
  for (int i = 0; i < 24; ++i) id += kLetters[randombytes_uniform(static_cast<uint32_t>(kLetters.size()))];
  return id;
}

void append_json_string(std::string_view text, std::string& out) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kSeparators = {
      {{"\u0085", "\\u0085"}, {"\u2028", "\\u2028"}, {"\u2029", "\\u2029"}}};
  const size_t begin = out.size();
  append_python_json_string(text, out);
  for (const auto& [separator, escape] : kSeparators) {
    for (size_t at = out.find(separator, begin); at != std::string::npos; at = out.find(separator, at)) {
      out.replace(at, separator.size(), escape);
    }
  }
}

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(text, out);
  return out;
}

std::string json_text(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void send_json(HttpReply& reply, int status, const OrderedJson& value) {
  reply.send(status, "application/json", json_text(value));
}

void begin_events(HttpReply& reply) {
  reply.begin(200, "text/event-stream; charset=utf-8", {{"cache-control", "no-cache"}, {"x-accel-buffering", "no"}});
}

}  // namespace mdi
