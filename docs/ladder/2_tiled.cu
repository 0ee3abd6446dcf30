// Step 2. Tiles: a block of 64 threads computes 32 pixels × 32 filters, and reads what they share
// into shared memory once, 8 channels at a time. A thread keeps 4×4 sums in registers, so that each
// number that it loads from shared memory is multiplied four times.
#include "image.cuh"
#include "product.cuh"

__global__ void tiled(const float* x, const float* __restrict__ weight, float* y, int size,
                      int channels, int filters) {
  const int first = blockIdx.x * 32, left = blockIdx.y * 32;
  float sums[4][4] = {};
  for (int tap = 0; tap < 9; ++tap)
    for (int begin = 0; begin < channels; begin += 8)
      multiply(
          sums,
          [&](int i, int c) {
            const int place = first + i;
            const int row = place / size + tap / 3 - 1, column = place % size + tap % 3 - 1;
            return place < size * size ? pixel(x, row, column, begin + c, size, channels) : 0.0f;
          },
          [&](int c, int j) { return weight[(tap * channels + begin + c) * filters + left + j]; });
  for (int i = 0; i < 4; ++i) {
    const int place = first + threadIdx.x / 8 * 4 + i;
    for (int j = 0; j < 4; ++j)
      if (place < size * size) y[place * filters + left + threadIdx.x % 8 * 4 + j] = sums[i][j];
  }
}
