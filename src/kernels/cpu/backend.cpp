#include "kernels/cpu/backend.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "core/error.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/stages.h"

namespace mdi {

namespace {

constexpr size_t kAlignment = 64;  // a cache line, and the widest vector

void* allocate(Context&, int64_t bytes) {
  // calloc leaves large blocks to the kernel's zero pages, so a pool costs memory only where it is used; the alignment
  // is made by hand because aligned_alloc does not zero.
  const size_t size = static_cast<size_t>(bytes) + kAlignment + sizeof(void*);
  auto* base = static_cast<std::byte*>(std::calloc(1, size));
  if (base == nullptr) throw Error("memory", "cannot allocate " + std::to_string(bytes) + " bytes");
  const auto at = (reinterpret_cast<uintptr_t>(base) + sizeof(void*) + kAlignment - 1) / kAlignment * kAlignment;
  std::memcpy(reinterpret_cast<void*>(at - sizeof(void*)), static_cast<const void*>(&base), sizeof base);
  return reinterpret_cast<void*>(at);
}

void release(Context&, void* p) {
  if (p == nullptr) return;
  void* base = nullptr;
  std::memcpy(static_cast<void*>(&base), static_cast<std::byte*>(p) - sizeof(void*), sizeof base);
  std::free(base);
}

void copy(Context&, void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

constexpr Ops kOps = {
    .name = "cpu",
    .allocate = allocate,
    .release = release,
    .copy_in = copy,
    .copy_out = copy,
    .allocate_host = allocate,
    .release_host = release,
    .copy = copy,
    .embed = cpu::embed,
    .engram_hash = cpu::engram_hash,
    .engram = cpu::engram,
    .hc_collapse = cpu::hc_collapse,
    .hc_expand = cpu::hc_expand,
    .attention_input = cpu::attention_input,
    .compress = cpu::compress,
    .index_select = cpu::index_select,
    .sparse_attention = cpu::sparse_attention,
    .attention_output = cpu::attention_output,
    .route = cpu::route,
    .routed_experts = cpu::routed_experts,
    .shared_expert = cpu::shared_expert,
    .mean_copies = cpu::mean_copies,
    .head = cpu::head,
    .linear_norm = cpu::linear_norm,
    .window_rows = cpu::window_rows,
    .markov = cpu::markov,
    .keep_rows = cpu::keep_rows,
    .commit_ring = cpu::commit_ring,
    .commit_pending = cpu::commit_pending,
    .commit_history = cpu::commit_history,
    .sample = cpu::sample,
    .place_tokens = cpu::place_tokens,
    .vision_linear = cpu::vision_linear,
    .vision_norm = cpu::vision_norm,
    .vision_attention = cpu::vision_attention,
    .vision_gate = cpu::vision_gate,
    .vision_windows = cpu::vision_windows,
};

}  // namespace

CpuContext::CpuContext(int threads) : pool(threads) { ops = &kOps; }

std::unique_ptr<CpuContext> make_cpu_context(int threads) { return std::make_unique<CpuContext>(threads); }

}  // namespace mdi
