#include "server/turns.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <iterator>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "server/event_thread.h"

namespace mdi {

// What a request takes of the engine, until the last that knows of it lets go: the engine, when it has ended.
struct Turns::Hold {
  std::shared_ptr<State> state;
  std::string client;
  int64_t samples = 0, blocks = 0;
  // With the state's lock:
  bool granted = false, started = false, paused = false;
  RequestId id = 0;  // the engine's; 0: it does not have it yet

  explicit Hold(std::shared_ptr<State> owner) : state(std::move(owner)) {}
  ~Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  void start();
};

struct Turns::Entry {
  std::shared_ptr<Hold> hold;
  std::shared_ptr<Running> running;
  Request request;
  std::function<void(const Event&)> on_event;  // the request's
  int32_t n = 1, prompt_tokens = 0;
  double arrived = 0, deadline = 0;  // on the engine's clock; 0: none

  // All samples end, without the engine.
  void end(EndReason reason, const std::string& error) const {
    for (int32_t sample = 0; sample < n; ++sample) {
      Event event;
      event.sample = sample;
      event.end = reason;
      event.error = error;
      event.usage.prompt_tokens = prompt_tokens;
      event.last = sample + 1 == n;
      on_event(event);
    }
  }
};

// What the engine is told, in this order.
struct Turns::Order {
  enum class Kind : uint8_t { kSubmit, kPause, kResume };
  Kind kind;
  RequestId id = 0;
  std::optional<Entry> entry;  // kSubmit
};

// No entry ends with the lock: its Hold would want it.
struct Turns::State {
  struct Client {
    std::deque<Hold*> running;  // what the engine has and runs, oldest grant first
    std::deque<Hold*> paused;   // what it has and does not run; comes before what waits
    std::deque<Entry> waiting;
    int64_t samples = 0;  // of those that run
    int64_t served = 0;   // when it last got a turn

    Hold* next() const {
      return !paused.empty() ? paused.front() : waiting.empty() ? nullptr : waiting.front().hold.get();
    }
    bool done() const { return running.empty() && paused.empty() && waiting.empty(); }
  };

  int64_t slots = 0, spare = 0, all_blocks = 0, max_waiting = 0;

  mutable std::mutex mutex;  // of what follows
  std::condition_variable wake;
  std::unordered_map<std::string, Client> clients;  // of which something waits or is with the engine
  std::deque<Order> orders;                         // on their way to the engine
  std::unordered_map<const Hold*, std::weak_ptr<Running>> all;
  int64_t waiting = 0, samples = 0, blocks = 0, unstarted = 0, turns = 0;
  int64_t taken = 0, refused = 0, cancelled = 0, late = 0;
  bool stopping = false;

  bool fits(const Hold& hold) const {
    if (samples == 0) return true;
    if (samples + hold.samples > slots + spare) return false;
    // What prompts share, and what the prefix cache holds, is not known here: where blocks seem to be short the engine
    // gets one more whenever it has started all that it has.
    return blocks + hold.blocks <= all_blocks || unstarted == 0;
  }

  void run(Client& client, Hold& hold) {
    client.running.push_back(&hold);
    samples += hold.samples;
    client.samples += hold.samples;
    blocks += hold.blocks;
    unstarted += hold.started ? 0 : 1;
  }

  void leave(Client& client, Hold& hold) {
    std::erase(client.running, &hold);
    samples -= hold.samples;
    client.samples -= hold.samples;
    blocks -= hold.blocks;
    unstarted -= hold.started ? 0 : 1;
  }

  // The youngest request of the client that has most, where it may be paused for `hold` of `for_client`.
  std::pair<Client*, Hold*> victim(const Client& for_client, const Hold& hold) {
    Client* most = nullptr;
    for (auto& [name, client] : clients) {
      if (most == nullptr || client.samples > most->samples) most = &client;
    }
    if (most == nullptr || most->running.empty()) return {};
    Hold* youngest = most->running.back();
    const bool known = youngest->id != 0;  // else it is on its way to the engine, and soon there
    if (!known || most->samples - youngest->samples < for_client.samples + hold.samples) return {};
    return {most, youngest};
  }

