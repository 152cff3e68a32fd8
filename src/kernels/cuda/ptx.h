// The instructions of sm_90a that have no C++ spelling: barriers in shared memory, bulk tensor copies, matrix
// fragments, register budgets and the frame of warpgroup products (their forms are in wgmma.h). One line of assembly a
// function; what an instruction does is said by the PTX manual, what is said here is what a caller must know.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace mdi::cuda::ptx {

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// ---- barriers in shared memory --------------------------------------------------------------------------------------
__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the copy engine; then a __syncthreads.
__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// One arrival that also announces `bytes` of bulk copies.
__device__ inline void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline bool barrier_try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// Returns when the phase of that parity has completed. A fresh barrier's phase of parity 1 counts as completed.
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}
// A barrier among `threads` threads of the block (a multiple of 32); id 1..15, 0 is __syncthreads.
__device__ inline void named_barrier(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- bulk tensor copies ---------------------------------------------------------------------------------------------
__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}
// Box at (column, row) of a two-dimensional tensor; elements outside of it arrive as zero and count as bytes.
__device__ inline void tensor_load(uint32_t shared, const CUtensorMap* map, int32_t column, int32_t row,
                                   uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}
// Ordinary stores to shared memory become visible to wgmma and the copy engine: in each writing thread, before the
// barrier.
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- asynchronous copies of 16 bytes --------------------------------------------------------------------------------
__device__ inline void copy_16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- register budgets, for whole warpgroups -------------------------------------------------------------------------
template <int kRegisters>
__device__ inline void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- shared memory --------------------------------------------------------------------------------------------------
__device__ inline uint4 load_16(uint32_t shared) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared)
               : "memory");
  return v;
}
__device__ inline uint2 load_8(uint32_t shared) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(shared) : "memory");
  return v;
}
__device__ inline void store_16(uint32_t shared, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ inline void store_float(uint32_t shared, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared), "f"(v) : "memory");
}
// Four 8x8 matrices of 16-bit elements, each thread holding two neighbours of a row (as accumulators do), stored
// transposed: lane i gives the address of the 16 bytes that take column i % 8 of matrix i / 8.
__device__ inline void store_matrices_transposed(uint32_t shared, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// ---- kernels that start early (launch.h)
// ------------------------------------------------------------------------------ Returns when the work before this
// kernel is done and seen.
__device__ inline void wait_for_earlier() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- clusters -------------------------------------------------------------------------------------------------------
// Among all threads of the cluster's blocks; what was stored before is seen behind it, in shared memory of all of them.
__device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// 16 bytes at this block's shared address, of the block of that rank in the cluster.
__device__ inline float4 load_of_block(uint32_t shared, uint32_t rank) {
  float4 v;
  asm volatile(
      "{\n.reg .u32 at;\n"
      "mapa.shared::cluster.u32 at, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at];\n}\n"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(shared), "r"(rank)
      : "memory");
  return v;
}

// A value that all lanes of the warp share, said so that the compiler believes it: what follows from it (descriptors)
// then costs a warp's instruction slots no more than one register of each.
__device__ inline uint32_t uniform(uint32_t value) { return __shfl_sync(0xFFFFFFFFu, value, 0); }

// ---- the frame of warpgroup products --------------------------------------------------------------------------------
// Before the first product of a batch, and whenever registers of operands or accumulators were written since.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// A tile in shared memory whose rows are 128 bytes of K, written with the 128-byte swizzle; 1024-byte aligned, rows in
// groups of eight, 1024 bytes apart. The next 32 bytes of K (16 bf16, 32 fp8) are at descriptor + 2.
__device__ inline uint64_t descriptor_128(uint32_t shared) {
  return (uint64_t{1} << 62) | (uint64_t{64} << 32) | (uint64_t{1} << 16) | ((shared & 0x3FFFFu) >> 4);
}

}  // namespace mdi::cuda::ptx
