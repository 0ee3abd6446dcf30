// Loads and copies a pixel's channels, 4 at a time, into registers or shared memory.
#pragma once

#include "common.cuh"
#include "half.cuh"
#include "ptx.cuh"

// Up to whole vectors, as filters are filled up: kernels/layout/operands.py, padded.
__device__ __forceinline__ int padded(int channels) { return (channels + 3) / 4 * 4; }

// 4 neighbouring channels; those beyond the last may belong to a neighbour, and count as 0.
template <class T>
__device__ __forceinline__ Vec<4> load_channels(const T* from, int exist, bool vectors) {
  if (vectors && exist >= 4) return load<4>(from);
  Vec<4> result = splat<4>(0.0f);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < exist) result.at[i] = from[i];
  return result;
}

// Copies 4 channels of which `exist` do, all zeros where not `inside`.
__device__ __forceinline__ void copy_channels(float* shared, const float* global, bool inside,
                                              int exist, bool vectors) {
  if (vectors) {
    cp_async_part<16>(shared, global, inside ? min(max(exist, 0), 4) * 4 : 0);
  } else {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) cp_async<4>(shared + i, global + i, inside && i < exist);
  }
}

// Copies UNIT channels of which `exist` do, one by one: zeros for the others.
template <int UNIT, class T>
__device__ __forceinline__ void copy_singly(T* shared, const T* global, int exist) {
#pragma unroll
  for (int i = 0; i < UNIT; ++i) {
    if constexpr (sizeof(T) == 4) {
      cp_async<4>(shared + i, global + (i < exist ? i : 0), i < exist);
    } else {
      shared[i] = i < exist ? global[i] : T(0.0f);  // cp.async copies at least 4 bytes
    }
  }
}
