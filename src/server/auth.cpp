#include "server/auth.h"

#include <sodium.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "core/printable.h"
#include "server/anthropic/errors.h"
#include "server/api_error.h"

namespace mdi {

namespace {

constexpr size_t kMinKey = 8, kMaxKey = 512;
constexpr size_t kMaxKeyFile = 1 << 20;  // bytes

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

// Whether a Host header names this machine itself: an address that a DNS name cannot be made to look like.
bool is_loopback_host(std::string_view host) {
  std::string name = lower(host);
  if (!name.empty() && name.front() == '[') return name.rfind("[::1]", 0) == 0;
  name = name.substr(0, name.find(':'));
  const bool numeric = !name.empty() && name.find_first_not_of("0123456789.") == std::string::npos;
  return name == "localhost" || (numeric && name.rfind("127.", 0) == 0);
}

bool is_allowed_origin(std::string_view origin, const std::vector<std::string>& allowed) {
  const std::string wanted = lower(origin);
  return std::any_of(allowed.begin(), allowed.end(),
                     [&](const std::string& a) { return a == "*" || lower(a) == wanted; });
}

bool is_own_origin(const HttpRequest& head) {
  const std::string origin = lower(head.header("origin"));
  const std::string host = lower(head.header("host"));
  // TLS is spoken by whoever stands before a socket file; a TCP port speaks HTTP alone.
  return origin == "http://" + host || (head.peer == "unix" && origin == "https://" + host);
}

HttpAnswer refuse(const HttpRequest& head, const ApiError& error) {
  // The models of both APIs are at the same paths (openai/models.h).
  const bool models = head.path == "/v1/models" || head.path.starts_with("/v1/models/");
  if (models && !head.header("anthropic-version").empty()) return anthropic_error(error);
  return error_shape_of(head.path)(error);
}

HttpAnswer forbidden(const HttpRequest& head, const std::string& message) {
  HttpAnswer answer = refuse(head, ApiError(ApiErrorKind::kAuthentication, message, {}, "forbidden"));
  answer.status = 403;
  answer.headers.clear();  // a key would not help
  return answer;
}

HttpAnswer preflight(const HttpRequest& head) {
  HttpAnswer answer;
  answer.status = 204;
  answer.headers.emplace_back("access-control-allow-methods", "GET, POST, OPTIONS");
  // '*' does not stand for Authorization (Fetch, 3.3.3), so what is asked for is named.
  const std::string_view wanted = head.header("access-control-request-headers");
  answer.headers.emplace_back("access-control-allow-headers",
                              wanted.empty() ? "authorization, content-type, x-api-key" : std::string(wanted));
  answer.headers.emplace_back("access-control-max-age", "600");
  return answer;
}

}  // namespace

KeyRing::KeyRing() {
  if (sodium_init() < 0) throw Error("libsodium", "cannot be initialised");
  randombytes_buf(secret_.data(), secret_.size());
}

KeyRing::Hash KeyRing::hash(std::string_view key) const {
  Hash out{};
  crypto_generichash(out.data(), out.size(), reinterpret_cast<const unsigned char*>(key.data()), key.size(),
                     secret_.data(), secret_.size());
  return out;
}

void KeyRing::add(std::string_view key, const std::string& where) {
  if (key.size() < kMinKey || key.size() > kMaxKey) {
    throw Error(where, "expected a key of " + std::to_string(kMinKey) + " to " + std::to_string(kMaxKey) +
                           " characters, found " + std::to_string(key.size()));
  }
  if (!std::all_of(key.begin(), key.end(), [](char c) { return c > 0x20 && c < 0x7f; })) {
    throw Error(where, "expected a key of visible ASCII characters without spaces");
  }
  hashes_.push_back(hash(key));
}

std::string KeyRing::owner(std::string_view key) const {
  const Hash candidate = hash(key.substr(0, kMaxKey + 1));
  int found = 0;
  for (const Hash& h : hashes_) found |= sodium_memcmp(h.data(), candidate.data(), kBytes) == 0 ? 1 : 0;
  if (found == 0) return {};
  constexpr size_t kShown = 16;  // bytes
  std::array<char, 2 * kShown + 1> digits{};
  return std::string("key ") + sodium_bin2hex(digits.data(), digits.size(), candidate.data(), kShown);
}

KeyRing load_keys(const std::string& file, const char* list) {
  KeyRing keys;
  if (!file.empty()) {
    std::ifstream in(file);
    if (!in) throw Error(file, "cannot read the file of API keys");
    std::string text(kMaxKeyFile + 1, '\0');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (in.bad()) throw Error(file, "cannot read the file of API keys");
    text.resize(static_cast<size_t>(in.gcount()));
    if (text.size() > kMaxKeyFile) throw Error(file, "expected API keys of 1 MiB at most, found more");
    std::istringstream lines(text);
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
      const std::string_view key = trim(line);
      if (key.empty() || key.front() == '#') continue;
      keys.add(key, file + ", line " + std::to_string(number));
    }
    if (keys.empty()) throw Error(file, "expected an API key a line, found none");
  }
  if (list != nullptr) {
    const std::string_view all(list);
    const size_t before = keys.size();
    for (size_t at = 0; at < all.size();) {
      const size_t end = std::min(all.find_first_of(", \t\n", at), all.size());
      if (end > at) keys.add(all.substr(at, end - at), "MDI_API_KEYS");
      at = end + 1;
    }
    if (keys.size() == before) throw Error("MDI_API_KEYS", "expected API keys, found none");
  }
  return keys;
}

