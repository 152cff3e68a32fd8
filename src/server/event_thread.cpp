#include "server/event_thread.h"

namespace mdi {

void Running::take(const Event& event) {
  if (!callback_) return;
  bool over = false;
  try {
    const std::optional<AnswerPart> part = answer_.take(event);
    if (!part) return;
    heard_ = Clock::now();
    callback_(*part);
    over = part->last;
    // A stop string ends a sample here, before the engine knows.
    if (!over && part->finish && !event.end) {
      const std::lock_guard lock(mutex_);
      if (engine_ != nullptr) {
        engine_->cancel_sample(id_, part->sample);
      } else {
        cut_.push_back(part->sample);
      }
    }
  } catch (...) {
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

bool Running::keep_alive(Clock::time_point now, Clock::time_point before) {
  if (!callback_) return false;
  if (heard_ > before) return true;
  heard_ = now;
  AnswerPart part;
  part.silence = true;
  try {
    callback_(part);
  } catch (...) {
    // Memory was short; the next part finds out whether it still is.
  }
  return true;
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
  for (int32_t sample : cut_) engine_->cancel_sample(id_, sample);
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
}

EventThread::EventThread(double silence) : silence_(silence), thread_([this] { loop(); }) {}

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

void EventThread::watch(const std::shared_ptr<Running>& running) {
  if (silence_.count() <= 0) return;
  {
    const std::lock_guard lock(mutex_);
    watched_.push_back(running);
  }
  wake_.notify_one();
}

void EventThread::keep_alive() {
  std::list<std::weak_ptr<Running>> watched;
  {
    const std::lock_guard lock(mutex_);
    watched.swap(watched_);
  }
  const auto now = Running::Clock::now();
  const auto before = now - std::chrono::duration_cast<Running::Clock::duration>(silence_);
  watched.remove_if([&](const std::weak_ptr<Running>& each) {
    const std::shared_ptr<Running> running = each.lock();
    return running == nullptr || !running->keep_alive(now, before);
  });
  const std::lock_guard lock(mutex_);
  watched_.splice(watched_.begin(), watched);
}

void EventThread::loop() {
  std::vector<std::pair<std::shared_ptr<Running>, Event>> batch;
  auto looked = Running::Clock::now();
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const auto woken = [this] { return stopping_ || !events_.empty(); };
      if (watched_.empty()) {
        wake_.wait(lock, [&] { return woken() || !watched_.empty(); });
      } else {
        wake_.wait_for(lock, silence_ / 4, woken);
      }
      if (stopping_ && events_.empty()) return;
      batch.swap(events_);
    }
    for (const auto& [running, event] : batch) running->take(event);
    batch.clear();
    if (silence_.count() <= 0 || Running::Clock::now() - looked < silence_ / 4) continue;
    keep_alive();
    looked = Running::Clock::now();
  }
}

}  // namespace mdi
