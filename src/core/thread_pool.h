// A fixed set of threads that run one parallel loop at a time. What a task computes must not depend on which thread
// runs it: that is what keeps results the same at any thread count.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace mdi {

class ThreadPool {
 public:
  // threads: 0 means one per core. The calling thread is one of them. Throws mdi::Error where the system gives fewer.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Calls body(i) once for each i in [0, n), in any order, and returns when all are done. `body` does not throw and
  // does not call for_each again.
  void for_each(int64_t n, const std::function<void(int64_t)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mdi
