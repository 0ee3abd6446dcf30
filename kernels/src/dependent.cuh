// Launches that overlap (programmatic dependent launch, sm_90 and newer): a kernel that is launched
// as the dependent of the one before may begin when all blocks of that one have been placed.
//
// The rule: until it has waited, a thread reads nothing but its arguments and weights, which no
// kernel writes, and writes nothing to global memory. Every kernel waits, or a third one might
// begin before the first has ended. The simulator holds kernels to it. On older architectures, and
// where a kernel is launched otherwise, these calls do nothing.
//
// When a kernel lets the next one begin is a property of its launch
// (kernels.device.device.Trigger): at its start the next kernel's blocks take the multiprocessors
// that are idle, and may stay there two to four on one; later they find more multiprocessors free,
// and hide less.
//
// Pointers to anything but weights have no `__restrict__`: what a kernel loads through
// `const T* __restrict__` comes by ld.global.nc, which PTX allows only for data that no one writes
// while the kernel runs, and leaves out of its memory model. The wait orders nothing for it: it may
// find a line that a launch before the last brought to the L1 cache.
//
// What a kernel does before it waits has switches, to be measured (kernels.device.device.Variant).
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
