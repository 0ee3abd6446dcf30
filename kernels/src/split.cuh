// A sum over several blocks: each writes its part to the workspace, and the last one, found by a
// counter, adds the parts in a fixed order, so that the result does not depend on which block was
// last. It resets the counter to 0 for the next launch.
#pragma once

#include "common.cuh"

// Whether this block is the last of `splits` to call this; __ldcg then reads what all of them wrote
// before. All threads of a block must call it.
__device__ __forceinline__ bool last_of_split(unsigned* counter, unsigned splits) {
  __shared__ unsigned before;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // what the block wrote, which the barrier showed this thread, before it
                      // counts
    before = atomicAdd(counter, 1u);
    __threadfence();  // what the other blocks wrote, before this one reads it behind the barrier
  }
  __syncthreads();
  if (before != splits - 1) return false;
  if (threadIdx.x == 0) *counter = 0;
  return true;
}

// The sum of 4 neighbours in each of the parts, which lie `apart` floats from each other.
__device__ __forceinline__ Vec<4> sum_of_parts(const float* parts, int splits, int apart) {
  Vec<4> sum = splat<4>(0.0f);
#pragma unroll 1
  for (int first = 0; first < splits; first += 4) {
#pragma unroll
    for (int each = first; each < first + 4; ++each) {  // 0 is added for those beyond the last
      float4 part = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      // Past the L1 cache, which does not see what other multiprocessors write.
      if (each < splits) part = __ldcg(reinterpret_cast<const float4*>(parts + each * apart));
      sum.at[0] += part.x;
      sum.at[1] += part.y;
      sum.at[2] += part.z;
      sum.at[3] += part.w;
    }
  }
  return sum;
}
