// Step 1. The sum by its definition: a thread computes one output, of one pixel and filter.
//
// Neighbouring threads have neighbouring filters, so that a warp reads 32 weights side by side and
// one pixel for all. Nothing is read once: a weight is read for every pixel, and a pixel 9·K times.
#include "image.cuh"

__global__ void direct(const float* x, const float* __restrict__ weight, float* y, int size,
                       int channels, int filters) {
  const int filter = blockIdx.y * 32 + threadIdx.x % 32;
  const int place = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (place >= size * size) return;
  float sum = 0.0f;
  for (int tap = 0; tap < 9; ++tap) {
    const int row = place / size + tap / 3 - 1, column = place % size + tap % 3 - 1;
    for (int c = 0; c < channels; ++c)
      sum += pixel(x, row, column, c, size, channels) *
             weight[(tap * channels + c) * filters + filter];
  }
  y[place * filters + filter] = sum;
}
