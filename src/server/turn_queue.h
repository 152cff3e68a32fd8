// Who is next for the engine, and what it is told: a queue for each client, and what each has running or paused. Only
// counts, under one lock; turns.h has the thread that does what is decided here, and the rules.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace mdi {

class Running;
struct TurnQueue;

// What a request takes of the engine, until the last that knows of it lets go: the engine, when it has ended.
struct TurnHold {
  std::shared_ptr<TurnQueue> queue;
  std::string client;
  int64_t samples = 0, blocks = 0;
  // With the queue's lock:
  bool granted = false, started = false, paused = false;
  RequestId id = 0;  // the engine's; 0: it does not have it yet

  explicit TurnHold(std::shared_ptr<TurnQueue> owner) : queue(std::move(owner)) {}
  ~TurnHold();
  TurnHold(const TurnHold&) = delete;
  TurnHold& operator=(const TurnHold&) = delete;
  void start();  // the engine has begun with it
};

struct TurnEntry {
  std::shared_ptr<TurnHold> hold;
  std::shared_ptr<Running> running;
  Request request;
  std::function<void(const Event&)> on_event;  // the request's
  int32_t n = 1, prompt_tokens = 0;
  double arrived = 0, deadline = 0;  // on the engine's clock; 0: none

  // All samples end, without the engine.
  void end(EndReason reason, const std::string& error) const;
};

// What the engine is told, in this order.
struct TurnOrder {
  enum class Kind : uint8_t { kSubmit, kPause, kResume };
  Kind kind;
  RequestId id = 0;
  std::optional<TurnEntry> entry;  // kSubmit
};

// No entry ends with the lock: its hold would want it.
struct TurnQueue {
  struct Client {
    std::deque<TurnHold*> running;  // what the engine has and runs, oldest grant first
    std::deque<TurnHold*> paused;   // what it has and does not run; comes before what waits
    std::deque<TurnEntry> waiting;
    int64_t samples = 0;  // of those that run
    int64_t served = 0;   // when it last got a turn

    TurnHold* next() const;  // null: nothing waits
    bool done() const { return running.empty() && paused.empty() && waiting.empty(); }
  };

  int64_t slots = 0, spare = 0, all_blocks = 0, max_waiting = 0;

  mutable std::mutex mutex;  // of what follows
  std::condition_variable wake;
  std::unordered_map<std::string, Client> clients;  // of which something waits or is with the engine
  std::deque<TurnOrder> orders;                     // on their way to the engine
  std::unordered_map<const TurnHold*, std::weak_ptr<Running>> all;
  int64_t waiting = 0, samples = 0, blocks = 0, unstarted = 0, turns = 0;
  int64_t taken = 0, refused = 0, cancelled = 0, late = 0;
  bool stopping = false;

  // With the lock. Orders what can start, and the pauses that make room for it.
  void grant();
  // With the lock. Those that wait and are wanted, without them in the queues.
  std::vector<TurnEntry> take(const std::function<bool(const TurnEntry&)>& wanted);
  // Takes the lock. Ends the one that waits, as cancelled; nothing where it does not wait any more.
  void drop(const TurnHold* hold);
  void leave(Client& client, TurnHold& hold);  // with the lock: it runs no more

 private:
  bool fits(const TurnHold& hold) const;
  void run(Client& client, TurnHold& hold);
  std::pair<Client*, TurnHold*> victim(const Client& for_client, const TurnHold& hold);
  bool make_room(const Client& for_client, const TurnHold& hold);
};

}  // namespace mdi
