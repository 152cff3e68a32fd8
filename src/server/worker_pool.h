// A fixed number of threads for the work that the transport's thread must not do. What waits is bounded, in all and for
// each client, and clients take turns: a client that posts a hundred jobs does not keep another's one job waiting for
// them, and never holds all threads. Neither do large jobs, whose clients' small ones do not wait for them. A job that
// waits for another machine gives its place up meanwhile.
#pragma once

#include <chrono>
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
  int64_t aside = 0;                          // now: began, and wait for another machine
  int64_t done = 0, refused = 0, failed = 0;  // failed: threw
};

class WorkerPool {
 public:
  using Job = std::function<void()>;

  // threads: that work at the same time, at least 2, so that there is one left for others. max_waiting: jobs of all
  // clients; one may have half of them, at least one. max_aside: jobs that may step aside at the same time, each with a
  // thread more; one client may have half.
  WorkerPool(int threads, size_t max_waiting, int max_aside = 0);
  // Ends the running jobs' threads; what waits is dropped.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  enum class Post : uint8_t { kTaken, kClientFull, kFull };
  // From any thread. What a job throws is counted and otherwise lost. large: may take seconds.
  Post post(const std::string& client, Job job, bool large = false);

  // In a job: does `wait`, which takes time but no core, while another job has this one's place; then waits for a
  // place. Throws what `wait` throws. False, and nothing is done: too many jobs, or too many of this client, are aside.
  // On a thread that runs no job it is just `wait`.
  bool step_aside(const std::function<void()>& wait);

  WorkerCounters counters() const;

 private:
  struct Client {
    std::deque<Job> waiting;
    size_t running = 0;  // have a place
    size_t aside = 0;    // jobs, those that are returning included
    bool large = false;
  };

  void loop();
  void end();
  bool next(std::string& client, Job& job);
  bool may_run(const Client& client) const;
  void take_place(Client& client);
  void leave_place(Client& client);
  size_t places_kept() const;

  const size_t places_, max_waiting_, max_aside_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::unordered_map<std::string, Client> clients_;  // those with jobs; large ones by themselves
  std::deque<std::string> turns_;                    // clients with waiting jobs, the next one first
  std::unordered_map<std::string, size_t> aside_;    // jobs by the client's name; no zeros
  std::vector<std::string> returning_;               // of clients_, a job each: was aside and waits for a place
  size_t large_running_ = 0;
  WorkerCounters counters_;
  bool stopping_ = false;
  std::chrono::steady_clock::time_point trimmed_;  // when memory was last given back, after large jobs
  std::vector<std::thread> threads_;
};

}  // namespace mdi
