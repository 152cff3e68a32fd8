#include "http/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

namespace mdi {

namespace {

constexpr double kLingerSeconds = 1;
constexpr size_t kMaxDiscarded = size_t{4} << 20;  // of what still comes after an answer that ends the connection
constexpr int kReadsAtOnce = 4;                    // then other connections have their turn
constexpr size_t kKeptCapacity = 16 << 10;         // of the buffers of an idle connection
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

// The system gives up on a client that takes nothing (TCP_USER_TIMEOUT) at about the time that the clock here does.
Connection::Loss loss_of(int error) {
  return error == ETIMEDOUT ? Connection::Loss::kTimeout : Connection::Loss::kHangup;
}

}  // namespace

Connection::Connection(std::shared_ptr<Transport> transport, int fd, std::string peer)
    : transport_(std::move(transport)),
      socket_(transport_->context, boost::asio::generic::stream_protocol(AF_UNSPEC, 0), fd),
      fd_(fd),
      peer_(std::move(peer)) {}

Connection::~Connection() = default;

template <class Body>
void Connection::guarded(Body body) {
  try {
    body();
  } catch (const std::exception&) {  // out of memory: this connection ends, the others go on
    cut(Loss::kAbandoned);
  }
}

void Connection::set_phase(Phase phase, double seconds) {
  phase_ = phase;
  deadline_ = http_clock() + seconds;
}

void Connection::start() {
  set_phase(Phase::kIdle, transport_->options.idle_seconds);
  wait_readable();
}

void Connection::start_full() {
  over_limit_ = true;
  guarded([this] { refuse(503, "all connections are taken, try again later"); });
  wait_readable();
}

void Connection::wait_readable() {
  if (reading_ || paused_ || eof_ || phase_ == Phase::kClosed) return;
  reading_ = true;
  socket_.async_wait(boost::asio::socket_base::wait_read, [self = shared_from_this()](const auto& ec) {
    self->reading_ = false;
    if (!ec && self->phase_ != Phase::kClosed) self->guarded([&self] { self->on_readable(); });
  });
}

void Connection::on_readable() {
  std::vector<char>& scratch = transport_->scratch;
  for (int i = 0; i < kReadsAtOnce && phase_ != Phase::kClosed && !paused_; ++i) {
    const ssize_t n = recv(fd_, scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n < 0) return cut(loss_of(errno));
    if (n == 0) return on_eof();
    transport_->counters.received_bytes += n;
    take({scratch.data(), static_cast<size_t>(n)});
  }
  wait_readable();
}

void Connection::on_eof() {
  eof_ = true;
  // An answer that is written, if not sent, is still delivered: its client may have closed its sending half only.
  if (phase_ == Phase::kAnswer && exchange_->ended()) {
    close_after_ = true;
    return;
  }
  cut(Loss::kHangup);
}

void Connection::take(std::string_view data) {
  if (phase_ == Phase::kLinger || (phase_ == Phase::kAnswer && close_after_)) {
    discarded_ += data.size();
    if (discarded_ > kMaxDiscarded) cut(Loss::kHangup);
    return;
  }
  if (phase_ != Phase::kAnswer && input_.empty()) {
    const size_t used = parse(data);
    if (phase_ != Phase::kClosed && !close_after_) input_ = data.substr(used);
  } else {
    input_ += data;
    if (phase_ != Phase::kAnswer) input_.erase(0, parse(input_));
  }
  paused_ = phase_ == Phase::kAnswer && !close_after_ && input_.size() >= transport_->options.max_header_bytes;
}

// Goes on until a request is whole, or more is needed; returns how many bytes are done with.
size_t Connection::parse(std::string_view data) {
  const HttpOptions& options = transport_->options;
  size_t used = 0;
  while (used < data.size() && (phase_ == Phase::kIdle || phase_ == Phase::kHead || phase_ == Phase::kBody)) {
    if (phase_ == Phase::kIdle) {
      // Empty lines before a request are skipped (RFC 9112, 2.2).
      if (data[used] == '\r' || data[used] == '\n') {
        ++used;
        continue;
      }
      parser_.emplace(options.max_header_bytes, options.max_headers, options.max_body_bytes);
      set_phase(Phase::kHead, options.header_seconds);
    }
    const size_t n = parser_->feed(data.substr(used));
    used += n;
    if (parser_->state() == RequestParser::State::kHeadDone) on_head();
    if (phase_ != Phase::kHead && phase_ != Phase::kBody) break;
    if (phase_ == Phase::kBody) charge(parser_->body_bytes());
    if (phase_ == Phase::kAnswer) break;
    if (parser_->state() == RequestParser::State::kRefused) {
      const Refusal bad = parser_->refusal();
      refuse(bad.status, bad.message);
    } else if (parser_->state() == RequestParser::State::kDone) {
      on_request();
    } else if (n == 0) {
      if (phase_ == Phase::kBody && data.size() - used > options.max_header_bytes) {
        refuse(400, "a chunk's size line or the trailer is too long");
      }
      break;
    }
  }
  return used;
}

void Connection::on_head() {
  Transport& t = *transport_;
  RequestHead& head = parser_->head();
  head.request.id = t.next_id++;
  head.request.peer = peer_;
  ++t.counters.requests;
  const bool has_body = head.chunked || head.length != 0;
  if (t.draining && has_body) return refuse(503, "the server is shutting down");
  if (t.options.admit) {
    std::optional<HttpAnswer> refused;
    try {
      refused = t.options.admit(head.request);
    } catch (const std::exception&) {
      return refuse(500, "internal error");
    }
    if (refused) {
      ++t.counters.refused_admit;
      return answer(*refused, head.request, head.http10, has_body || !head.keep_alive || t.draining);
    }
  }
  parser_->go_on();
  if (parser_->state() != RequestParser::State::kBody) return;
  set_phase(Phase::kBody, t.options.body_seconds);
  if (head.expects_continue) {
    out_ += kContinue;
    write_progress_ = http_clock();
    flush();
  }
}

void Connection::on_request() {
  const RequestHead& head = parser_->head();
  const bool http10 = head.http10;
  const bool close = !head.keep_alive || transport_->draining;
  HttpRequest request = parser_->take();
  exchange_ = make_exchange(request, http10, close);
  const std::shared_ptr<Exchange> exchange = exchange_;
  const auto reply = std::make_shared<Reply>(exchange);
  try {
    transport_->handler(std::move(request), reply);
  } catch (const std::exception&) {
    exchange->refuse(500, "internal error");
  }
}

std::shared_ptr<Exchange> Connection::make_exchange(const HttpRequest& request, bool http10, bool close) {
  ExchangeContext context = transport_->exchange_context();
  context.id = request.id;
  context.method = request.method;
  context.path = request.path;
  if (transport_->options.answer_headers) context.headers = transport_->options.answer_headers(request);
  context.http10 = http10;
  context.close = close;
  auto exchange = std::make_shared<Exchange>(std::move(context));
  exchange->connection = weak_from_this();
  close_after_ = close;
  if (close) input_.clear();
  parser_.reset();
  phase_ = Phase::kAnswer;
  ++transport_->counters.answering;
  // What came during a drain does not make it longer.
  if (!transport_->draining) {
    owes_ = true;
    transport_->count_owed(1);
  }
  return exchange;
}

void Connection::answer(const HttpAnswer& answer, const HttpRequest& head, bool http10, bool close) {
  exchange_ = make_exchange(head, http10, close);
  exchange_->send(answer.status, answer.content_type, answer.body, answer.headers);
}

// Refused by the transport: the connection ends, since where the next request would begin is not known.
void Connection::refuse(int status, std::string_view message) {
  if (phase_ == Phase::kAnswer || phase_ == Phase::kClosed) return;
  HttpRequest head;
  bool http10 = false;
  if (parser_) {
    head = parser_->head().request;
    http10 = parser_->head().http10;
  }
  if (over_limit_) {
    ++transport_->counters.refused_full;
  } else if (status < 500 || status == 501 || status == 505) {
    ++transport_->counters.malformed;
  }
  HttpAnswer says = transport_->refusal(status, message, head);
  const bool says_when = std::any_of(says.headers.begin(), says.headers.end(),
                                     [](const auto& header) { return header.first == "retry-after"; });
  if (status == 503 && !says_when) says.headers.emplace_back("retry-after", "1");
  answer(says, head, http10, true);
}

void Connection::charge(size_t bytes) {
  const auto change = static_cast<int64_t>(bytes) - static_cast<int64_t>(charged_);
  charged_ = bytes;
  const int64_t sum = transport_->counters.bodies_bytes += change;
  if (change > 0 && sum > static_cast<int64_t>(transport_->options.max_bodies_bytes)) {
    refuse(503, "too many large requests at once, try again later");
  }
}

void Connection::settle() {
  if (std::exchange(owes_, false)) transport_->count_owed(-1);
}

void Connection::flush() {
  guarded([this] { send_some(); });
}

void Connection::send_some() {
  if (phase_ == Phase::kClosed) return;
  if (exchange_ && exchange_->overflowed()) return cut(Loss::kBacklog);
  while (!writing_) {
    if (out_at_ == out_.size()) {
      out_.clear();
      out_at_ = 0;
      if (out_.capacity() > kKeptCapacity) out_ = {};
      if (!exchange_) return;
      const Exchange::Next next = exchange_->take(out_);
      if (next == Exchange::Next::kWait) return;
      if (next == Exchange::Next::kDone) return finish_answer();
      if (next == Exchange::Next::kOverflow) return cut(Loss::kBacklog);
      if (next == Exchange::Next::kCut) return cut(Loss::kAbandoned);
      write_progress_ = http_clock();
    }
    const ssize_t n = send(fd_, out_.data() + out_at_, out_.size() - out_at_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      writing_ = true;
      socket_.async_wait(boost::asio::socket_base::wait_write, [self = shared_from_this()](const auto& ec) {
        self->writing_ = false;
        if (!ec) self->flush();
      });
      return;
    }
    if (n < 0) return cut(loss_of(errno));
    out_at_ += static_cast<size_t>(n);
    transport_->counters.sent_bytes += n;
    write_progress_ = http_clock();
    if (exchange_) exchange_->sent(static_cast<size_t>(n));
  }
}

void Connection::finish_answer() {
  Transport& t = *transport_;
  const std::shared_ptr<Exchange> exchange = std::move(exchange_);
  exchange_ = nullptr;
  const int status = exchange->finish();
  ++t.counters.answered.at(static_cast<size_t>(status / 100 % 6));
  if (exchange->abandoned()) ++t.counters.abandoned;
  charge(0);
  if (close_after_ || t.draining || eof_) {
    --t.counters.answering;
    if (eof_) {
      phase_ = Phase::kIdle;
      return cut(Loss::kHangup);
    }
    // What comes now is read and thrown away: closing with unread bytes would take the answer back.
    shutdown(fd_, SHUT_WR);
    set_phase(Phase::kLinger, kLingerSeconds);
    input_ = {};
    paused_ = false;
    return wait_readable();
  }
  --t.counters.answering;
  settle();
  set_phase(Phase::kIdle, t.options.idle_seconds);
  if (input_.capacity() > kKeptCapacity) input_.shrink_to_fit();
  input_.erase(0, parse(input_));
  paused_ = phase_ == Phase::kAnswer && input_.size() >= t.options.max_header_bytes;
  wait_readable();
}

void Connection::tick(double now) {
  guarded([this, now] {
    if (phase_ == Phase::kAnswer) {
      if (out_at_ < out_.size() && now - write_progress_ > transport_->options.write_seconds)
        return cut(Loss::kTimeout);
      // Nothing is read from a connection with much sent ahead, so its hang-up has to be looked for.
      pollfd p{fd_, POLLRDHUP, 0};
      if (paused_ && poll(&p, 1, 0) > 0) cut(Loss::kHangup);
      return;
    }
    if (now < deadline_ || phase_ == Phase::kClosed) return;
    if (phase_ != Phase::kLinger) ++transport_->counters.timeouts;
    if (phase_ == Phase::kHead) return refuse(408, "the request's headers did not come in time");
    if (phase_ == Phase::kBody) return refuse(408, "the request's body did not come in time");
    cut(Loss::kHangup);
  });
}

double Connection::idle_seconds(double now) const {
  if (phase_ != Phase::kIdle) return -1;
  char next = 0;
  if (recv(fd_, &next, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN) return -1;
  return now - (deadline_ - transport_->options.idle_seconds);
}

std::optional<double> Connection::owed_until() const {
  if (phase_ != Phase::kIdle && phase_ != Phase::kHead && phase_ != Phase::kBody) return std::nullopt;
  return deadline_;
}

void Connection::drain() {
  if (phase_ == Phase::kBody) refuse(503, "the server is shutting down");
}

void Connection::cut(Loss loss) {
  if (phase_ == Phase::kClosed) return;
  const std::shared_ptr<Connection> self = shared_from_this();
  Transport& t = *transport_;
  const Phase was = std::exchange(phase_, Phase::kClosed);
  if (was == Phase::kAnswer) {
    auto& counter = loss == Loss::kHangup    ? t.counters.gone_hangup
                    : loss == Loss::kBacklog ? t.counters.gone_backlog
                    : loss == Loss::kTimeout ? t.counters.gone_timeout
                    : loss == Loss::kStopped ? t.counters.gone_stopped
                                             : t.counters.abandoned;
    ++counter;
    --t.counters.answering;
  }
  settle();
  charge(0);
  if (loss == Loss::kBacklog || loss == Loss::kTimeout) {
    // The system would keep what the client does not read for minutes.
    const linger at_once{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  boost::system::error_code ignored;
  static_cast<void>(socket_.close(ignored));
  t.erase(self);
  if (const std::shared_ptr<Exchange> exchange = std::move(exchange_)) exchange->lose();
}

}  // namespace mdi
