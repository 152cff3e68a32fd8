// The CUDA backend's context: device, stream, and a workspace from which an operation takes its scratch memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/cuda/cuda_error.h"
#include "kernels/ops.h"

namespace mdi {

// A stack of scratch memory: allocated once, given out by advancing a mark, taken back at the end of the operation.
struct CudaWorkspace {
  std::byte* base = nullptr;
  int64_t size = 0, used = 0, most = 0;

  // 256-byte aligned; throws mdi::Error when the workspace is too small, naming what asked.
  template <class T>
  T* take(int64_t count, const char* what) {
    const int64_t bytes = (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    if (used + bytes > size) {
      throw Error("cuda workspace", std::string(what) + " needs " + std::to_string(bytes) + " bytes, " +
                                        std::to_string(size - used) + " of " + std::to_string(size) + " are free");
    }
    T* at = reinterpret_cast<T*>(base + used);
    used += bytes;
    if (used > most) most = used;
    return at;
  }
};

// The shared expert's rows that run beside the stream already (begin_shared_expert). Their memory is the workspace's
// far end, which no other operation sees meanwhile.
struct SharedAhead {
  const bf16* of = nullptr;  // the operation's x; null: none
  int64_t rows = 0;
  const bf16* y = nullptr;  // [rows, dim]
  int64_t bytes = 0;
};

struct CudaContext : Context {
  int device = 0;
  int multiprocessors = 0;
  cudaStream_t stream = nullptr;
  CudaWorkspace workspace;
  bool synchronous = false;  // MDI_CUDA_SYNC: wait after every launch, so that an error names its kernel
  bool capturing = false;    // what is launched is kept in a graph (graph.h), not run
  SharedAhead shared_ahead;

  CudaContext(int device, int64_t workspace_bytes);
  ~CudaContext() override;
};

struct CudaDevice {
  std::string name;
  int64_t total = 0, free = 0;  // bytes of memory
};

// Throws mdi::Error when there is no such GPU or its architecture is not 9.0.
CudaDevice find_cuda_device(int device);

// As find_cuda_device, and an error before anything is allocated when less memory is free than the workspace takes.
std::unique_ptr<CudaContext> make_cuda_context(int device, int64_t workspace_bytes);

// The backend's table of operations, for a context that puts something around them.
const Ops& cuda_ops();

namespace cuda {

inline CudaContext& cuda(Context& context) { return static_cast<CudaContext&>(context); }

// Frees what an operation took from the workspace when the operation ends. Work of a stream runs in order, so the next
// operation may use the same memory.
struct WorkspaceScope {
  CudaWorkspace& workspace;
  int64_t mark;
  explicit WorkspaceScope(CudaContext& context) : workspace(context.workspace), mark(context.workspace.used) {}
  ~WorkspaceScope() { workspace.used = mark; }
  WorkspaceScope(const WorkspaceScope&) = delete;
  WorkspaceScope& operator=(const WorkspaceScope&) = delete;
};

void launched(CudaContext& context, const std::string& what, const char* file, int line);

// Shows a device array to the context's tap, if it has one; waits for the stream then.
void tap(CudaContext& context, std::string_view name, DType dtype, const void* device,
         std::initializer_list<int64_t> shape);

}  // namespace cuda
}  // namespace mdi
