// Step 6. Dependent launch: a kernel begins while the one before still runs, computes addresses and
// loads its first weights, which no kernel writes, and only then waits. The gap between two
// launches shrinks; what step 5 reads and writes stays the same.
#include "dependent.cuh"
#include "fused.cuh"

__global__ void __launch_bounds__(256)
    split_early(const float* x, const float* __restrict__ u, float* parts, int size, int channels,
                int filters, int tiles) {
  let_next_begin();
  const int each = channels / gridDim.z, begin = blockIdx.z * each;
  float* const part = parts + blockIdx.z * size * size * filters;
  fused_block(x, u, part, size, channels, filters, tiles, begin, begin + each,
              [] { wait_for_previous(); });
}

__global__ void add_parts_early(const float* parts, float* y, int count, int splits) {
  let_next_begin();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  wait_for_previous();
  if (i >= count) return;
  float sum = 0.0f;
  for (int part = 0; part < splits; ++part) sum += parts[part * count + i];
  y[i] = sum;
}
