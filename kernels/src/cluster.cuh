// Clusters (sm_90 and newer): blocks that run at the same time, with a barrier of all their
// threads, and that reach each other's shared memory. How many blocks are one is a property of the
// launch.
//
// The rule: a block touches another's shared memory only between two barriers of the cluster that
// the other also passes: the first says that it has begun, the last that it may end.
//
// As ptx.cuh: outside CUDA the simulator defines the same names. A kernel that calls one of these
// functions compiles for sm_90 and newer alone, but may name them anywhere.
#pragma once
#include "ptx.cuh"

#ifdef __CUDACC__

// Of this block in its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// What a thread did before it arrived, others see behind their wait. Every arrival has one.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
// For a thread that wrote nothing for the others since it arrived last, but has read what they did.
// It spares a fence of all that the thread stored.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Where the block of that rank has what this one has at `shared`.
template <class T>
__device__ __forceinline__ T* of_block(T* shared, unsigned rank) {
  T* there;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared), "r"(rank));
  return there;
}

#endif
