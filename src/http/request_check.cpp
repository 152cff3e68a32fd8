#include "http/request_check.h"

#include <algorithm>
#include <charconv>

namespace mdi {

namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool equal_nocase(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return lower(x) == lower(y); });
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char l = lower(c);
  return l >= 'a' && l <= 'f' ? l - 'a' + 10 : -1;
}

bool is_utf8(std::string_view s) {
  for (size_t i = 0; i < s.size();) {
    const auto c = static_cast<unsigned char>(s[i]);
    const size_t n = c < 0x80                ? 1
                     : c >= 0xc2 && c < 0xe0 ? 2
                     : c >= 0xe0 && c < 0xf0 ? 3
                     : c >= 0xf0 && c < 0xf5 ? 4
                                             : 0;
    if (n == 0 || i + n > s.size()) return false;
    for (size_t k = 1; k < n; ++k) {
      if ((static_cast<unsigned char>(s[i + k]) & 0xc0) != 0x80) return false;
    }
    const unsigned char second = n > 1 ? static_cast<unsigned char>(s[i + 1]) : 0;
    if ((c == 0xe0 && second < 0xa0) || (c == 0xed && second > 0x9f) || (c == 0xf0 && second < 0x90) ||
        (c == 0xf4 && second > 0x8f)) {
      return false;
    }
    i += n;
  }
  return true;
}

bool has_dot_segment(std::string_view path) {
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view segment = path.substr(at, end - at);
    if (segment == "." || segment == "..") return true;
    at = end + 1;
  }
  return false;
}

// Whether a comma-separated list has this member.
bool lists(std::string_view list, std::string_view member) {
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    std::string_view item = list.substr(at, end - at);
    while (!item.empty() && (item.front() == ' ' || item.front() == '\t')) item.remove_prefix(1);
    while (!item.empty() && (item.back() == ' ' || item.back() == '\t')) item.remove_suffix(1);
    if (equal_nocase(item, member)) return true;
    at = end + 1;
  }
  return false;
}

bool is_host(std::string_view host) {
  return !host.empty() && host.size() <= 255 && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') ||
           std::string_view("-._~%!$&'()*+,;=:[]").find(c) != std::string_view::npos;
  });
}

}  // namespace

std::optional<Refusal> read_target(std::string_view target, HttpRequest& request) {
  if (target == "*" && request.method == "OPTIONS") {
    request.path.assign(1, '*');
    return std::nullopt;
  }
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!equal_nocase(target.substr(0, scheme.size()), scheme)) continue;
    const size_t slash = target.find_first_of("/?", scheme.size());
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
    break;
  }
  if (target.empty() || target.front() != '/') return Refusal{400, "the request's target must begin with '/'"};
  const size_t question = target.find('?');
  if (question != std::string_view::npos) request.query = target.substr(question + 1);
  const std::string_view encoded = target.substr(0, question);
  for (const char c : target) {
    if (is_control(c) || c == ' ' || c == '#' || static_cast<unsigned char>(c) > 0x7e) {
      return Refusal{400, "the request's target has a character that must be percent-encoded"};
    }
  }
  std::string path;
  path.reserve(encoded.size());
  for (size_t i = 0; i < encoded.size(); ++i) {
    if (encoded[i] != '%') {
      path += encoded[i];
      continue;
    }
    const int high = i + 2 < encoded.size() ? hex_value(encoded[i + 1]) : -1;
    const int low = i + 2 < encoded.size() ? hex_value(encoded[i + 2]) : -1;
    if (high < 0 || low < 0) return Refusal{400, "the request's target has a '%' that two hex digits do not follow"};
    path += static_cast<char>(high * 16 + low);
    i += 2;
  }
  if (std::any_of(path.begin(), path.end(), is_control)) {
    return Refusal{400, "the request's path has a control character"};
  }
  if (!is_utf8(path)) return Refusal{400, "the request's path is not UTF-8"};
  if (has_dot_segment(path)) return Refusal{400, "the request's path has a '.' or '..' segment"};
  request.path = std::move(path);
  return std::nullopt;
}

std::optional<Refusal> check_head(size_t max_headers, RequestHead& head) {
  if (head.request.headers.size() > max_headers) {
    return Refusal{431, "at most " + std::to_string(max_headers) + " headers are taken"};
  }
  const std::string* length = nullptr;
  const std::string* coding = nullptr;
  const std::string* host = nullptr;
  bool says_close = false;
  for (const auto& [name, value] : head.request.headers) {
    if (name == "content-length") {
      if (length != nullptr) return Refusal{400, "two Content-Length headers"};
      length = &value;
    } else if (name == "transfer-encoding") {
      if (coding != nullptr) return Refusal{400, "two Transfer-Encoding headers"};
      coding = &value;
    } else if (name == "host") {
      if (host != nullptr) return Refusal{400, "two Host headers"};
      host = &value;
    } else if (name == "content-encoding") {
      if (!equal_nocase(value, "identity"))
        return Refusal{415, "a Content-Encoding is not read: send the body as it is"};
    } else if (name == "connection") {
      says_close = says_close || lists(value, "close");
    } else if (name == "expect") {
      if (!equal_nocase(value, "100-continue")) return Refusal{417, "the only expectation that is met is 100-continue"};
      head.expects_continue = !head.http10;
    }
  }
  head.keep_alive = !head.http10 && !says_close;
  if (host == nullptr && !head.http10) return Refusal{400, "no Host header"};
  if (host != nullptr && !is_host(*host)) return Refusal{400, "the Host header is not a host"};
  if (coding != nullptr) {
    if (length != nullptr) return Refusal{400, "a Content-Length beside a Transfer-Encoding"};
    if (head.http10) return Refusal{400, "a Transfer-Encoding in HTTP/1.0"};
    if (!equal_nocase(*coding, "chunked")) return Refusal{501, "the only Transfer-Encoding that is read is chunked"};
    head.chunked = true;
  }
  if (length != nullptr) {
    const char* end = length->data() + length->size();
    const auto read = std::from_chars(length->data(), end, head.length);
    if (read.ec != std::errc() || read.ptr != end || length->front() < '0' || length->front() > '9') {
      return Refusal{400, "the Content-Length is not a number of bytes"};
    }
  }
  if (head.request.method == "CONNECT") return Refusal{501, "CONNECT is not served"};
  return std::nullopt;
}

}  // namespace mdi
