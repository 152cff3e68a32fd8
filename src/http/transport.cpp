#include "http/transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "core/error.h"
#include "http/connection.h"

namespace mdi {

namespace {

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr int kAcceptsAtOnce = 64;
constexpr size_t kRefusedAtOnce = 128;  // connections over the limit that are told so; further ones are closed
constexpr double kEvictable = 1;        // seconds that a connection must have been idle to make room for another
constexpr size_t kScratch = 64 << 10;
constexpr int kSendBuffer = 128 << 10;  // bounds what the system keeps for a client that does not read

void set_option(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); }

}  // namespace

double http_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Transport::Transport(HttpOptions o, HttpHandler h) : options(std::move(o)), handler(std::move(h)), scratch(kScratch) {
  check_address(options.host, options.unix_path);
}

void Transport::listen() {
  if (listener_.fd >= 0) return;
  listener_ = open_listener(options.host, options.port, options.unix_path);
  port_ = listener_.port;
  address_ = listener_.address;
}

void Transport::start() {
  const std::lock_guard lock(life_mutex_);
  if (thread_.joinable() || stopped_) return;
  listen();
  acceptor_.emplace(context, dup(listener_.fd));
  work_.emplace(context.get_executor());
  boost::asio::post(context, [self = shared_from_this()] {
    self->wait_accept();
    self->wait_tick();
  });
  thread_ = std::thread([this] { run(); });
}

void Transport::run() {
  for (;;) {
    try {
      context.run();
      return;
    } catch (
        const std::exception&) {  // a connection catches its own; what is left (out of memory) must not end the server
    }
  }
}

ExchangeContext Transport::exchange_context() {
  ExchangeContext c;
  c.max_backlog = options.max_backlog_bytes;
  const std::shared_ptr<Transport> self = shared_from_this();
  c.wake = [self](std::shared_ptr<Exchange> exchange) { self->wake(std::move(exchange)); };
  c.count_backlog = [self](int64_t change) { self->counters.backlog_bytes += change; };
  c.refusal = [self](int status, std::string_view message, const HttpRequest& head) {
    return self->refusal(status, message, head);
  };
  return c;
}

HttpAnswer Transport::refusal(int status, std::string_view message, const HttpRequest& head) const {
  if (options.refusal) return options.refusal(status, message, head);
  HttpAnswer plain;
  plain.status = status;
  plain.body = std::string(message) + "\n";
  return plain;
}

void Transport::wake(std::shared_ptr<Exchange> exchange) {
  bool first = false;
  {
    const std::lock_guard lock(woken_mutex_);
    first = woken_.empty();
    woken_.push_back(std::move(exchange));
  }
  if (first) boost::asio::post(context, [self = shared_from_this()] { self->flush_woken(); });
}

void Transport::flush_woken() {
  std::vector<std::shared_ptr<Exchange>> woken;
  {
    const std::lock_guard lock(woken_mutex_);
    woken.swap(woken_);
  }
  for (const auto& exchange : woken) {
    if (const auto connection = exchange->connection.lock()) connection->flush();
  }
}

void Transport::wait_accept() {
  if (accepting_ || !acceptor_ || stopped_) return;
  accepting_ = true;
  acceptor_->async_wait(boost::asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](const auto& ec) {
    self->accepting_ = false;
    if (!ec) self->accept_some();
  });
}

void Transport::accept_some() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    const int fd = accept4(acceptor_->native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      admit_connection(fd);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return;  // the next tick tries again
    }
  }
  wait_accept();
}

void Transport::admit_connection(int fd) {
  ++counters.accepted;
  if (options.unix_path.empty()) {
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    // A machine that has vanished says nothing: ask it now and then.
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(options.write_seconds * 1000));
  }
  set_option(fd, SOL_SOCKET, SO_SNDBUF, kSendBuffer);
  const std::string peer = peer_of(fd);
  const bool full = connections_.size() - refused_open_ >= options.max_connections && !evict_idle() &&
                    !evict_for(std::string(peer_host(peer)));
  if (full && refused_open_ >= kRefusedAtOnce) {
    ++counters.refused_full;
    close(fd);
    return;
  }
  std::shared_ptr<Connection> connection;
  try {
    connection = std::make_shared<Connection>(shared_from_this(), fd, peer);
  } catch (const std::exception&) {  // the system has no more room for it
    close(fd);
    return;
  }
  connections_.insert(connection);
  counters.connections = static_cast<int64_t>(connections_.size());
  if (full) {
    ++refused_open_;
    connection->start_full();
  } else {
    ++hosts_[std::string(peer_host(peer))];
    connection->start();
  }
}

