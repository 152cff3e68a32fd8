// What waits for the engine: a queue for each client. The engine gets no more than it can start, and a little, so that
// who asks for much does not keep others waiting: the next request is always one of the client that has the least
// running, and of equal ones the one that was served longest ago.
//
// Where no slot is free for it, a client that has more takes a step back: its youngest requests are paused until a slot
// is free again, as long as it keeps at least as many as the other gets. A single request's samples are not divided.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "engine/engine.h"

namespace mdi {

class Running;
struct TurnEntry;
struct TurnOrder;
struct TurnQueue;

class Turns {
 public:
  // The engine outlives it. max_waiting: requests, as EngineOptions::max_queue means them; a client of which some wait
  // already may not have the last quarter.
  Turns(Engine& engine, int32_t max_waiting);
  // Ends what waits with EndReason::kCancelled.
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  enum class Add : uint8_t { kTaken, kFull, kClientFull };
  // From any thread. The request has been checked (Engine::check). Its deadline counts from here; its events come as
  // the engine's do, also when it ends before the engine has seen it. bounded: false takes it in any case, as what
  // belongs to a request that was taken.
  Add add(const std::string& client, Request request, const std::shared_ptr<Running>& running, bool bounded);

  // Cancels everything, from any thread.
  void cancel_all();

  // Adds what waits here, or ended while it did, to the engine's numbers.
  void add_to(EngineMetrics& metrics) const;

 private:
  void loop();
  void submit(TurnEntry entry);
  void follow(TurnOrder order);

  Engine& engine_;
  const std::shared_ptr<TurnQueue> queue_;  // lives on with requests that end late
  std::thread thread_;
};

}  // namespace mdi
