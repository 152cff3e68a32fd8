// A fixed number of threads for the work that the transport's thread must not do. What waits is bounded, in all and for
// each client, and clients take turns: a client that posts a hundred jobs does not keep another's one job waiting for
// them, and never holds all threads. Neither do large jobs, whose clients' small ones do not wait for them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace mdi {

struct WorkerCounters {
  int64_t waiting = 0, running = 0;           // now
  int64_t done = 0, refused = 0, failed = 0;  // failed: threw
};

class WorkerPool {
 public:
  using Job = std::function<void()>;

  // threads: at least 2, so that there is one left for others. max_waiting: jobs of all clients; one may have half of
  // them, at least one.
  WorkerPool(int threads, size_t max_waiting);
  // Ends the running jobs' threads; what waits is dropped.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  enum class Post : uint8_t { kTaken, kClientFull, kFull };
  // From any thread. What a job throws is counted and otherwise lost. large: may take seconds.
  Post post(const std::string& client, Job job, bool large = false);

  WorkerCounters counters() const;

 private:
  struct Client {
    std::deque<Job> waiting;
    size_t running = 0;
    bool large = false;
  };

  void loop();
  bool next(std::string& client, Job& job);

  const size_t threads_wanted_, max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::unordered_map<std::string, Client> clients_;  // those with jobs; large ones by themselves
  std::deque<std::string> turns_;                    // clients with waiting jobs, the next one first
  size_t large_running_ = 0;
  WorkerCounters counters_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace mdi
