// Channels of a pixel on their way to shared memory, 4 at a time.
#pragma once

#include "ptx.cuh"

// Up to whole vectors, as filters are filled up: kernels/layout/operands.py, padded.
__device__ __forceinline__ int padded(int channels) { return (channels + 3) / 4 * 4; }

// Copies 4 channels of which `exist` do, all zeros where not `inside`.
__device__ __forceinline__ void copy_channels(float* shared, const float* global, bool inside,
                                              int exist, bool vectors) {
  if (vectors && exist >= 4) {
    cp_async<16>(shared, global, inside);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      cp_async<4>(shared + i, global + (i < exist ? i : 0), inside && i < exist);
  }
}
