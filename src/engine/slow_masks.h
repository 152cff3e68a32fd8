// Masks of grammars that take long to follow. A thread of its own makes them, at a low priority, while steps go on
// without the sequences that wait for theirs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/sampling.h"
#include "engine/sequence.h"

namespace mdi {

// One mask that a sequence waits for. To let go of it says that nobody does any more.
struct SlowMask {
  std::shared_ptr<RequestState> owner;
  std::vector<int32_t> generated;
  TokenMask mask;     // once it is done
  bool done = false;  // SlowMasks::done()
};

class SlowMasks {
 public:
  explicit SlowMasks(int64_t vocab);  // throws mdi::Error where the system gives no thread
  ~SlowMasks();                       // waits for the mask at hand
  SlowMasks(const SlowMasks&) = delete;
  SlowMasks& operator=(const SlowMasks&) = delete;

  // What the request's `allowed` says behind `generated`. Clients take turns (Request::client).
  std::shared_ptr<SlowMask> ask(std::shared_ptr<RequestState> owner, std::span<const int32_t> generated);
  bool done(const SlowMask& mask) const;
  // Until one of them is done, at most so long.
  void wait(std::span<const std::shared_ptr<SlowMask>> masks, double seconds) const;

 private:
  struct Client {
    std::string name;
    std::deque<std::shared_ptr<SlowMask>> waiting;  // never empty
  };

  void loop();
  std::shared_ptr<SlowMask> next();  // null: nobody waits

  const int64_t vocab_;
  mutable std::mutex mutex_;  // of what follows, and of the masks
  std::condition_variable wake_;
  mutable std::condition_variable made_;
  std::list<Client> turns_;  // the next one first
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace mdi
