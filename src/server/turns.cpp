#include "server/turns.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "server/event_thread.h"
#include "server/turn_queue.h"

namespace mdi {

Turns::Turns(Engine& engine, int32_t max_waiting) : engine_(engine), queue_(std::make_shared<TurnQueue>()) {
  const EngineOptions& o = engine.options();
  queue_->slots = o.slots;
  queue_->spare = o.slots / 8;  // so that a slot that comes free is not idle until the next one gets here
  queue_->all_blocks = o.blocks;
  queue_->max_waiting = max_waiting;
  thread_ = std::thread([this] { loop(); });
}

Turns::~Turns() {
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->stopping = true;
  }
  queue_->wake.notify_one();
  thread_.join();
  std::vector<TurnEntry> left;
  {
    const std::lock_guard lock(queue_->mutex);
    left = queue_->take([](const TurnEntry&) { return true; });
    for (TurnOrder& order : queue_->orders) {
      if (order.entry) left.push_back(std::move(*order.entry));
    }
    queue_->orders.clear();
    queue_->cancelled += static_cast<int64_t>(left.size());
  }
  for (const TurnEntry& entry : left) entry.end(EndReason::kCancelled, {});
}

Turns::Add Turns::add(const std::string& client, Request request, const std::shared_ptr<Running>& running,
                      bool bounded) {
  TurnEntry entry;
  entry.hold = std::make_shared<TurnHold>(queue_);
  TurnHold& hold = *entry.hold;
  hold.client = client;
  hold.samples = std::min<int64_t>(request.n, queue_->slots);
  hold.blocks = blocks_for(static_cast<int64_t>(request.prompt.size())) + request.n;
  entry.running = running;
  entry.n = request.n;
  entry.prompt_tokens = static_cast<int32_t>(request.prompt.size());
  entry.arrived = engine_.options().clock();
  if (request.deadline > 0) entry.deadline = entry.arrived + request.deadline;
  request.on_event = [own = entry.hold, on_event = std::move(request.on_event)](const Event& event) {
    own->start();
    on_event(event);
  };
  entry.on_event = request.on_event;
  entry.request = std::move(request);
  running->waits([queue = queue_, key = entry.hold.get()] { queue->drop(key); });

  Add result = Add::kTaken;
  {
    const std::lock_guard lock(queue_->mutex);
    TurnQueue::Client& own = queue_->clients[client];
    own.waiting.push_back(std::move(entry));
    queue_->all.emplace(&hold, running);
    ++queue_->waiting;
    queue_->grant();
    // What can start at once does not wait.
    if (bounded && !hold.granted) {
      if (queue_->waiting > queue_->max_waiting) {
        result = Add::kFull;
      } else if (own.waiting.size() > 1 && queue_->waiting > queue_->max_waiting - queue_->max_waiting / 4) {
        result = Add::kClientFull;
      }
    }
    if (result == Add::kTaken) {
      ++queue_->taken;
    } else {
      entry = std::move(own.waiting.back());
      own.waiting.pop_back();
      --queue_->waiting;
      ++queue_->refused;
      if (own.done()) queue_->clients.erase(client);
    }
  }
  if (result == Add::kTaken) queue_->wake.notify_one();
  return result;
}

void Turns::cancel_all() {
  std::vector<std::shared_ptr<Running>> all;
  {
    const std::lock_guard lock(queue_->mutex);
    for (const auto& [hold, running] : queue_->all) all.push_back(running.lock());
  }
  for (const auto& running : all) {
    if (running) running->cancel();
  }
}

void Turns::add_to(EngineMetrics& metrics) const {
  const std::lock_guard lock(queue_->mutex);
  metrics.waiting += queue_->waiting;
  for (const TurnOrder& order : queue_->orders) metrics.waiting += order.entry ? 1 : 0;
  metrics.submitted = queue_->taken;
  metrics.refused_full += queue_->refused;
  metrics.ended_cancelled += queue_->cancelled;
  metrics.ended_deadline += queue_->late;
}

void Turns::submit(TurnEntry entry) {
  entry.request.waited = engine_.options().clock() - entry.arrived;
  std::string error = "the engine's queue is full";
  try {
    if (const std::optional<RequestId> id = engine_.submit(std::move(entry.request))) {
      entry.running->submitted(engine_, *id);
      {
        const std::lock_guard lock(queue_->mutex);
        entry.hold->id = *id;
      }
      return;
    }
  } catch (const std::exception& e) {
    error = e.what();
  }
  entry.end(EndReason::kError, error);
}

void Turns::follow(TurnOrder order) {
  switch (order.kind) {
    case TurnOrder::Kind::kSubmit:
      return submit(std::move(*order.entry));
    case TurnOrder::Kind::kPause:
      return engine_.pause(order.id);
    case TurnOrder::Kind::kResume:
      return engine_.resume(order.id);
  }
}

void Turns::loop() {
  TurnQueue& s = *queue_;
  for (;;) {
    std::unique_lock lock(s.mutex);
    s.grant();
    if (s.stopping) return;
    if (!s.orders.empty()) {
      TurnOrder order = std::move(s.orders.front());
      s.orders.pop_front();
      lock.unlock();
      follow(std::move(order));
      continue;
    }
    const double now = engine_.options().clock();
    std::vector<TurnEntry> late = s.take([now](const TurnEntry& e) { return e.deadline > 0 && now >= e.deadline; });
    if (!late.empty()) {
      s.late += static_cast<int64_t>(late.size());
      lock.unlock();
      for (const TurnEntry& entry : late) entry.end(EndReason::kDeadline, {});
      continue;
    }
    double next = 3600;
    for (const auto& [name, client] : s.clients) {
      for (const TurnEntry& e : client.waiting) next = e.deadline > 0 ? std::min(next, e.deadline - now) : next;
    }
    s.wake.wait_for(lock, std::chrono::duration<double>(next));
  }
}

}  // namespace mdi
