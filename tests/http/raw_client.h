// A client of bytes: sends what it is told and shows what comes, so that tests can be as wrong as they like.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace mdi {

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer = 0, const char* from = nullptr) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (from != nullptr) {
      sockaddr_in own{};
      own.sin_family = AF_INET;
      inet_pton(AF_INET, from, &own.sin_addr);
      bind(fd_, reinterpret_cast<sockaddr*>(&own), sizeof own);
    }
    if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(port);
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0;
  }
  explicit RawClient(const std::string& path) {
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un a{};
    a.sun_family = AF_UNIX;
    std::strncpy(a.sun_path, path.c_str(), sizeof a.sun_path - 1);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0;
  }
  ~RawClient() { hang_up(); }
  RawClient(RawClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_), seen_(std::move(other.seen_)) {}
  RawClient& operator=(RawClient&&) = delete;

  bool connected() const { return connected_; }
  bool send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      text.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  void half_close() { shutdown(fd_, SHUT_WR); }
  void hang_up() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // The connection ends with a reset.
  void reset() {
    const linger at_once{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    hang_up();
  }

  // What has come until `text` is in it, the connection ends, or the time is over; what follows stays for the next
  // call.
  std::string until(std::string_view text, double seconds = 5) {
    const auto end = deadline(seconds);
    for (;;) {
      const size_t at = seen_.find(text);
      if (at != std::string::npos) return cut(at + text.size());
      if (!more(end)) return cut(seen_.size());
    }
  }
  // All until the connection ends or the time is over.
  std::string rest(double seconds = 5) {
    const auto end = deadline(seconds);
    while (more(end)) {
    }
    return cut(seen_.size());
  }
  // One answer with a content-length: head and body.
  std::string answer(double seconds = 5) {
    std::string head = until("\r\n\r\n", seconds);
    const size_t at = head.find("content-length: ");
    if (at == std::string::npos) return head;
    const size_t length = std::stoul(head.substr(at + 16));
    const auto end = deadline(seconds);
    while (seen_.size() < length && more(end)) {
    }
    return head + cut(length);
  }
  bool ended() const { return ended_; }
  // Whether the other side ends within this time.
  bool ends(double seconds = 5) {
    rest(seconds);
    return ended_;
  }

 private:
  static std::chrono::steady_clock::time_point deadline(double seconds) {
    return std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  }
  std::string cut(size_t size) {
    size = std::min(size, seen_.size());
    std::string out = seen_.substr(0, size);
    seen_.erase(0, size);
    return out;
  }
  bool more(std::chrono::steady_clock::time_point end) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (ended_ || left.count() <= 0) return false;
    pollfd p{fd_, POLLIN, 0};
    if (poll(&p, 1, static_cast<int>(left.count())) <= 0) return false;
    char buffer[16384];
    const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
    if (n <= 0) {
      ended_ = true;
      return false;
    }
    seen_.append(buffer, static_cast<size_t>(n));
    return true;
  }

  int fd_ = -1;
  bool connected_ = false, ended_ = false;
  std::string seen_;
};

// Waits until it holds; false when it does not within the time.
template <class Condition>
bool becomes_true(Condition condition, double seconds = 5) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace mdi
