// One client's connection: reads requests one after the other, hands them over, sends what the exchanges have. All of
// it on the I/O thread.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/exchange.h"
#include "http/request_parser.h"
#include "http/transport.h"

namespace mdi {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  enum class Loss : uint8_t { kHangup, kBacklog, kTimeout, kStopped, kAbandoned };

  Connection(std::shared_ptr<Transport> transport, int fd, std::string peer);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start();       // waits for requests
  void start_full();  // says 503 and ends
  void flush();       // the exchange has something
  void tick(double now);
  // Since its last answer, or since it was made; below 0: it is not idle, or something has come.
  double idle_seconds(double now) const;
  // When what its client owes is late: a request, its headers, its body. Nothing: it is the server's turn.
  std::optional<double> owed_until() const;
  void drain();         // no further request with a body
  void cut(Loss loss);  // ends now; an answer that is not whole is lost
  bool over_limit() const { return over_limit_; }
  const std::string& peer() const { return peer_; }

 private:
  enum class Phase : uint8_t { kIdle, kHead, kBody, kAnswer, kLinger, kClosed };

  void wait_readable();
  void on_readable();
  void on_eof();
  void take(std::string_view data);
  size_t parse(std::string_view data);
  void on_head();
  void on_request();
  std::shared_ptr<Exchange> make_exchange(const HttpRequest& request, bool http10, bool close);
  void answer(const HttpAnswer& answer, const HttpRequest& head, bool http10, bool close);
  void refuse(int status, std::string_view message);
  void send_some();
  void finish_answer();
  void set_phase(Phase phase, double seconds);
  void charge(size_t bytes);
  void settle();
  template <class Body>
  void guarded(Body body);

  const std::shared_ptr<Transport> transport_;
  boost::asio::generic::stream_protocol::socket socket_;
  const int fd_;
  const std::string peer_;
  Phase phase_ = Phase::kIdle;
  double deadline_ = 0;                     // of the phase; not for kAnswer
  double write_progress_ = 0;               // when the system last took something, or out_ got something
  bool reading_ = false, writing_ = false;  // waits are outstanding
  bool paused_ = false;                     // what was sent ahead is as much as is kept
  bool eof_ = false, over_limit_ = false;
  bool owes_ = false;         // an answer that a drain waits for
  bool close_after_ = false;  // this answer; what comes in is thrown away
  size_t charged_ = 0;        // bytes of the body in the transport's sum
  size_t discarded_ = 0;
  std::string input_;  // of requests, not taken by the parser yet
  std::string out_;
  size_t out_at_ = 0;
  std::optional<RequestParser> parser_;
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace mdi
