// Who may ask: API keys, and what keeps a web page of somebody else's from asking through a browser. Everything here is
// decided when a request's headers are there, before its body is read and before routing.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/server.h"
#include "server/route.h"

namespace mdi {

// The keys that are accepted, as hashes under a key of this process.
class KeyRing {
 public:
  KeyRing();
  // One key: 8 to 512 visible ASCII characters. Throws mdi::Error(where, ...), which does not show the key.
  void add(std::string_view key, const std::string& where);

  bool empty() const { return hashes_.empty(); }
  size_t size() const { return hashes_.size(); }
  // Takes as long for a right key as for a wrong one, and does not tell which of several it was.
  bool accepts(std::string_view key) const { return !owner(key).empty(); }
  // What to call whoever has this key, in this process: one name a key, which does not show it. Empty: not accepted.
  std::string owner(std::string_view key) const;

 private:
  static constexpr size_t kBytes = 32;
  using Hash = std::array<unsigned char, kBytes>;
  Hash hash(std::string_view key) const;

  Hash secret_{};
  std::vector<Hash> hashes_;
};

// A key a line from `file` (may be empty: no file; blank lines and lines that begin with # are skipped), and those of
// `list` (may be null), separated by commas or spaces. Throws mdi::Error that names file and line; also for a file that
// has no key, so that a server that was meant to have keys never starts without.
KeyRing load_keys(const std::string& file, const char* list);

struct AdmitOptions {
  KeyRing keys;                              // empty: nobody is asked for one
  std::vector<std::string> allowed_origins;  // "https://chat.example", or "*"
  bool loopback = true;                      // the server listens on a loopback address
};

// Throws mdi::Error unless it is "*" or a scheme with a host ("https://chat.example:8443").
void check_origin(const std::string& origin);

// "Authorization: Bearer KEY", or "x-api-key: KEY"; empty where there is neither.
std::vector<std::string_view> presented_keys(const HttpRequest& head);

// HttpOptions::admit. Refuses in the shape of the API that the path belongs to:
//   401  without a right key, for every route that is not open (Route::open), and for paths that do not exist;
//   403  where there are no keys and the server is on loopback: a Host that is not this machine's (a name that was made
//        to point here); a browser's request from another origin that is not allowed and could change something.
// Answers preflight requests of allowed origins, but for origin_headers(). A request that a key lets in belongs to that
// key's owner (HttpRequest::client), whatever its other headers say. routes: null while there are none yet (only
// /health and /ready are open then).
std::function<std::optional<HttpAnswer>(HttpRequest& head)> make_admit(AdmitOptions options,
                                                                       std::function<const Router*()> routes);

// The headers that let a page of this origin read an answer, a refusal as any other; empty for others
// (HttpOptions::answer_headers).
Headers origin_headers(const HttpRequest& head, const std::vector<std::string>& allowed_origins);

}  // namespace mdi
