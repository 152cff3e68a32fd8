// The CPU backend's context and its table of operations.
#pragma once

#include <memory>

#include "core/thread_pool.h"
#include "kernels/ops.h"

namespace mdi {

struct CpuContext : Context {
  explicit CpuContext(int threads);
  ThreadPool pool;
};

// threads: 0 means one per core.
std::unique_ptr<CpuContext> make_cpu_context(int threads = 0);

}  // namespace mdi
