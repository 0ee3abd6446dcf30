// Blocks that leave values to the one that comes last, by a counter: as a split sum does.
#include "ptx.cuh"

enum class Defect {
  NONE,
  NO_BARRIER,
  NO_FENCE,
  NO_FENCE_BEHIND,
  PLAIN_LOAD,
  FENCE_BEFORE_BARRIER,
};

// y[i] = the sum of x[block * THREADS + i] over all blocks.
template <int THREADS>
__global__ void sum_blocks(const float* x, float* partial, float* y, unsigned* arrived,
                           Defect defect) {
  __shared__ bool last;
  const int i = threadIdx.x;
  partial[blockIdx.x * THREADS + i] = x[blockIdx.x * THREADS + i];
  if (defect == Defect::FENCE_BEFORE_BARRIER && i == 0) __threadfence();
  if (defect != Defect::NO_BARRIER) __syncthreads();
  if (i == 0) {
    if (defect != Defect::NO_FENCE && defect != Defect::FENCE_BEFORE_BARRIER) __threadfence();
    last = atomicAdd(arrived, 1u) == gridDim.x - 1;
    if (defect != Defect::NO_FENCE_BEHIND) __threadfence();
  }
  __syncthreads();
  if (!last) return;
  float sum = 0.0f;
  for (int b = 0; b < int(gridDim.x); ++b) {
    // A neighbour's place, which this thread did not write in its own block either.
    const float* left = partial + b * THREADS + (i + 1) % THREADS;
    sum += defect == Defect::PLAIN_LOAD ? *left : __ldcg(left);
  }
  y[i] = sum;
}

// Two blocks of one thread: the first leaves a value and then says so, the second looks whether it
// was said. `seen` becomes the value, or -1 where nothing was said.
enum class Saying { FENCED, UNFENCED };

__global__ void say(float* value, unsigned* said, float* seen, unsigned* arrived, Saying saying) {
  if (blockIdx.x == 0) {
    *value = 7.0f;
    if (saying == Saying::FENCED) __threadfence();
    *static_cast<volatile unsigned*>(said) = 1;
    atomicAdd(arrived, 1u);  // where it may be left for the other
  } else {
    const bool is = *static_cast<volatile unsigned*>(said) == 1;
    __threadfence();
    *seen = is ? __ldcg(value) : -1.0f;
  }
}
