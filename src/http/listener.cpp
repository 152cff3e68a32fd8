#include "http/listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/error.h"

namespace mdi {

namespace {

constexpr int kBacklog = 1024;

std::string reason() { return std::generic_category().message(errno); }

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Address tcp_address(const std::string& host, uint16_t port) {
  Address a;
  const std::string numeric = host == "localhost" ? "127.0.0.1" : host;
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (inet_pton(AF_INET, numeric.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&a.storage, &v4, sizeof v4);
    a.size = sizeof v4;
  } else if (inet_pton(AF_INET6, numeric.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&a.storage, &v6, sizeof v6);
    a.size = sizeof v6;
  } else {
    throw Error(host, "expected a numeric address to listen on, such as 127.0.0.1, ::1 or 0.0.0.0");
  }
  return a;
}

Address unix_address(const std::string& path) {
  sockaddr_un un{};
  un.sun_family = AF_UNIX;
  if (path.size() >= sizeof un.sun_path) {
    throw Error("unix:" + path, "a socket file's path has at most " + std::to_string(sizeof un.sun_path - 1) +
                                    " bytes, this one has " + std::to_string(path.size()));
  }
  std::memcpy(un.sun_path, path.data(), path.size());
  Address a;
  std::memcpy(&a.storage, &un, sizeof un);
  a.size = sizeof un;
  return a;
}

std::string text_of(const sockaddr_storage& storage) {
  char host[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &v4.sin_addr, host, sizeof host);
    return std::string(host) + ":" + std::to_string(ntohs(v4.sin_port));
  }
  if (storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
    return std::string("[").append(host).append("]:").append(std::to_string(ntohs(v6.sin6_port)));
  }
  return "unix";
}

// A file that a server left behind goes; one that somebody listens on, or that is no socket, is an error.
void clear_stale(const std::string& path, Address& address) {
  struct stat st {};
  if (lstat(path.c_str(), &st) != 0) return;
  if (!S_ISSOCK(st.st_mode)) throw Error("unix:" + path, "exists and is not a socket");
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) throw Error("unix:" + path, "cannot open a socket: " + reason());
  const bool refused = connect(probe, address.get(), address.size) != 0 && errno == ECONNREFUSED;
  close(probe);
  if (!refused) throw Error("unix:" + path, "in use by another process");
  if (unlink(path.c_str()) != 0) throw Error("unix:" + path, "cannot replace the stale socket file: " + reason());
}

}  // namespace

void check_address(const std::string& host, const std::string& unix_path) {
  if (unix_path.empty()) {
    tcp_address(host, 0);
  } else {
    unix_address(unix_path);
  }
}

Listener open_listener(const std::string& host, uint16_t port, const std::string& unix_path) {
  const bool is_unix = !unix_path.empty();
  Address address = is_unix ? unix_address(unix_path) : tcp_address(host, port);
  const std::string where = is_unix ? "unix:" + unix_path : text_of(address.storage);
  if (is_unix) clear_stale(unix_path, address);
  Listener l;
  l.fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (l.fd < 0) throw Error(where, "cannot open a socket: " + reason());
  const auto fail = [&](const std::string& what) {
    const std::string why = errno == EADDRINUSE ? "in use by another process" : what + ": " + reason();
    close_listener(l);
    throw Error(where, why);
  };
  const int on = 1;
  if (!is_unix) setsockopt(l.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(l.fd, address.get(), address.size) != 0) fail("cannot listen");
  if (is_unix) {
    struct stat st {};
    // Nobody can connect before listen().
    if (chmod(unix_path.c_str(), 0600) != 0 || stat(unix_path.c_str(), &st) != 0) fail("cannot set the file's mode");
    l.unix_path = unix_path;
    l.unix_inode = st.st_ino;
  }
  if (listen(l.fd, kBacklog) != 0) fail("cannot listen");
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (!is_unix && getsockname(l.fd, reinterpret_cast<sockaddr*>(&bound), &size) == 0) {
    l.port = ntohs(bound.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(bound).sin_port
                                              : reinterpret_cast<sockaddr_in6&>(bound).sin6_port);
    l.address = "http://" + text_of(bound);
  } else {
    l.address = where;
  }
  return l;
}

void close_listener(Listener& listener) {
  if (listener.fd >= 0) close(listener.fd);
  listener.fd = -1;
  struct stat st {};
  if (!listener.unix_path.empty() && lstat(listener.unix_path.c_str(), &st) == 0 && st.st_ino == listener.unix_inode) {
    unlink(listener.unix_path.c_str());
  }
  listener.unix_path.clear();
}

std::string peer_of(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return "";
  return text_of(peer);
}

}  // namespace mdi
