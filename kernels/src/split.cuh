// A sum over several blocks. Each block writes its part to the workspace. The last block, found by
// a counter, adds the parts in a fixed order, so the result does not depend on which block is last.
// It resets the counter to 0 for the next launch.
#pragma once

#include "common.cuh"
#include "ptx.cuh"

// The head of the `Sizes` of every convolution whose sums may be split.
struct ConvSizes {
  int channels;  // of a group, like the filters
  int filters;
  int x_pitch;
  int residual_pitch;
  int y_pitch;
  int x_vectors;         // whether every pixel's first channel lies at what is copied at once in x
  int y_vectors;         // whether it lies at a vector in y and in the residual
  Divisor filter_tiles;  // of a block's filters
};

// Whether this block is the last of `splits` to call this; __ldcg then reads what all of them wrote
// before. All threads of a block must call it.
__device__ __forceinline__ bool last_of_split(unsigned* counter, unsigned splits) {
  __shared__ unsigned before;
  __syncthreads();
  // Ordered behind what the block wrote, which the barrier showed this thread, and ahead of what it
  // reads of the other blocks behind the next barrier.
  if (threadIdx.x == 0) before = count_up(counter);
  __syncthreads();
  if (before != splits - 1) return false;
  if (threadIdx.x == 0) *counter = 0;
  return true;
}

// The sum of 4 neighbours in each of the parts, which lie `apart` floats from each other. Of the
// part `split`, if there is one, they are `mine`, and are not read.
__device__ __forceinline__ Vec<4> sum_of_parts(const float* parts, int splits, int apart,
                                               int split = -1,
                                               const Vec<4>& mine = splat<4>(0.0f)) {
  Vec<4> sum = splat<4>(0.0f);
#pragma unroll 1
  for (int first = 0; first < splits; first += 4) {
#pragma unroll
    for (int each = first; each < first + 4; ++each) {  // 0 is added for those beyond the last
      Vec<4> part = each == split ? mine : splat<4>(0.0f);
      if (each < splits && each != split) {
        // Past the L1 cache, which does not see what other multiprocessors write.
        const float4 other = __ldcg(reinterpret_cast<const float4*>(parts + each * apart));
        part = Vec<4>{other.x, other.y, other.z, other.w};
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sum.at[i] += part.at[i];
    }
  }
  return sum;
}

// Writes this block's part of a tile, in shared memory, to where it lies among the parts: `at(i)`,
// i < count, is where the i-th 4 neighbours lie that this thread, and no other, finishes.
template <class At>
__device__ __forceinline__ void write_part(const float* tile, float* part, int count,
                                           const At& at) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) store<4>(part + at(i), load<4>(tile + at(i)));
}

// Adds up the parts of a tile of FLOATS sums, which all blocks have written: its own a block has in
// shared memory too, in `tile`, where the last one to call this gets the sums, and true. `at` as
// for write_part. All threads of a block must call it.
template <int FLOATS, class At>
__device__ __forceinline__ bool add_up_parts(float* tile, const float* parts, int split, int splits,
                                             unsigned* counter, int count, const At& at) {
  if (!last_of_split(counter, splits)) return false;
#pragma unroll 1
  for (int i = 0; i < count; ++i)
    store<4>(tile + at(i),
             sum_of_parts(parts + at(i), splits, FLOATS, split, load<4>(tile + at(i))));
  return true;
}