// The connection that has been idle for longest makes room; false: none has been for long enough.
bool Transport::evict_idle() {
  const double now = http_clock();
  std::shared_ptr<Connection> longest;
  double seconds = kEvictable;
  for (const auto& connection : connections_) {
    const double idle = connection->idle_seconds(now);
    if (idle < seconds) continue;
    seconds = idle;
    longest = connection;
  }
  if (!longest) return false;
  ++counters.timeouts;
  longest->cut(Connection::Loss::kHangup);
  return true;
}

// The address that has most connections gives one up that it has sent no whole request on, for an address that would
// have fewer even then; false: there is none.
bool Transport::evict_for(const std::string& host) {
  const auto most =
      std::max_element(hosts_.begin(), hosts_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto own = hosts_.find(host);
  if (most == hosts_.end() || most->second <= (own == hosts_.end() ? 0 : own->second) + 1) return false;
  std::shared_ptr<Connection> latest;
  double until = 0;
  for (const auto& connection : connections_) {
    const std::optional<double> owed = connection->owed_until();
    if (!owed || connection->over_limit() || peer_host(connection->peer()) != most->first) continue;
    if (latest && until <= *owed) continue;
    until = *owed;
    latest = connection;
  }
  if (!latest) return false;
  ++counters.timeouts;
  latest->cut(Connection::Loss::kTimeout);
  return true;
}

void Transport::erase(const std::shared_ptr<Connection>& connection) {
  if (connections_.erase(connection) == 0) return;
  if (connection->over_limit()) {
    --refused_open_;
  } else if (const auto host = hosts_.find(peer_host(connection->peer()));
             host != hosts_.end() && --host->second == 0) {
    hosts_.erase(host);
  }
  counters.connections = static_cast<int64_t>(connections_.size());
}

void Transport::wait_tick() {
  if (stopped_) return;
  tick_.expires_after(kTick);
  tick_.async_wait([self = shared_from_this()](const auto& ec) {
    if (ec) return;
    const std::vector<std::shared_ptr<Connection>> all(self->connections_.begin(), self->connections_.end());
    const double now = http_clock();
    for (const auto& connection : all) connection->tick(now);
    self->wait_accept();
    self->wait_tick();
  });
}

void Transport::count_owed(int64_t change) {
  const int64_t left = counters.owed += change;
  if (left > 0 || !draining) return;
  const std::lock_guard lock(idle_mutex_);
  idle_.notify_all();
}

void Transport::close_listening() {
  if (acceptor_) {
    boost::system::error_code ignored;
    static_cast<void>(acceptor_->close(ignored));
    acceptor_.reset();
  }
  close_listener(listener_);
}

int64_t Transport::drain(double seconds) {
  {
    const std::lock_guard lock(life_mutex_);
    if (!thread_.joinable() || stopped_) return 0;
  }
  draining = true;
  boost::asio::post(context, [self = shared_from_this()] {
    const std::vector<std::shared_ptr<Connection>> all(self->connections_.begin(), self->connections_.end());
    for (const auto& connection : all) connection->drain();
    self->drained_ = true;
    self->count_owed(0);
  });
  {
    std::unique_lock lock(idle_mutex_);
    idle_.wait_for(lock, std::chrono::duration<double>(std::max(seconds, 0.0)),
                   [this] { return (drained_ && counters.owed == 0) || stopped_; });
  }
  const int64_t cut = counters.answering;
  stop();
  return cut;
}

void Transport::stop_here() {
  close_listening();
  work_.reset();
  tick_.cancel();
  const std::vector<std::shared_ptr<Connection>> all(connections_.begin(), connections_.end());
  for (const auto& connection : all) connection->cut(Connection::Loss::kStopped);
}

void Transport::stop() {
  {
    const std::lock_guard lock(idle_mutex_);
    stopped_ = true;
    idle_.notify_all();
  }
  const std::lock_guard lock(life_mutex_);
  if (!thread_.joinable()) {
    close_listener(listener_);
    return;
  }
  boost::asio::post(context, [self = shared_from_this()] { self->stop_here(); });
  thread_.join();
}

}  // namespace mdi
