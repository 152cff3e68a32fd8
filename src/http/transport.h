// The I/O thread and what belongs to it: the listener, all connections, the clock that ends what takes too long.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "http/exchange.h"
#include "http/listener.h"
#include "http/server.h"

namespace mdi {

class Connection;

struct AtomicCounters {
  std::atomic<int64_t> connections{0}, answering{0}, owed{0}, bodies_bytes{0}, backlog_bytes{0}, accepted{0},
      refused_full{0}, requests{0}, malformed{0}, refused_admit{0}, gone_hangup{0}, gone_backlog{0}, gone_timeout{0},
      gone_stopped{0}, abandoned{0}, timeouts{0}, received_bytes{0}, sent_bytes{0};
  std::array<std::atomic<int64_t>, 6> answered{};
};

double http_clock();  // seconds, steady

class Transport : public std::enable_shared_from_this<Transport> {
 public:
  Transport(HttpOptions options, HttpHandler handler);

  void listen();
  void start();
  int64_t drain(double seconds);
  void stop();
  uint16_t port() const { return port_; }
  std::string address() const { return address_; }

  // For connections, on the I/O thread.
  void erase(const std::shared_ptr<Connection>& connection);
  void count_owed(int64_t change);  // answers that drain() waits for, until their connections are done with them
  ExchangeContext exchange_context();
  HttpAnswer refusal(int status, std::string_view message, const HttpRequest& head) const;

  const HttpOptions options;
  const HttpHandler handler;
  boost::asio::io_context context{1};
  AtomicCounters counters;
  std::atomic<bool> draining{false};
  uint64_t next_id = 1;       // of a request; the I/O thread's
  std::vector<char> scratch;  // what a connection reads into

 private:
  void wake(std::shared_ptr<Exchange> exchange);  // any thread
  void flush_woken();
  void wait_accept();
  void accept_some();
  void admit_connection(int fd);
  bool evict_idle();
  bool evict_for(const std::string& host);
  void wait_tick();
  void close_listening();
  void stop_here();
  void run();

  Listener listener_;
  uint16_t port_ = 0;
  std::string address_;
  std::optional<boost::asio::posix::stream_descriptor> acceptor_;
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_;
  boost::asio::steady_timer tick_{context};
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  size_t refused_open_ = 0;                           // of connections_, those over the limit that are told so
  std::map<std::string, size_t, std::less<>> hosts_;  // the others by their clients' addresses
  bool accepting_ = false;
  std::atomic<bool> drained_{false}, stopped_{false};

  std::mutex woken_mutex_;
  std::vector<std::shared_ptr<Exchange>> woken_;

  std::mutex life_mutex_;  // start and stop
  std::thread thread_;
  std::mutex idle_mutex_;
  std::condition_variable idle_;
};

}  // namespace mdi
