// Listening sockets, TCP and Unix.
#pragma once

#include <cstdint>
#include <string>

namespace mdi {

struct Listener {
  int fd = -1;  // non-blocking; the holder closes it
  uint16_t port = 0;
  std::string address;    // "http://127.0.0.1:8000" or "unix:PATH"
  std::string unix_path;  // of the socket file; empty for TCP
  uint64_t unix_inode = 0;
};

// Whether the text is an address that open_listener takes, for an error before anything is opened. Throws mdi::Error.
void check_address(const std::string& host, const std::string& unix_path);

// Throws mdi::Error that names the address and what is wrong with it.
Listener open_listener(const std::string& host, uint16_t port, const std::string& unix_path);

// Closes, and removes the socket file where it is still the listener's own.
void close_listener(Listener& listener);

// "127.0.0.1:41234", "[::1]:41234" or "unix": the other side of a connection.
std::string peer_of(int fd);

}  // namespace mdi
