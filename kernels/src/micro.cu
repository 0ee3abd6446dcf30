// Kernels that measure the numbers that the cost model assumes about a GPU
// (kernels/tuning/micro.py).
//
// read_cache   every block reads the same vectors, each block from another start, past the L1
//              cache: measures the L2 cache's rate for a number of blocks
// chain        each thread's additions depend on each other, and an argument sets their number:
//              measures the gaps between launches
// wide         as chain, but unrolled to code as long as a large convolution's: measures the cost
//              of code that is not in the instruction cache
// late         stores long after it lets the next launch begin: shows whether that launch waits
// issue        multiplies small tiles from shared memory like the loop of a convolution: measures
//              the latency that a given number of warps cannot hide
#include "common.cuh"

// y[block] = the sum of x, whose parts the threads of a block add up and exchange.
__global__ void __launch_bounds__(1024) read_cache(const float* x, float* y, int vectors) {
  follow_previous();
  __shared__ float of_warp[32];
  const int begin = int(unsigned(vectors) / gridDim.x * blockIdx.x);
  float sum = 0;
#pragma unroll 8
  for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
    const int at = i + begin < vectors ? i + begin : i + begin - vectors;
    const float4 four = __ldcg(reinterpret_cast<const float4*>(x) + at);
    sum += (four.x + four.y) + (four.z + four.w);
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int warp = 1; warp < int(blockDim.x / 32); ++warp) sum += of_warp[warp];
  y[blockIdx.x] = sum;
}

// y = turns, added up in steps of 1.
__global__ void __launch_bounds__(256) chain(float* y, int turns) {
  let_next_begin();
  wait_for_previous();
  float sum = 0;
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn) sum += 1.0f;
  let_next_begin_late();
  y[thread_index()] = sum;
}

// y = x + LENGTH + VARIANT; every VARIANT has code of its own.
template <int LENGTH, int VARIANT>
__global__ void __launch_bounds__(256) wide(float* y, float x) {
  follow_previous();
#pragma unroll
  for (int turn = 0; turn < LENGTH; ++turn) x += 1.0f;
  y[thread_index()] = x + VARIANT;
}

// y = x + 1, stored 100 µs after the next launch may have begun.
__global__ void __launch_bounds__(256) late(const float* x, float* y) {
  follow_previous();
  const float number = x[thread_index()] + 1;
  __nanosleep(100000);
  y[thread_index()] = number;
}

// y[thread] = turns * 4 * 8 * 2: products of 4 × 8 from tiles in shared memory, 16 bytes a load.
__global__ void __launch_bounds__(1024) issue(float* y, int turns) {
  follow_previous();
  constexpr int TILE = 32 * 12;
  __shared__ __align__(16) float tiles[2 * TILE];  // alike, in turn: no load leaves the loop
  for (int i = threadIdx.x; i < 2 * TILE; i += blockDim.x) tiles[i] = i % 12 < 4 ? 2.0f : 1.0f;
  __syncthreads();
  const float* const own = tiles + threadIdx.x % 32 * 12;
  float sums[4][8] = {};
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn) {
    const float* const at = own + turn % 2 * TILE;
    const Vec<4> left = load<4>(at), low = load<4>(at + 4), high = load<4>(at + 8);
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n)
        sums[m][n] = fmaf(left.at[m], n < 4 ? low.at[n] : high.at[n - 4], sums[m][n]);
  }
  float sum = 0;
#pragma unroll
  for (int m = 0; m < 4; ++m)
#pragma unroll
    for (int n = 0; n < 8; ++n) sum += sums[m][n];
  y[thread_index()] = sum;
}
