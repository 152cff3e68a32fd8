// The thread between the engine and the endpoints: takes the engine's events off its step loop, makes parts of answers
// of them and calls the endpoints back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/answer.h"
#include "server/service.h"

namespace mdi {

// One request while it runs.
class Running {
 public:
  using Clock = std::chrono::steady_clock;

  // done: called once, behind the last part.
  Running(Answer answer, AnswerCallback callback, std::function<void()> done)
      : answer_(std::move(answer)), callback_(std::move(callback)), done_(std::move(done)) {}

  // On the event thread.
  void take(const Event& event);
  // On the event thread: tells a client that has heard nothing since `before` that its answer is still being made.
  // False: the request is over.
  bool keep_alive(Clock::time_point now, Clock::time_point before);

  // The engine does not have it yet: `drop` ends it where it waits.
  void waits(std::function<void()> drop);
  void submitted(Engine& engine, RequestId id);
  void cancel();

 private:
  Answer answer_;
  AnswerCallback callback_;
  std::function<void()> done_;
  Clock::time_point heard_ = Clock::now();  // when the client was last told something
  std::mutex mutex_;                        // of what follows
  Engine* engine_ = nullptr;
  RequestId id_ = 0;
  std::function<void()> drop_;
  std::vector<int32_t> cut_;  // samples that ended here before the engine had an id for them
  bool cancelled_ = false, over_ = false;
};

class EventThread {
 public:
  // silence: seconds without news after which a request's callback is told so (AnswerPart::silence); 0: never.
  explicit EventThread(double silence);
  // Hands on what is left.
  ~EventThread();
  EventThread(const EventThread&) = delete;
  EventThread& operator=(const EventThread&) = delete;

  // From the engine's thread: short and without waiting for anybody's work.
  void push(std::shared_ptr<Running> running, Event event);
  // From now on its silence is watched, until it is over.
  void watch(const std::shared_ptr<Running>& running);

 private:
  void loop();
  void keep_alive();

  const std::chrono::duration<double> silence_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<std::weak_ptr<Running>> watched_;
  std::vector<std::pair<std::shared_ptr<Running>, Event>> events_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace mdi
