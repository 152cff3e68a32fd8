// The CUDA backend's table of operations.
#include <cstring>
#include <string>

#include "kernels/cuda/context.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/stages.h"

namespace mdi {

namespace {

void* allocate(Context& base, int64_t bytes) {
  CudaContext& context = cuda::cuda(base);
  void* p = nullptr;
  // One byte at least, so that an empty array has an address like any other.
  const auto size = static_cast<size_t>(bytes > 0 ? bytes : 1);
  const cudaError_t status = cudaMalloc(&p, size);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw Error("device memory", "cannot allocate " + std::to_string(bytes) + " bytes, " + std::to_string(free) +
                                     " of " + std::to_string(total) + " are free");
  }
  MDI_CUDA(status);
  MDI_CUDA(cudaMemsetAsync(p, 0, size, context.stream));
  return p;
}

void release(Context& base, void* p) {
  if (p == nullptr) return;
  // Waits for the device, so that nothing in flight loses its memory.
  cudaStreamSynchronize(cuda::cuda(base).stream);
  cudaFree(p);
}

// Both copies return when the host's array may be used again. A copy from ordinary memory is staged before the call
// returns, so that it does not have to wait for the stream; one from pinned memory is not.
void copy_in(Context& base, void* device, const void* host, int64_t bytes) {
  if (bytes <= 0) return;
  cudaStream_t stream = cuda::cuda(base).stream;
  MDI_CUDA(cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream));
  cudaPointerAttributes attributes{};
  MDI_CUDA(cudaPointerGetAttributes(&attributes, host));
  if (attributes.type != cudaMemoryTypeUnregistered) MDI_CUDA(cudaStreamSynchronize(stream));
}

void copy_out(Context& base, void* host, const void* device, int64_t bytes) {
  if (bytes <= 0) return;
  cudaStream_t stream = cuda::cuda(base).stream;
  MDI_CUDA(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream));
  MDI_CUDA(cudaStreamSynchronize(stream));
}

void* allocate_host(Context&, int64_t bytes) {
  void* p = nullptr;
  const cudaError_t status = cudaMallocHost(&p, static_cast<size_t>(bytes > 0 ? bytes : 1));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw Error("host memory", "cannot allocate " + std::to_string(bytes) + " bytes that the GPU can reach");
  }
  MDI_CUDA(status);
  return p;
}

void release_host(Context& base, void* p) {
  if (p == nullptr) return;
  cudaStreamSynchronize(cuda::cuda(base).stream);  // as release
  cudaFreeHost(p);
}

void copy(Context& base, void* to, const void* from, int64_t bytes) {
  if (bytes <= 0) return;
  MDI_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, cuda::cuda(base).stream));
}

void* make_mark(Context&) {
  cudaEvent_t event = nullptr;
  MDI_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void set_mark(Context& base, void* mark) {
  CudaContext& context = cuda::cuda(base);
  // In a graph an ordinary record only orders work; an external one is an event of its own at every launch.
  const unsigned flags = context.capturing ? cudaEventRecordExternal : cudaEventRecordDefault;
  MDI_CUDA(cudaEventRecordWithFlags(static_cast<cudaEvent_t>(mark), context.stream, flags));
}

void wait_mark(Context&, void* mark) { MDI_CUDA(cudaEventSynchronize(static_cast<cudaEvent_t>(mark))); }

void release_mark(Context&, void* mark) {
  if (mark != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(mark));
}

void* make_time_mark(Context&) {
  cudaEvent_t event = nullptr;
  MDI_CUDA(cudaEventCreate(&event));
  return event;
}

bool passed_mark(Context&, void* mark) {
  const cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(mark));
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // an answer, not an error of the next launch
    return false;
  }
  MDI_CUDA(status);
  return true;
}

double seconds_between(Context&, void* from, void* to) {
  float ms = 0;
  MDI_CUDA(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(from), static_cast<cudaEvent_t>(to)));
  return 1e-3 * static_cast<double>(ms);
}

constexpr Ops kOps = {
    .name = "cuda",
    .allocate = allocate,
    .release = release,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .allocate_host = allocate_host,
    .release_host = release_host,
    .copy = copy,
    .embed = cuda::embed,
    .engram_hash = cuda::engram_hash,
    .engram = cuda::engram,
    .hc_collapse = cuda::hc_collapse,
    .hc_expand = cuda::hc_expand,
    .attention_input = cuda::attention_input,
    .compress = cuda::compress,
    .index_select = cuda::index_select,
    .sparse_attention = cuda::sparse_attention,
    .attention_output = cuda::attention_output,
    .route = cuda::route,
    .routed_experts = cuda::routed_experts,
    .shared_expert = cuda::shared_expert,
    .mean_copies = cuda::mean_copies,
    .head = cuda::head,
    .linear_norm = cuda::linear_norm,
    .window_rows = cuda::window_rows,
    .markov = cuda::markov,
    .keep_rows = cuda::keep_rows,
    .commit_ring = cuda::commit_ring,
    .commit_pending = cuda::commit_pending,
    .commit_history = cuda::commit_history,
    .sample = cuda::sample,
    .place_tokens = cuda::place_tokens,
    .vision_linear = cuda::vision_linear,
    .vision_norm = cuda::vision_norm,
    .vision_attention = cuda::vision_attention,
    .vision_gate = cuda::vision_gate,
    .vision_windows = cuda::vision_windows,
    .record = cuda::record_graph,
    .run_recorded = cuda::launch_graph,
    .release_recorded = cuda::release_graph,
    .begin_shared_expert = cuda::begin_shared_expert,
    .make_mark = make_mark,
    .set_mark = set_mark,
    .wait_mark = wait_mark,
    .release_mark = release_mark,
    .make_time_mark = make_time_mark,
    .passed_mark = passed_mark,
    .seconds_between = seconds_between,
};

}  // namespace

const Ops& cuda_ops() { return kOps; }

}  // namespace mdi