void check_origin(const std::string& origin) {
  if (origin == "*") return;
  const size_t scheme = origin.find("://");
  const std::string name = scheme == std::string::npos ? "" : lower(origin.substr(0, scheme));
  const std::string host = scheme == std::string::npos ? "" : origin.substr(scheme + 3);
  if ((name != "http" && name != "https") || host.empty() || host.find_first_of("/?#@ *") != std::string::npos) {
    throw Error("--allow-origin",
                "expected * or an origin such as https://chat.example:8443, found " + printable(origin));
  }
}

std::vector<std::string_view> presented_keys(const HttpRequest& head) {
  std::vector<std::string_view> keys;
  const std::string_view authorization = head.header("authorization");
  constexpr std::string_view kScheme = "bearer ";
  if (lower(authorization.substr(0, kScheme.size())) == kScheme)
    keys.push_back(trim(authorization.substr(kScheme.size())));
  if (const std::string_view key = head.header("x-api-key"); !key.empty()) keys.push_back(key);
  return keys;
}

Headers origin_headers(const HttpRequest& head, const std::vector<std::string>& allowed_origins) {
  const std::string_view origin = head.header("origin");
  if (origin.empty() || !is_allowed_origin(origin, allowed_origins)) return {};
  return {{"access-control-allow-origin", std::string(origin)},
          {"access-control-expose-headers", "x-request-id, request-id, retry-after"},
          {"vary", "origin"}};
}

std::function<std::optional<HttpAnswer>(HttpRequest& head)> make_admit(AdmitOptions options,
                                                                       std::function<const Router*()> routes) {
  return [o = std::make_shared<const AdmitOptions>(std::move(options)),
          routes = std::move(routes)](HttpRequest& head) -> std::optional<HttpAnswer> {
    const std::string_view host = head.header("host");
    if (o->keys.empty() && o->loopback && head.peer != "unix" && !host.empty() && !is_loopback_host(host)) {
      return forbidden(head, "The Host '" + printable(host, 80) +
                                 "' is not this machine: without API keys this server answers to localhost only.");
    }
    const std::string_view origin = head.header("origin");
    const bool allowed = origin.empty() || is_own_origin(head) || is_allowed_origin(origin, o->allowed_origins);
    const bool reads = head.method == "GET" || head.method == "HEAD";
    if (head.method == "OPTIONS" && !head.header("access-control-request-method").empty() && allowed) {
      return preflight(head);
    }
    if (!allowed && !reads) {
      return forbidden(head, "Requests from pages of " + printable(origin, 80) + " are not allowed here.");
    }
    if (o->keys.empty()) return std::nullopt;
    const Router* router = routes();
    const Route* route = router == nullptr ? nullptr : router->find(head.method, head.path);
    const bool open = route != nullptr    ? route->open
                      : router == nullptr ? head.path == "/health" || head.path == "/ready"
                                          : false;
    if (open) return std::nullopt;
    const std::vector<std::string_view> keys = presented_keys(head);
    for (const std::string_view key : keys) {
      std::string owner = o->keys.owner(key);
      if (head.client.empty()) head.client = std::move(owner);
    }
    if (!head.client.empty()) return std::nullopt;
    return refuse(head, ApiError(ApiErrorKind::kAuthentication,
                                 keys.empty() ? "An API key is needed: 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
                                              : "The API key is not one of this server's.",
                                 {}, "invalid_api_key"));
  };
}

}  // namespace mdi
