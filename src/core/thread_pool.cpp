#include "core/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/error.h"

namespace mdi {

namespace {
// How long a thread looks before it sleeps or yields: a step is hundreds of loops a few microseconds apart, and waking
// a sleeping thread costs more than such a loop. 4,000 pauses are about 0.1 ms.
constexpr int kSpins = 4000;

inline void pause() { __builtin_ia32_pause(); }

// One word says which loop is current, whether workers may still join it, and how many have: a worker that the system
// has not scheduled is never waited for.
constexpr uint64_t kOpen = 1;
constexpr uint64_t kWorker = 2;
constexpr uint64_t kWorkers = 0xFFFE;
constexpr uint64_t kGeneration = 0x10000;
}  // namespace

struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> word{0};
  std::atomic<int64_t> next{0};
  std::atomic<bool> stop{false};
  std::atomic<int> asleep{0};
  int64_t count = 0;
  const std::function<void(int64_t)>* body = nullptr;

  void work() {
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) (*body)(i);
  }

  bool join() {
    uint64_t w = word.load();
    while ((w & kOpen) != 0) {
      if (word.compare_exchange_weak(w, w + kWorker)) return true;
    }
    return false;
  }

  void end() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    for (std::thread& w : workers) w.join();
  }

  void worker() {
    uint64_t done = 0;  // the generation that this worker has worked on
    for (;;) {
      const auto ready = [&] {
        return stop.load() || ((word.load() & kOpen) != 0 && word.load() / kGeneration != done);
      };
      for (int spin = 0; spin < kSpins && !ready(); ++spin) pause();
      if (!ready()) {
        std::unique_lock lock(mutex);
        asleep.fetch_add(1);
        wake.wait(lock, ready);
        asleep.fetch_sub(1);
      }
      if (stop.load()) return;
      if (!join()) continue;
      done = word.load() / kGeneration;
      work();
      word.fetch_sub(kWorker);
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  try {
    for (int i = 1; i < threads; ++i) state_->workers.emplace_back([s = state_.get()] { s->worker(); });
  } catch (const std::system_error& error) {
    const size_t made = state_->workers.size() + 1;
    state_->end();
    throw Error("threads", "the system gives " + std::to_string(made) + " of " + std::to_string(threads) + ": " +
                               error.code().message());
  }
}

ThreadPool::~ThreadPool() { state_->end(); }

int ThreadPool::size() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::for_each(int64_t n, const std::function<void(int64_t)>& body) {
  if (n <= 0) return;
  State& s = *state_;
  if (n == 1 || s.workers.empty()) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  s.count = n;
  s.body = &body;
  s.next = 0;
  s.word = (s.word.load() / kGeneration + 1) * kGeneration | kOpen;
  if (s.asleep.load() > 0) {
    // Taking the lock orders the new word before a worker's last look at it.
    { const std::lock_guard lock(s.mutex); }
    s.wake.notify_all();
  }
  s.work();
  s.word.fetch_and(~kOpen);
  for (int spin = 0; (s.word.load() & kWorkers) != 0; ++spin) {
    if (spin < kSpins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace mdi
