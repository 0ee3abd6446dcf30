// Reductions over the threads of a block, in a fixed order: shuffles reduce each warp's lanes, and
// then the results of the warps are combined one after another.
#pragma once
#include "common.cuh"

struct Sum {
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};

struct Larger {
  static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
};

// Reduces the threads' values to one, for every thread.
template <typename Both, int THREADS>
__device__ __forceinline__ float over_block(float value) {
  __shared__ float of_warp[THREADS / 32];
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2)
    value = Both::of(value, __shfl_xor_sync(0xffffffffu, value, lane));
  if constexpr (THREADS == 32) return value;
  __syncthreads();  // a reduction before this one may still be read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warp[0];
#pragma unroll
  for (int warp = 1; warp < THREADS / 32; ++warp) value = Both::of(value, of_warp[warp]);
  return value;
}

// What softmax divides by along a row: y = exp(x - largest) / sum, the sum over all exp(x -
// largest).
struct Exponentials {
  float largest, sum;
};

// Of a row of `length` numbers, `stride` apart, for every thread. A row is a pointer, or gives
// numbers like one.
template <int THREADS, class Row>
__device__ __forceinline__ Exponentials exponentials(const Row& row, int length, int stride) {
  // fmaxf passes over NaN, but the sum does not.
  float largest = -infinity();
  for (int i = threadIdx.x; i < length; i += THREADS) largest = fmaxf(largest, row[i * stride]);
  largest = over_block<Larger, THREADS>(largest);

  float sum = 0.0f;
  for (int i = threadIdx.x; i < length; i += THREADS) sum += expf(row[i * stride] - largest);
  return {largest, over_block<Sum, THREADS>(sum)};
}
