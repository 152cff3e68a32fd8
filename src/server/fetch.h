// Fetching what a URL names, without being led to where clients must not reach: only http and https, only public
// addresses (checked on the address that is connected to, for each connection and each redirect, so that a name that
// resolves to something else the second time gains nothing), no proxies, no credentials, bounded size and time.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace mdi {

struct FetchRules {
  size_t max_bytes = size_t{32} << 20;
  double connect_seconds = 3;
  double seconds = 10;  // in all
  int max_redirects = 3;
  std::function<bool()> stopped = {};                     // asked ten times a second; true ends the fetch
  std::function<bool(const sockaddr&)> may_connect = {};  // empty: is_public_address; for tests
};

// Loopback, private, link-local, shared, documentation, benchmarking, multicast and reserved addresses are not public,
// nor are IPv6 forms of them (mapped, 6to4, NAT64, Teredo); anything but IPv4 and IPv6 is not.
bool is_public_address(const sockaddr& address);

// Whether this build can fetch: a portable one cannot.
bool can_fetch();

// Blocks. Throws mdi::Error(where, ...) that says which rule was broken or what failed, never what the other side said.
std::vector<std::byte> fetch(const std::string& url, const std::string& where, const FetchRules& rules);

}  // namespace mdi
