#include "server/worker_pool.h"

#include <malloc.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

namespace mdi {

namespace {

constexpr std::string_view kLarge = " large";

constexpr auto kTrimEvery = std::chrono::seconds(1);

// A large request's tree is many small pieces, which the library keeps when they are freed: each thread's heap would
// stay as large as its largest request.
void give_memory_back() {
// AddressSanitizer has an allocator of its own, under which glibc's was never set up.
#if defined(__GLIBC__) && !defined(MDI_SANITIZED)
  malloc_trim(0);
#endif
}

// The client whose job this thread runs, as the pool calls it; null: none.
thread_local const std::string* current = nullptr;

}  // namespace

WorkerPool::WorkerPool(int threads, size_t max_waiting, int max_aside)
    : places_(static_cast<size_t>(std::max(threads, 2))),
      max_waiting_(std::max<size_t>(max_waiting, 1)),
      max_aside_(static_cast<size_t>(std::max(max_aside, 0))) {
  returning_.reserve(max_aside_);
  try {
    for (size_t i = 0; i < places_ + max_aside_; ++i) threads_.emplace_back([this] { loop(); });
  } catch (...) {
    end();
    throw;
  }
}

WorkerPool::~WorkerPool() { end(); }

void WorkerPool::end() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

WorkerPool::Post WorkerPool::post(const std::string& name, Job job, bool large) {
  const std::string client = large ? name + std::string(kLarge) : name;
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
  wake_.notify_all();
  return Post::kTaken;
}

// No client has all places but one.
bool WorkerPool::may_run(const Client& client) const {
  const size_t most = places_ - 1;
  return client.running < most && (!client.large || large_running_ < most);
}

void WorkerPool::take_place(Client& client) {
  ++client.running;
  ++counters_.running;
  if (client.large) ++large_running_;
}

void WorkerPool::leave_place(Client& client) {
  --client.running;
  --counters_.running;
  if (client.large) --large_running_;
}

// Jobs that were begun come before new ones: a thread that has just ended a job would otherwise always be the first to
// look for a place.
size_t WorkerPool::places_kept() const {
  return static_cast<size_t>(std::count_if(returning_.begin(), returning_.end(),
                                           [this](const std::string& name) { return may_run(clients_.at(name)); }));
}

// The next client's job, of those that do not have all places but one.
bool WorkerPool::next(std::string& client, Job& job) {
  if (static_cast<size_t>(counters_.running) + places_kept() >= places_) return false;
  for (size_t i = 0; i < turns_.size(); ++i) {
    Client& entry = clients_[turns_[i]];
    if (!may_run(entry)) continue;
    client = turns_[i];
    turns_.erase(turns_.begin() + static_cast<std::ptrdiff_t>(i));
    job = std::move(entry.waiting.front());
    entry.waiting.pop_front();
    if (!entry.waiting.empty()) turns_.push_back(client);
    --counters_.waiting;
    take_place(entry);
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
    current = &client;
    try {
      job();
    } catch (...) {
      failed = true;
    }
    job = nullptr;
    current = nullptr;
    lock.lock();
    ++counters_.done;
    counters_.failed += failed ? 1 : 0;
    Client& entry = clients_[client];
    leave_place(entry);
    const auto now = std::chrono::steady_clock::now();
    const bool trim = entry.large && (large_running_ == 0 || now - trimmed_ >= kTrimEvery);
    if (trim) trimmed_ = now;
    if (entry.running == 0 && entry.aside == 0 && entry.waiting.empty()) clients_.erase(client);
    // Whoever was held back for want of a place.
    wake_.notify_all();
    if (!trim) continue;
    lock.unlock();
    give_memory_back();
    lock.lock();
  }
}

bool WorkerPool::step_aside(const std::function<void()>& wait) {
  if (current == nullptr) {
    wait();
    return true;
  }
  const std::string& name = *current;
  std::unique_lock lock(mutex_);
  Client& entry = clients_.at(name);
  const std::string owner = entry.large ? name.substr(0, name.size() - kLarge.size()) : name;
  const auto known = aside_.find(owner);
  const size_t own = known == aside_.end() ? 0 : known->second;
  if (static_cast<size_t>(counters_.aside) >= max_aside_ || own >= std::max<size_t>(max_aside_ / 2, 1)) return false;
  ++aside_[owner];
  ++entry.aside;
  ++counters_.aside;
  leave_place(entry);
  wake_.notify_all();
  lock.unlock();
  std::exception_ptr thrown;
  try {
    wait();
  } catch (...) {
    thrown = std::current_exception();
  }
  lock.lock();
  returning_.emplace_back(name);
  wake_.wait(lock, [&] { return stopping_ || (static_cast<size_t>(counters_.running) < places_ && may_run(entry)); });
  returning_.erase(std::find(returning_.begin(), returning_.end(), name));
  take_place(entry);
  --entry.aside;
  --counters_.aside;
  if (--aside_[owner] == 0) aside_.erase(owner);
  wake_.notify_all();
  lock.unlock();
  if (thrown) std::rethrow_exception(thrown);
  return true;
}

WorkerCounters WorkerPool::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace mdi
