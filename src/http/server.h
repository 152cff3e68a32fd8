// HTTP/1.1 as the server's rooms see it: whole requests in, answers and streams out. Knows nothing of models.
//
// One I/O thread serves all connections; there is no thread per connection or stream. A connection is asked one request
// at a time: what a client sends ahead waits, bounded, until the answer before it is written. Requests that could mean
// different things to different readers (two lengths, a length with chunks, no or two Hosts, control characters) are
// refused and their connection is closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mdi {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  uint64_t id = 0;     // from 1 on, never used twice in a process
  std::string method;  // as sent: "GET"
  std::string path;    // begins with '/'; percent-decoded, without the query; never has a NUL, "." or ".." segments
  std::string query;   // what follows '?', not decoded
  std::string body;    // chunks joined
  std::string peer;    // "127.0.0.1:41234", or "unix"
  std::string client;  // who asks, where HttpOptions::admit has found out; else empty
  Headers headers;     // names in lower case, in the order sent

  // The first of this lower-case name; empty where there is none.
  std::string_view header(std::string_view name) const;
};

// The address in `peer`, without its port.
inline std::string_view peer_host(std::string_view peer) { return peer.substr(0, peer.rfind(':')); }

struct HttpAnswer {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  Headers headers = {};  // further ones; not content-type, content-length, transfer-encoding or connection
};

// The one answer to one request: send() alone, or begin(), write() ..., end(). Every function may be called from any
// thread, and none of them blocks: what the client has not taken yet waits in a backlog
// (HttpOptions::max_backlog_bytes). When the client is gone they do nothing. To let go of the last reference before an
// answer is whole answers 500, or cuts a stream that has begun, so that no client waits for ever. Abstract, so that a
// test can stand in for it.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  // A whole answer. To a HEAD request the body is not sent, its length is.
  virtual void send(int status, std::string content_type, std::string body, Headers extra = {}) = 0;

  // A stream: chunked (HTTP/1.0: until the connection closes). What is written is sent at once.
  virtual void begin(int status, std::string content_type, Headers extra = {}) = 0;
  // False: the client is gone. Empty text is nothing.
  virtual bool write(std::string text) = 0;
  virtual void end() = 0;

  // `gone` is called once, when the client hangs up, does not read (backlog limit, write timeout), or the server stops,
  // before a whole answer was handed to the system; never after that. Usually from the I/O thread, so it must not
  // block; if it has already happened, here and now. May be registered several times. An end of the client's sending
  // half is a hang-up, too: the two cannot be told apart before something is sent.
  virtual void on_gone(std::function<void()> gone) = 0;
  virtual bool gone() const = 0;
};

struct HttpOptions {
  std::string host = "127.0.0.1";  // a numeric address; "localhost" is 127.0.0.1
  uint16_t port = 0;               // 0: any free one (HttpServer::port)
  std::string unix_path;           // not empty: this socket file, mode 0600, in place of host and port

  size_t max_header_bytes = 32 << 10;           // request line and headers; more: 431
  size_t max_headers = 100;                     // more: 431
  size_t max_body_bytes = size_t{64} << 20;     // of one request; more: 413
  size_t max_bodies_bytes = size_t{512} << 20;  // of all requests that are read or answered; more: 503
  // More: the one that has been idle for longest is closed; where none is idle, 503 with Retry-After.
  size_t max_connections = 2048;
  size_t max_backlog_bytes = 1 << 20;  // of a stream, beyond what the system buffers; more: gone
  double header_seconds = 10;          // from a request's first byte to the end of its headers; then 408
  double body_seconds = 60;            // from there to the end of its body; then 408
  double idle_seconds = 75;            // without a request; then closed
  double write_seconds = 20;           // without the client taking a byte of what waits for it; then gone

  // Called when the headers are complete, before the body is read (HttpRequest::body is empty): API keys, unknown
  // paths. An answer refuses the request; the connection is closed after it where a body was to come. May set
  // HttpRequest::client. On the I/O thread.
  std::function<std::optional<HttpAnswer>(HttpRequest& head)> admit = {};

  // Further headers of every answer to this request, whoever gives it. On the I/O thread.
  std::function<Headers(const HttpRequest& head)> answer_headers = {};

  // The shape of what the transport refuses by itself (400, 408, 413, 415, 417, 431, 500, 501, 503, 505). head: what is
  // known of the request, its path empty where it was not understood. Empty function: plain text. On any thread.
  std::function<HttpAnswer(int status, std::string_view message, const HttpRequest& head)> refusal = {};
};

// Since start; all but the first four only grow.
struct HttpCounters {
  int64_t connections = 0;    // open now
  int64_t answering = 0;      // requests with the handler, or whose answer is being sent, now
  int64_t bodies_bytes = 0;   // of requests that are read or answered, now
  int64_t backlog_bytes = 0;  // of all answers, not yet taken by the system, now
  int64_t accepted = 0;       // connections
  int64_t refused_full = 0;   // connections over max_connections
  int64_t requests = 0;       // with complete headers
  int64_t malformed = 0;      // refused by the transport itself: not HTTP, or over a limit
  int64_t refused_admit = 0;  // by HttpOptions::admit
  int64_t answered[6] = {};   // whole answers by first digit of their status
  int64_t gone_hangup = 0;    // answers that were not whole: the client hung up
  int64_t gone_backlog = 0;   //   ... did not read, and the backlog was full
  int64_t gone_timeout = 0;   //   ... did not read for write_seconds
  int64_t gone_stopped = 0;   //   ... the server ended
  int64_t abandoned = 0;      // answers that the handler let go of
  int64_t timeouts = 0;       // connections closed for header_seconds, body_seconds or idle_seconds, or to make room
  int64_t received_bytes = 0, sent_bytes = 0;
};

// Called on the I/O thread with a whole request; must not block or do heavy work. What it throws is answered with 500.
using HttpHandler = std::function<void(HttpRequest request, std::shared_ptr<HttpReply> reply)>;

class Transport;  // transport.h

class HttpServer {
 public:
  // Throws mdi::Error for an address that is not one.
  HttpServer(HttpOptions options, HttpHandler handler);
  ~HttpServer();  // stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Listens, so that a port in use is known before anything else is done; clients that connect wait. Throws mdi::Error
  // that names the address. start() does it where it has not been done. A socket file that nobody listens on is
  // replaced.
  void listen();
  void start();

  uint16_t port() const;        // after listen(); 0 for a socket file
  std::string address() const;  // "http://127.0.0.1:8000" or "unix:PATH"

  // Requests with a body are refused with 503, others answered, and their connections closed; waits until the answers
  // that were open before have ended, at most so long, then cuts the rest and stops.
  // Returns how many answers were cut. From any thread but the I/O thread; stop() from another thread ends the wait.
  int64_t drain(double seconds);
  void stop();  // at once

  HttpCounters counters() const;

 private:
  std::shared_ptr<Transport> transport_;
};

// "OK" for 200; "" for a number that has no name here.
std::string_view http_reason(int status);

}  // namespace mdi
