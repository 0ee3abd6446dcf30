// Sums each row of a block through shared memory, `ROUNDS` times; the planted defects leave out one
// of the two barriers.
#include "../../../kernels/src/ptx.cuh"

enum class Defect { NONE, NO_BARRIER_AFTER_WRITE, NO_BARRIER_AFTER_READ };

template <int THREADS, int ROUNDS, Defect DEFECT>
__global__ void rotate(const float* __restrict__ x, float* __restrict__ y) {
  __shared__ float staged[THREADS];
  const int i = threadIdx.x;
  float value = x[blockIdx.x * THREADS + i];
  for (int round = 0; round < ROUNDS; ++round) {
    staged[i] = value;
    if (DEFECT != Defect::NO_BARRIER_AFTER_WRITE) __syncthreads();
    value = staged[(i + 1) % THREADS];
    if (DEFECT != Defect::NO_BARRIER_AFTER_READ) __syncthreads();
  }
  y[blockIdx.x * THREADS + i] = value;
}
