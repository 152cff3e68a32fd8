#include "core/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace mdi {

namespace {
// How long a worker looks for the next loop before it sleeps: a step is hundreds of loops a few microseconds apart, and
// waking a sleeping thread costs more than such a loop. 20,000 pauses are about 0.3 ms.
constexpr int kSpins = 20000;

inline void pause() { __builtin_ia32_pause(); }
}  // namespace

struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> generation{0};
  std::atomic<int64_t> next{0};
  std::atomic<int> active{0};
  std::atomic<bool> stop{false};
  int64_t count = 0;
  const std::function<void(int64_t)>* body = nullptr;

  void work() {
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) (*body)(i);
  }

  void worker() {
    uint64_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < kSpins && generation.load() == seen && !stop.load(); ++spin) pause();
      if (generation.load() == seen && !stop.load()) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return generation.load() != seen || stop.load(); });
      }
      if (stop.load()) return;
      seen = generation.load();
      work();
      active.fetch_sub(1);
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  for (int i = 1; i < threads; ++i) state_->workers.emplace_back([s = state_.get()] { s->worker(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  for (auto& w : state_->workers) w.join();
}

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
  s.active = static_cast<int>(s.workers.size());
  {
    const std::lock_guard lock(s.mutex);
    s.generation.fetch_add(1);
  }
  s.wake.notify_all();
  s.work();
  while (s.active.load() != 0) pause();
}

}  // namespace mdi
