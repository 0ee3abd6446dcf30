// Step 5. Split channels: a small layer has fewer blocks than a GPU has multiprocessors. Each of
// gridDim.z blocks sums a part of the channels, and a second launch adds the parts. Outputs are
// added, not products: the inverse transform is linear, and outputs are fewer.
#include "fused.cuh"

__global__ void __launch_bounds__(256)
    split(const float* x, const float* __restrict__ u, float* parts, int size, int channels,
          int filters, int tiles) {
  const int each = channels / gridDim.z, begin = blockIdx.z * each;
  float* const part = parts + blockIdx.z * size * size * filters;
  fused_block(x, u, part, size, channels, filters, tiles, begin, begin + each, [] {});
}

__global__ void add_parts(const float* parts, float* y, int count, int splits) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float sum = 0.0f;
  for (int part = 0; part < splits; ++part) sum += parts[part * count + i];
  y[i] = sum;
}
