#include "server/event_thread.h"

namespace mdi {

void Running::take(const Event& event) {
  if (!callback_) return;
  bool over = false;
  try {
    const std::optional<AnswerPart> part = answer_.take(event);
    if (!part) return;
    callback_(*part);
    over = part->last;
  } catch (...) {
    // A stop string ends a sample here, before the engine knows.
    if (!over && part->finish && !event.end) {
      const std::lock_guard lock(mutex_);
      if (engine_ != nullptr) {
        engine_->cancel_sample(id_, part->sample);
      } else {
        cut_.push_back(part->sample);
      }
    }
    // An endpoint that cannot go on: its reply, let go of below, tells the client.
    over = true;
  }
  if (!over) return;
  callback_ = nullptr;
  if (!event.last) cancel();
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  if (done_) done_();
  done_ = nullptr;
}

void Running::waits(std::function<void()> drop) {
  const std::lock_guard lock(mutex_);
  drop_ = std::move(drop);
}

void Running::submitted(Engine& engine, RequestId id) {
  const std::lock_guard lock(mutex_);
  engine_ = &engine;
  id_ = id;
  if (cancelled_) engine_->cancel(id_);
}

void Running::cancel() {
  std::function<void()> drop;
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_ || over_) return;
    cancelled_ = true;
    if (engine_ != nullptr) {
      engine_->cancel(id_);
    } else {
      drop = drop_;
    }
  }
  if (drop) drop();
  for (int32_t sample : cut_) engine_->cancel_sample(id_, sample);
}

EventThread::EventThread() : thread_([this] { loop(); }) {}

EventThread::~EventThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void EventThread::push(std::shared_ptr<Running> running, Event event) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = events_.empty();
    events_.emplace_back(std::move(running), std::move(event));
  }
  if (first) wake_.notify_one();
}

void EventThread::loop() {
  std::vector<std::pair<std::shared_ptr<Running>, Event>> batch;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !events_.empty(); });
      if (events_.empty()) return;
      batch.swap(events_);
    }
    for (const auto& [running, event] : batch) running->take(event);
    batch.clear();
  }
}

}  // namespace mdi
