// Launches that overlap (programmatic dependent launch, sm_90 and newer): a kernel that is launched
// as the dependent of the one before may begin when all blocks of that one have been placed.
//
// The rule: until it has waited, a thread reads nothing but its arguments and weights, which no
// kernel writes, and writes nothing to global memory. Every kernel waits, or a third one might
// begin before the first has ended. The simulator holds kernels to it. On older architectures, and
// where a kernel is launched otherwise, both calls do nothing.
#pragma once

#ifdef __CUDACC__

// The next kernel's blocks may be placed beside this one's.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernel before has ended and its stores can be seen.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif  // __CUDACC__

// The first line of a kernel with nothing to do before it may read.
__device__ __forceinline__ void follow_previous() {
  let_next_begin();
  wait_for_previous();
}
