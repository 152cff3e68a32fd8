#include "http/request_parser.h"

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <limits>
#include <utility>

namespace mdi {

namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

// string_body reserves what a client only announces; this grows with what has come.
struct GrowingBody {
  using value_type = std::string;

  class reader {
   public:
    template <bool isRequest, class Fields>
    reader(http::header<isRequest, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>&, error_code& ec) { ec = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& ec) {
      ec = {};
      size_t size = 0;
      for (auto it = boost::asio::buffer_sequence_begin(buffers); it != boost::asio::buffer_sequence_end(buffers);
           ++it) {
        const boost::asio::const_buffer part = *it;
        body_.append(static_cast<const char*>(part.data()), part.size());
        size += part.size();
      }
      return size;
    }
    void finish(error_code& ec) { ec = {}; }

   private:
    value_type& body_;
  };
};

// Whether a line of the head ends without a carriage return. To take it as a line's end is allowed, but proxies that do
// not would see another request.
bool has_bare_line_feed(std::string_view data) {
  const std::string_view head = data.substr(0, data.find("\r\n\r\n"));
  for (size_t at = head.find('\n'); at != std::string_view::npos; at = head.find('\n', at + 1)) {
    if (at == 0 || head[at - 1] != '\r') return true;
  }
  return false;
}

Refusal refusal_of(const error_code& ec, size_t max_header_bytes, size_t max_body_bytes) {
  if (ec == http::error::header_limit) {
    return {431, "the request's headers are longer than " + std::to_string(max_header_bytes) + " bytes"};
  }
  if (ec == http::error::body_limit) {
    return {413, "the request's body is longer than " + std::to_string(max_body_bytes) + " bytes"};
  }
  if (ec == http::error::bad_version) return {505, "HTTP/1.1 is spoken here"};
  return {400, "this is not an HTTP request: " + ec.message()};
}

}  // namespace

struct RequestParser::Library {
  http::request_parser<GrowingBody> parser;
};

RequestParser::RequestParser(size_t max_header_bytes, size_t max_headers, size_t max_body_bytes)
    : max_header_bytes_(max_header_bytes),
      max_headers_(max_headers),
      max_body_bytes_(max_body_bytes),
      library_(std::make_unique<Library>()) {
  const size_t limit = std::min<size_t>(max_header_bytes, std::numeric_limits<uint32_t>::max());
  library_->parser.header_limit(static_cast<uint32_t>(limit));
  library_->parser.body_limit(boost::none);  // the head is asked for admission first
  library_->parser.eager(false);
}

RequestParser::~RequestParser() = default;

void RequestParser::refuse(Refusal refusal) {
  refusal_ = std::move(refusal);
  state_ = State::kRefused;
}

void RequestParser::read_head() {
  const auto& message = library_->parser.get();
  head_.request.method = std::string(message.method_string());
  head_.http10 = message.version() == 10;
  head_.request.headers.reserve(8);
  for (const auto& field : message.base()) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    head_.request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  const auto target = message.target();
  if (auto bad = read_target({target.data(), target.size()}, head_.request)) return refuse(std::move(*bad));
  if (auto bad = check_head(max_headers_, head_)) return refuse(std::move(*bad));
  state_ = State::kHeadDone;
}

size_t RequestParser::feed(std::string_view data) {
  if (state_ != State::kHead && state_ != State::kBody) return 0;
  error_code ec;
  const size_t used = library_->parser.put(boost::asio::const_buffer(data.data(), data.size()), ec);
  if (ec == http::error::need_more) ec = {};
  if (!ec && state_ == State::kHead) {
    head_bytes_ += used;  // the library takes header by header, and its own limit is for what it has not taken yet
    const bool done = library_->parser.is_header_done();
    if (head_bytes_ + (done ? 0 : data.size() - used) > max_header_bytes_) ec = http::error::header_limit;
    // A folded line is one header to some readers and two to others. The library takes such a header in one piece.
    const std::string_view taken = data.substr(0, used);
    if (taken.find("\r\n ") != std::string_view::npos || taken.find("\r\n\t") != std::string_view::npos) {
      refuse({400, "a header goes on in a second line, which is not allowed"});
    } else if (!ec && done) {
      read_head();
    }
  }
  if (ec && ec != http::error::header_limit && state_ == State::kHead && has_bare_line_feed(data)) {
    refuse({400, "a line of the request's head ends with a line feed alone: expected a carriage return before it"});
  } else if (ec) {
    refuse(refusal_of(ec, max_header_bytes_, max_body_bytes_));
  } else if (state_ == State::kBody && library_->parser.is_done()) {
    state_ = State::kDone;
  }
  return used;
}

void RequestParser::go_on() {
  if (head_.length > max_body_bytes_) return refuse(refusal_of(http::error::body_limit, 0, max_body_bytes_));
  library_->parser.body_limit(max_body_bytes_);
  library_->parser.eager(true);
  state_ = library_->parser.is_done() || (!head_.chunked && head_.length == 0) ? State::kDone : State::kBody;
}

size_t RequestParser::body_bytes() const { return library_->parser.get().body().size(); }

HttpRequest RequestParser::take() {
  head_.request.body = std::move(library_->parser.get().body());
  return std::move(head_.request);
}

}  // namespace mdi
