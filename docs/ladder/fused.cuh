// F(2×2, 3×3) of 16 tiles × 32 filters in one block of 256 threads: 16 for each position.
#pragma once
#include "image.cuh"

// Sums the channels from `begin` to before `end` and writes the outputs to y. `wait` is called when
// the first weights are on their way, and before anything is read that another kernel writes.
template <class Wait>
__device__ __forceinline__ void fused_block(const float* x, const float* __restrict__ u, float* y,
                                            int size, int channels, int filters, int tiles,
                                            int begin, int end, const Wait& wait) {
  __shared__ float shared[16 * 16 * 32];  // V and U, then the products
  float (*const v)[8][16] = reinterpret_cast<float (*)[8][16]>(shared);
  float (*const w)[8][32] = reinterpret_cast<float (*)[8][32]>(shared + 16 * 8 * 16);
  const int thread = threadIdx.x, position = thread / 16, in_group = thread % 16;
  const int first = blockIdx.x * 16, left = blockIdx.y * 32;
  const int row = in_group / 4 * 4, column = in_group % 4 * 8;
  float sums[4][8] = {};
  for (int chunk = begin; chunk < end; chunk += 8) {
    __syncthreads();  // the last chunk is read
    for (int i = thread; i < 16 * 8 * 32; i += 256)
      w[i / 256][i / 32 % 8][i % 32] =
          u[(i / 256 * channels + chunk + i / 32 % 8) * filters + left + i % 32];
    if (chunk == begin) wait();
    if (thread < 128) {  // a thread transforms one tile of one channel, side by side in memory
      float d[16] = {};
      if (first + thread / 8 < tiles)
        load_tile(x, first + thread / 8, chunk + thread % 8, size, channels, d);
      for (int i = 0; i < 16; ++i) v[i][thread % 8][thread / 8] = d[i];
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < 8; ++c)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j)
          sums[i][j] += v[position][c][row + i] * w[position][c][column + j];
  }
  __syncthreads();
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 8; ++j) shared[(position * 16 + row + i) * 32 + column + j] = sums[i][j];
  __syncthreads();
  for (int i = thread; i < 16 * 32; i += 256) {  // a thread transforms two tiles of a filter back
    float m[16];
    for (int at = 0; at < 16; ++at) m[at] = shared[at * 512 + i];
    if (first + i / 32 < tiles) store_tile(m, y, first + i / 32, left + i % 32, size, filters);
  }
}
