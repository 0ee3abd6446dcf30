// Threads that hand values to each other through shared memory, and what goes wrong without the
// barriers between.
#include "ptx.cuh"

enum class Defect {
  NONE,
  NO_BARRIER_AFTER_WRITE,
  NO_BARRIER_AFTER_READ,
  BARRIER_IN_ONE_BRANCH,
  BARRIER_IN_EACH_BRANCH,
};

// y is x moved on by ROUNDS places within each block.
template <int THREADS, int ROUNDS>
__global__ void rotate(const float* __restrict__ x, float* __restrict__ y, Defect defect) {
  __shared__ float staged[THREADS];
  const int i = threadIdx.x;
  float value = x[blockIdx.x * THREADS + i];
  for (int round = 0; round < ROUNDS; ++round) {
    staged[i] = value;
    if (defect != Defect::NO_BARRIER_AFTER_WRITE) __syncthreads();
    value = staged[(i + 1) % THREADS];
    if (defect != Defect::NO_BARRIER_AFTER_READ) __syncthreads();
  }
  if (defect == Defect::BARRIER_IN_ONE_BRANCH) {
    if (i != 5) __syncthreads();
    __syncwarp();
    if (i == 5) __syncthreads();
  }
  if (defect == Defect::BARRIER_IN_EACH_BRANCH) {
    if (i < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  }
  y[blockIdx.x * THREADS + i] = value;
}

// y[0] = how many threads have x > 0, y[1] = whether any has, y[2] = whether all have.
__global__ void predicates(const float* x, int* y) {
  if (threadIdx.x == blockDim.x - 1)
    return;  // a barrier waits for those only that have not returned
  const bool positive = x[threadIdx.x] > 0.0f;
  const int count = __syncthreads_count(positive);
  const int any = __syncthreads_or(positive);
  const int all = __syncthreads_and(positive);
  if (threadIdx.x == 0) y[0] = count, y[1] = any, y[2] = all;
}
