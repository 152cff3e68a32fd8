#include "http/exchange.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "http/message.h"

namespace mdi {

void Exchange::added(size_t bytes) {
  backlog_ += bytes;
  context_.count_backlog(static_cast<int64_t>(bytes));
  if (woken_) return;
  woken_ = true;
  context_.wake(shared_from_this());
}

void Exchange::head(int status, std::string_view content_type, const Headers& extra, bool stream, size_t length) {
  const Framing framing = !stream ? Framing::kLength : context_.http10 ? Framing::kUntilClose : Framing::kChunked;
  status_ = status;
  stream_ = stream;
  Headers all = extra;
  all.insert(all.end(), context_.headers.begin(), context_.headers.end());
  pending_ += answer_head(status, content_type, all, framing, length, context_.close);
}

void Exchange::send(int status, std::string_view content_type, std::string_view body, const Headers& extra) {
  const std::lock_guard lock(mutex_);
  if (gone_ || status_ != 0) return;
  head(status, content_type, extra, false, body.size());
  if (context_.method != "HEAD" && status != 204 && status != 304) pending_ += body;
  ended_ = true;
  added(pending_.size());
}

void Exchange::begin(int status, std::string_view content_type, const Headers& extra) {
  const std::lock_guard lock(mutex_);
  if (gone_ || status_ != 0) return;
  head(status, content_type, extra, true, 0);
  added(pending_.size());
}

bool Exchange::write(std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (gone_) return false;
  if (text.empty() || !stream_ || ended_ || context_.method == "HEAD") return true;
  const size_t before = pending_.size();
  if (backlog_ != 0 && backlog_ + text.size() > context_.max_backlog) {
    gone_ = overflow_ = true;
    woken_ = false;  // the connection may be waiting for the client, and must not
    added(0);
    return false;
  }
  if (context_.http10) {
    pending_ += text;
  } else {
    append_chunk(text, pending_);
  }
  added(pending_.size() - before);
  return true;
}

void Exchange::end() {
  const std::lock_guard lock(mutex_);
  if (gone_ || !stream_ || ended_) return;
  ended_ = true;
  const bool chunked = !context_.http10 && context_.method != "HEAD";
  if (chunked) pending_ += kLastChunk;
  added(chunked ? kLastChunk.size() : 0);
}

void Exchange::on_gone(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!told_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
    if (!gone_) return;  // delivered
  }
  callback();
}

bool Exchange::gone() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

void Exchange::refuse(int status, std::string_view message) {
  HttpRequest known;
  known.id = context_.id;
  known.method = context_.method;
  known.path = context_.path;
  const HttpAnswer answer = context_.refusal(status, message, known);
  send(answer.status, answer.content_type, answer.body, answer.headers);
}

void Exchange::abandon() {
  bool unanswered = false;
  {
    const std::lock_guard lock(mutex_);
    if (gone_ || ended_) return;
    abandoned_ = true;
    unanswered = status_ == 0;
    if (!unanswered) added(0);
  }
  if (unanswered) refuse(500, "the request was dropped without an answer");
}

Reply::~Reply() {
  try {
    exchange_->abandon();
  } catch (const std::exception&) {  // out of memory: the client waits for its own time limit
  }
}

Exchange::Next Exchange::take(std::string& out) {
  const std::lock_guard lock(mutex_);
  woken_ = false;
  out.clear();
  if (overflow_) return Next::kOverflow;
  out.swap(pending_);
  if (!out.empty()) return Next::kBytes;
  if (ended_) return Next::kDone;
  return abandoned_ && stream_ ? Next::kCut : Next::kWait;
}

bool Exchange::overflowed() const {
  const std::lock_guard lock(mutex_);
  return overflow_;
}

bool Exchange::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

bool Exchange::abandoned() const {
  const std::lock_guard lock(mutex_);
  return abandoned_;
}

void Exchange::sent(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const size_t counted = std::min(bytes, backlog_);
  backlog_ -= counted;
  context_.count_backlog(-static_cast<int64_t>(counted));
}

int Exchange::finish() {
  std::vector<std::function<void()>> dropped;  // their captures end outside of the lock
  const std::lock_guard lock(mutex_);
  told_ = true;
  dropped.swap(callbacks_);
  context_.count_backlog(-static_cast<int64_t>(backlog_));
  backlog_ = 0;
  return status_;
}

void Exchange::lose() {
  std::vector<std::function<void()>> callbacks;
  {
    const std::lock_guard lock(mutex_);
    gone_ = told_ = true;
    callbacks.swap(callbacks_);
    context_.count_backlog(-static_cast<int64_t>(backlog_));
    backlog_ = 0;
    pending_ = {};
  }
  for (const auto& callback : callbacks) {
    try {
      callback();
    } catch (...) {  // what a callback throws is its own affair: the others must hear of it, too
    }
  }
}

}  // namespace mdi
