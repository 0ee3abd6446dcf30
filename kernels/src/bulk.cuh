// Hopper's bulk copies (sm_90 and newer): one thread starts a copy of many bytes, and a barrier in
// shared memory (mbarrier) counts the bytes as they arrive.
//
// Outside CUDA the simulator defines the same names, as it does for ptx.cuh.
#pragma once
#include "ptx.cuh"

#ifdef __CUDACC__

// What the driver makes of a tensor's shape, and of the tile that a copy takes of it.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

#if __CUDA_ARCH__ >= 900

// Whether the warp elects this thread, one of all its lanes, which call it together. Behind it
// ptxas knows that no other lane begins copies, and makes no loop of each.
__device__ __forceinline__ bool elected() {
  int is;
  asm volatile("{ .reg .pred is; elect.sync _|is, 0xffffffff; selp.s32 %0, 1, 0, is; }" : "=r"(is));
  return is != 0;
}

// A phase of the barrier ends when so many arrivals have come and no byte is expected. One thread
// calls it, then fence_proxy_async; the others know of it behind a barrier.
__device__ __forceinline__ void mbarrier_init(unsigned long long* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

// Behind the initialisations, and before a barrier of the cluster: other blocks may then arrive
// there.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// At the one that the block of that rank has there: what this thread has read may be overwritten.
// The other block does not see what it wrote; for that a fence of the whole GPU would be needed.
__device__ __forceinline__ void mbarrier_arrive_at(unsigned long long* barrier, unsigned rank) {
  asm volatile(
      "{ .reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

// Arrives, and says how many bytes more this phase gets.
__device__ __forceinline__ void mbarrier_expect(unsigned long long* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

// Waits until the phase of this parity has ended; the first phase's is 0.
__device__ __forceinline__ void mbarrier_wait(unsigned long long* barrier, int parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// All are multiples of 16, both addresses too.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, int bytes,
                                          unsigned long long* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// A tile of a matrix, from column x and row y on; zeros where there is no matrix.
__device__ __forceinline__ void copy_tile(void* shared, const TensorMap& map, int x, int y,
                                          unsigned long long* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}

// Channels from c on of the pixels that a filter's tap at (s, r) meets, window by window, from that
// at (w, h) of image n on; zeros outside the images.
__device__ __forceinline__ void copy_pixels(void* shared, const TensorMap& map, int c, int w, int h,
                                            int n, int s, int r, unsigned long long* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(barrier)), "r"(c), "r"(w), "r"(h), "r"(n),
      "h"(static_cast<unsigned short>(s)), "h"(static_cast<unsigned short>(r))
      : "memory");
}

// The same copies to the same places of every block of the cluster whose bit of `blocks` is set, by
// rank, and counted by the barrier that each has there.
__device__ __forceinline__ void multicast_bulk(void* shared, const void* global, int bytes,
                                               unsigned long long* barrier, unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
      "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void multicast_tile(void* shared, const TensorMap& map, int x, int y,
                                               unsigned long long* barrier, unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(barrier)), "r"(x), "r"(y), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void multicast_pixels(void* shared, const TensorMap& map, int c, int w,
                                                 int h, int n, int s, int r,
                                                 unsigned long long* barrier,
                                                 unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(
          shared_address(shared)),
      "l"(&map), "r"(shared_address(barrier)), "r"(c), "r"(w), "r"(h), "r"(n),
      "h"(static_cast<unsigned short>(s)), "h"(static_cast<unsigned short>(r)), "h"(blocks)
      : "memory");
}

#endif  // __CUDA_ARCH__ >= 900
#endif  // __CUDACC__
