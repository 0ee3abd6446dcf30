// Step 3. F(2×2, 3×3), its stages apart: Lavin & Gray's algorithm 1 in three launches. 16 products
// for 4 outputs instead of 36; but the transformed data V and the products M, both larger than x
// and y, go through memory. V is 16 × tiles × C, M is 16 × tiles × K, U is 16 × C × K.
#include "image.cuh"
#include "product.cuh"

// A thread transforms one tile of one channel.
__global__ void data_of(const float* x, float* v, int size, int channels, int tiles) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, tile = i / channels;
  if (tile >= tiles) return;
  float d[16];
  load_tile(x, tile, i % channels, size, channels, d);
  for (int position = 0; position < 16; ++position)
    v[(position * tiles + tile) * channels + i % channels] = d[position];
}

// 16 matrix products, one for each of gridDim.z positions, by the tiles of step 2.
__global__ void products(const float* v, const float* __restrict__ u, float* m, int tiles,
                         int channels, int filters) {
  const int first = blockIdx.x * 32, left = blockIdx.y * 32, position = blockIdx.z;
  float sums[4][4] = {};
  for (int begin = 0; begin < channels; begin += 8)
    multiply(
        sums,
        [&](int i, int c) {
          const int tile = first + i;
          return tile < tiles ? v[(position * tiles + tile) * channels + begin + c] : 0.0f;
        },
        [&](int c, int j) { return u[(position * channels + begin + c) * filters + left + j]; });
  for (int i = 0; i < 4; ++i) {
    const int tile = first + threadIdx.x / 8 * 4 + i;
    for (int j = 0; j < 4; ++j)
      if (tile < tiles)
        m[(position * tiles + tile) * filters + left + threadIdx.x % 8 * 4 + j] = sums[i][j];
  }
}

// A thread transforms the products of one tile and filter back.
__global__ void inverse_of(const float* m, float* y, int size, int filters, int tiles) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, tile = i / filters;
  if (tile >= tiles) return;
  float of[16];
  for (int position = 0; position < 16; ++position)
    of[position] = m[(position * tiles + tile) * filters + i % filters];
  store_tile(of, y, tile, i % filters, size, filters);
}
