// Launches that overlap (programmatic dependent launch, sm_90 and newer): a dependent launch may
// begin once every block of the previous launch has called let_next_begin or has ended.
//
// The rule: before a thread has waited, it reads only its arguments and weights, which no kernel
// writes, and it does not write to global memory. Every kernel waits: if the second of three
// launches did not, the third might begin before the first has ended. The simulator enforces the
// rule. On older architectures, and for launches that are not dependent, these calls do nothing.
//
// The launch decides when a kernel lets the next one begin (kernels.device.device.Trigger). If it
// does so at its start, the next kernel's blocks take the multiprocessors that are idle then, and
// two to four of them may share one until they end. If it does so later, more multiprocessors are
// free, but less of the next kernel's start is hidden.
//
// Only pointers to weights have `__restrict__`. The compiler loads `const T* __restrict__` with
// ld.global.nc. PTX allows this load only for data that nobody writes while the kernel runs, and
// leaves it out of its memory model. The wait does not order such a load, so it may return a line
// that an earlier launch brought to the L1 cache.
//
// Macros change the work that a kernel does before it waits, so that variants can be measured
// (kernels.device.device.Variant).
#pragma once

#ifndef TRIGGER
#define TRIGGER 0  // 0: at the start, 1: before the epilogue, 2: when its blocks end
#endif
#ifndef WEIGHTS_FIRST
#define WEIGHTS_FIRST 1  // 0: the first weights are copied to shared memory behind the wait, too
#endif
#ifndef PREFETCH
#define PREFETCH 0  // 1: the weights are brought to the L2 cache during the wait
#endif

#ifdef __CUDACC__

// The next kernel's blocks may be placed beside this one's: the first call of every kernel.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900 && TRIGGER == 0
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Likewise, where that is to be later: called when a kernel's sums are complete.
__device__ __forceinline__ void let_next_begin_late() {
#if __CUDA_ARCH__ >= 900 && TRIGGER == 1
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernel before has ended and its stores can be seen.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Begins to bring the 128 bytes that an address lies in to the L2 cache.
__device__ __forceinline__ void prefetch_line(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

#endif  // __CUDACC__

// Whether a launch may begin before the one ahead of it has ended: elsewhere the wait is nothing,
// and no work is moved ahead of it.
#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 900
constexpr bool OVERLAPS = true;
#else
constexpr bool OVERLAPS = false;
#endif

// Stands before the first copy of weights.
__device__ __forceinline__ void wait_before_weights() {
  if constexpr (!WEIGHTS_FIRST) wait_for_previous();
}

// Brings a launch's weights, `count` of them, to the L2 cache while it waits: 128 bytes a thread of
// the blocks that are placed early, so no more than those. Off until a GPU shows a gain: on sm_90a
// it takes up to 7 registers in a third of the kernels, and two spill.
template <class T>
__device__ __forceinline__ void prefetch_weights(const T* weight, size_t count) {
  if constexpr (!OVERLAPS || !PREFETCH) return;
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const size_t first = size_t(block * blockDim.x + threadIdx.x) * (128 / sizeof(T));
  if (first < count) prefetch_line(weight + first);
}

// The first line of a kernel with nothing to do before it may read.
__device__ __forceinline__ void follow_previous() {
  let_next_begin();
  wait_for_previous();
}
