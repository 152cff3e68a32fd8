#include "server/worker_pool.h"

#include <algorithm>
#include <utility>

namespace mdi {

WorkerPool::WorkerPool(int threads, size_t max_waiting)
    : threads_wanted_(static_cast<size_t>(std::max(threads, 2))), max_waiting_(std::max<size_t>(max_waiting, 1)) {
  for (size_t i = 0; i < threads_wanted_; ++i) threads_.emplace_back([this] { loop(); });
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

WorkerPool::Post WorkerPool::post(const std::string& name, Job job, bool large) {
  const std::string client = name + (large ? " large" : "");
  {
    const std::lock_guard lock(mutex_);
    const auto known = clients_.find(client);
    const size_t own = known == clients_.end() ? 0 : known->second.waiting.size();
    Post refused = Post::kTaken;
    if (own >= std::max<size_t>(max_waiting_ / 2, 1)) refused = Post::kClientFull;
    if (static_cast<size_t>(counters_.waiting) >= max_waiting_) refused = Post::kFull;
    if (refused != Post::kTaken) {
      ++counters_.refused;
      return refused;
    }
    Client& entry = clients_[client];
    entry.large = large;
    if (entry.waiting.empty()) turns_.push_back(client);
    entry.waiting.push_back(std::move(job));
    ++counters_.waiting;
  }
  wake_.notify_one();
  return Post::kTaken;
}

// The next client's job, of those that do not hold all threads but one.
bool WorkerPool::next(std::string& client, Job& job) {
  const size_t most = threads_wanted_ - 1;
  for (size_t i = 0; i < turns_.size(); ++i) {
    Client& entry = clients_[turns_[i]];
    if (entry.running >= most || (entry.large && large_running_ >= most)) continue;
    client = turns_[i];
    turns_.erase(turns_.begin() + static_cast<std::ptrdiff_t>(i));
    job = std::move(entry.waiting.front());
    entry.waiting.pop_front();
    if (!entry.waiting.empty()) turns_.push_back(client);
    ++entry.running;
    if (entry.large) ++large_running_;
    --counters_.waiting;
    ++counters_.running;
    return true;
  }
  return false;
}

void WorkerPool::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::string client;
    Job job;
    wake_.wait(lock, [&] { return stopping_ || next(client, job); });
    if (stopping_) {
      // A job that was taken at the same moment is dropped like those that wait.
      return;
    }
    lock.unlock();
    bool failed = false;
    try {
      job();
    } catch (...) {
      failed = true;
    }
    job = nullptr;
    lock.lock();
    --counters_.running;
    ++counters_.done;
    counters_.failed += failed ? 1 : 0;
    Client& entry = clients_[client];
    --entry.running;
    if (entry.large) --large_running_;
    // Other large ones may have been held back as well.
    const bool more = !entry.waiting.empty() || (entry.large && !turns_.empty());
    if (entry.running == 0 && entry.waiting.empty()) clients_.erase(client);
    // It may have been held back for want of a free thread.
    if (more) wake_.notify_one();
  }
}

WorkerCounters WorkerPool::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace mdi
