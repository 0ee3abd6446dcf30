// Clusters (sm_90 and newer): blocks that run at the same time, share a barrier of all their
// threads, and can access each other's shared memory. The launch sets how many blocks form a
// cluster.
//
// The rule: a block accesses another block's shared memory only between two barriers of the cluster
// that both blocks pass. After the first, the other block has begun; after the last, it may end.
//
// Outside CUDA the simulator defines the same names, as it does for ptx.cuh. A kernel for any
// architecture may name these functions, but a kernel that calls one compiles only for sm_90 on.
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