  // Pauses until there is a slot for it, or, where that cannot be, nothing.
  bool make_room(const Client& for_client, const Hold& hold) {
    if (blocks + hold.blocks > all_blocks && unstarted > 0) return false;
    std::vector<std::pair<Client*, Hold*>> paused;
    while (samples + hold.samples > slots) {
      const auto [client, youngest] = victim(for_client, hold);
      if (youngest == nullptr) break;
      leave(*client, *youngest);
      paused.emplace_back(client, youngest);
    }
    const bool enough = samples + hold.samples <= slots;
    if (!enough) std::reverse(paused.begin(), paused.end());
    for (const auto& [client, youngest] : paused) {
      if (enough) {
        youngest->paused = true;
        client->paused.push_front(youngest);
        orders.push_back({Order::Kind::kPause, youngest->id, std::nullopt});
      } else {
        run(*client, *youngest);
      }
    }
    return enough;
  }

  void grant() {
    for (;;) {
      Client* next = nullptr;
      for (auto& [name, client] : clients) {
        if (client.next() == nullptr) continue;
        if (next == nullptr || std::pair(client.samples, client.served) < std::pair(next->samples, next->served)) {
          next = &client;
        }
      }
      if (next == nullptr) return;
      Hold& hold = *next->next();
      if (!fits(hold) && !make_room(*next, hold)) return;
      if (hold.paused) {
        next->paused.pop_front();
        hold.paused = false;
        orders.push_back({Order::Kind::kResume, hold.id, std::nullopt});
      } else {
        orders.push_back({Order::Kind::kSubmit, 0, std::move(next->waiting.front())});
        next->waiting.pop_front();
        hold.granted = true;
        --waiting;
      }
      run(*next, hold);
      next->served = ++turns;
    }
  }

  // Those that wait and are wanted, without them in the queues.
  template <class Wanted>
  std::vector<Entry> take(Wanted wanted) {
    std::vector<Entry> out;
    for (auto at = clients.begin(); at != clients.end();) {
      std::deque<Entry>& queue = at->second.waiting;
      for (size_t i = 0; i < queue.size();) {
        if (!wanted(queue[i])) {
          ++i;
          continue;
        }
        out.push_back(std::move(queue[i]));
        queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(i));
        --waiting;
      }
      at = at->second.done() ? clients.erase(at) : std::next(at);
    }
    return out;
  }

  void drop(const Hold* hold) {
    std::vector<Entry> dropped;
    {
      const std::lock_guard lock(mutex);
      dropped = take([hold](const Entry& entry) { return entry.hold.get() == hold; });
      cancelled += static_cast<int64_t>(dropped.size());
    }
    for (const Entry& entry : dropped) entry.end(EndReason::kCancelled, {});
  }
};

Turns::Hold::~Hold() {
  {
    const std::lock_guard lock(state->mutex);
    state->all.erase(this);
    if (!granted) return;
    const auto own = state->clients.find(client);
    if (paused) {
      std::erase(own->second.paused, this);
    } else {
      state->leave(own->second, *this);
    }
    if (own->second.done()) state->clients.erase(own);
  }
  state->wake.notify_one();
}

void Turns::Hold::start() {
  {
    const std::lock_guard lock(state->mutex);
    if (std::exchange(started, true)) return;
    state->unstarted -= granted && !paused ? 1 : 0;
  }
  state->wake.notify_one();
}

Turns::Turns(Engine& engine, int32_t max_waiting) : engine_(engine), state_(std::make_shared<State>()) {
  const EngineOptions& o = engine.options();
  state_->slots = o.slots;
  state_->spare = o.slots / 8;  // so that a slot that comes free is not idle until the next one gets here
  state_->all_blocks = o.blocks;
  state_->max_waiting = max_waiting;
  thread_ = std::thread([this] { loop(); });
}

Turns::~Turns() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_one();
  thread_.join();
  std::vector<Entry> left;
  {
    const std::lock_guard lock(state_->mutex);
    left = state_->take([](const Entry&) { return true; });
    for (Order& order : state_->orders) {
      if (order.entry) left.push_back(std::move(*order.entry));
    }
    state_->orders.clear();
    state_->cancelled += static_cast<int64_t>(left.size());
  }
  for (const Entry& entry : left) entry.end(EndReason::kCancelled, {});
}

