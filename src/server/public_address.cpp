#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "server/fetch.h"

namespace mdi {

namespace {

struct Range4 {
  uint32_t base;
  int bits;
};

constexpr uint32_t ip(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return a << 24 | b << 16 | c << 8 | d; }

// IANA's registry of special-purpose IPv4 addresses.
constexpr std::array<Range4, 16> kSpecial = {{{ip(0, 0, 0, 0), 8},
                                              {ip(10, 0, 0, 0), 8},
                                              {ip(100, 64, 0, 0), 10},
                                              {ip(127, 0, 0, 0), 8},
                                              {ip(169, 254, 0, 0), 16},
                                              {ip(172, 16, 0, 0), 12},
                                              {ip(192, 0, 0, 0), 24},
                                              {ip(192, 0, 2, 0), 24},
                                              {ip(192, 31, 196, 0), 24},
                                              {ip(192, 88, 99, 0), 24},
                                              {ip(192, 168, 0, 0), 16},
                                              {ip(198, 18, 0, 0), 15},
                                              {ip(198, 51, 100, 0), 24},
                                              {ip(203, 0, 113, 0), 24},
                                              {ip(224, 0, 0, 0), 4},
                                              {ip(240, 0, 0, 0), 4}}};

bool is_public4(uint32_t address) {
  for (const Range4& range : kSpecial) {
    const uint32_t mask = ~uint32_t{0} << (32 - range.bits);
    if ((address & mask) == range.base) return false;
  }
  return true;
}

// Global unicast is 2000::/3; in it, what stands for an IPv4 address or for nothing real is not public.
bool is_public6(const std::array<uint8_t, 16>& a) {
  if ((a[0] & 0xE0) != 0x20) return false;
  const auto begins = [&](std::initializer_list<uint8_t> prefix) {
    return std::memcmp(a.data(), prefix.begin(), prefix.size()) == 0;
  };
  if (begins({0x20, 0x02})) return false;                 // 6to4
  if (begins({0x20, 0x01}) && a[2] < 0x02) return false;  // 2001::/23: Teredo, benchmarking, ORCHID
  if (begins({0x20, 0x01, 0x0d, 0xb8})) return false;     // documentation
  return !(begins({0x3f, 0xff}) && a[2] < 0x10);          // documentation, 3fff::/20
}

}  // namespace

bool is_public_address(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof(v4));
    return is_public4(ntohl(v4.sin_addr.s_addr));
  }
  if (address.sa_family != AF_INET6) return false;
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address, sizeof(v6));
  std::array<uint8_t, 16> bytes{};
  std::memcpy(bytes.data(), &v6.sin6_addr, bytes.size());
  return is_public6(bytes);
}

}  // namespace mdi
