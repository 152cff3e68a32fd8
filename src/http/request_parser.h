// One request from the bytes of a connection, however they are cut. The grammar is Boost.Beast's; what it leaves open
// is settled in request_check.h.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "http/request_check.h"

namespace mdi {

class RequestParser {
 public:
  enum class State : uint8_t {
    kHead,      // wants more of the head
    kHeadDone,  // stops here once: the head is complete and checked; go_on() goes to the body
    kBody,      // wants more of the body
    kDone,
    kRefused,  // refusal(); nothing more is read
  };

  RequestParser(size_t max_header_bytes, size_t max_headers, size_t max_body_bytes);
  ~RequestParser();

  // Takes what it can from the front of `data` and returns how many bytes; the rest must come again, in front of what
  // follows it. A rest in kBody is bounded by the caller.
  size_t feed(std::string_view data);
  void go_on();

  State state() const { return state_; }
  RequestHead& head() { return head_; }
  size_t body_bytes() const;  // read so far
  HttpRequest take();         // after kDone
  const Refusal& refusal() const { return refusal_; }

 private:
  struct Library;
  void refuse(Refusal refusal);
  void read_head();

  size_t max_header_bytes_, max_headers_, max_body_bytes_;
  std::unique_ptr<Library> library_;
  State state_ = State::kHead;
  size_t head_bytes_ = 0;
  RequestHead head_;
  Refusal refusal_;
};

}  // namespace mdi