Turns::Add Turns::add(const std::string& client, Request request, const std::shared_ptr<Running>& running,
                      bool bounded) {
  Entry entry;
  entry.hold = std::make_shared<Hold>(state_);
  Hold& hold = *entry.hold;
  hold.client = client;
  hold.samples = std::min<int64_t>(request.n, state_->slots);
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
  running->waits([state = state_, key = entry.hold.get()] { state->drop(key); });

  Add result = Add::kTaken;
  {
    const std::lock_guard lock(state_->mutex);
    State::Client& own = state_->clients[client];
    const size_t before = own.waiting.size();
    own.waiting.push_back(std::move(entry));
    state_->all.emplace(&hold, running);
    ++state_->waiting;
    state_->grant();
    // What can start at once does not wait.
    const bool waits = own.waiting.size() > before;
    if (bounded && waits) {
      if (state_->waiting > state_->max_waiting) {
        result = Add::kFull;
      } else if (before > 0 && state_->waiting > state_->max_waiting - state_->max_waiting / 4) {
        result = Add::kClientFull;
      }
    }
    if (result == Add::kTaken) {
      ++state_->taken;
    } else {
      entry = std::move(own.waiting.back());
      own.waiting.pop_back();
      --state_->waiting;
      ++state_->refused;
      if (own.done()) state_->clients.erase(client);
    }
  }
  if (result == Add::kTaken) state_->wake.notify_one();
  return result;
}

void Turns::cancel_all() {
  std::vector<std::shared_ptr<Running>> all;
  {
    const std::lock_guard lock(state_->mutex);
    for (const auto& [hold, running] : state_->all) all.push_back(running.lock());
  }
  for (const auto& running : all) {
    if (running) running->cancel();
  }
}

void Turns::add_to(EngineMetrics& metrics) const {
  const std::lock_guard lock(state_->mutex);
  metrics.waiting += state_->waiting;
  for (const Order& order : state_->orders) metrics.waiting += order.entry ? 1 : 0;
  metrics.submitted = state_->taken;
  metrics.refused_full += state_->refused;
  metrics.ended_cancelled += state_->cancelled;
  metrics.ended_deadline += state_->late;
}

void Turns::submit(Entry entry) {
  entry.request.waited = engine_.options().clock() - entry.arrived;
  std::string error = "the engine's queue is full";
  try {
    if (const std::optional<RequestId> id = engine_.submit(std::move(entry.request))) {
      entry.running->submitted(engine_, *id);
      {
        const std::lock_guard lock(state_->mutex);
        entry.hold->id = *id;
      }
      return;
    }
  } catch (const std::exception& e) {
    error = e.what();
  }
  entry.end(EndReason::kError, error);
}

void Turns::follow(Order order) {
  switch (order.kind) {
    case Order::Kind::kSubmit:
      return submit(std::move(*order.entry));
    case Order::Kind::kPause:
      return engine_.pause(order.id);
    case Order::Kind::kResume:
      return engine_.resume(order.id);
  }
}

void Turns::loop() {
  State& s = *state_;
  for (;;) {
    std::unique_lock lock(s.mutex);
    s.grant();
    if (s.stopping) return;
    if (!s.orders.empty()) {
      Order order = std::move(s.orders.front());
      s.orders.pop_front();
      lock.unlock();
      follow(std::move(order));
      continue;
    }
    const double now = engine_.options().clock();
    std::vector<Entry> late = s.take([now](const Entry& e) { return e.deadline > 0 && now >= e.deadline; });
    if (!late.empty()) {
      s.late += static_cast<int64_t>(late.size());
      lock.unlock();
      for (const Entry& entry : late) entry.end(EndReason::kDeadline, {});
      continue;
    }
    double next = 3600;
    for (const auto& [name, client] : s.clients) {
      for (const Entry& e : client.waiting) next = e.deadline > 0 ? std::min(next, e.deadline - now) : next;
    }
    s.wake.wait_for(lock, std::chrono::duration<double>(next));
  }
}

}  // namespace mdi
