// Launches that may begin before the ones before them have ended, and what they must not do then.
#include "dependent.cuh"

enum class Defect { NONE, READS_EARLY, WRITES_EARLY, COPIES_EARLY, ADDS_EARLY, NEVER_WAITS };

// y[i] = x[i] + weight[i], a weight taken to shared memory before the wait.
template <int THREADS>
__global__ void add_weight(const float* x, const float* weight, float* y, Defect defect) {
  __shared__ float early[THREADS], copied[THREADS];
  const int thread = threadIdx.x, i = blockIdx.x * THREADS + thread;
  let_next_begin();
  early[thread] = weight[i];
  __syncthreads();  // threads wait in two places: here, and for the launch before
  float value = 0.0f;
  if (defect == Defect::READS_EARLY) value = x[i];
  if (defect == Defect::WRITES_EARLY) y[i] = early[thread];
  if (defect == Defect::ADDS_EARLY) atomicAdd(y + i, 0.0f);
  if (defect == Defect::COPIES_EARLY) cp_async<4>(copied + thread, x + i);
  if (defect != Defect::NEVER_WAITS) wait_for_previous();
  if (defect == Defect::COPIES_EARLY) {
    cp_async_commit();
    cp_async_wait<0>();
    value = copied[thread];
  } else if (defect != Defect::READS_EARLY) {
    value = x[i];
  }
  __syncthreads();
  y[i] = value + early[THREADS - 1 - thread];
}

// y[i] = x[i] + 1, x loaded as what no one writes.
__global__ void add_one(const float* __restrict__ x, float* y) {
  follow_previous();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[i] + 1.0f;
}

enum class Trigger { FIRST, BEFORE_STORE, NEVER };

// y[i] = i, the next launch let begin at any place.
__global__ void count(float* y, Trigger trigger) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (trigger == Trigger::FIRST) let_next_begin();
  wait_for_previous();
  if (trigger == Trigger::BEFORE_STORE) let_next_begin();
  y[i] = float(i);
}

// y[i] = x[i], read before the wait: what x holds when this begins.
__global__ void peek(const float* x, float* y) {
  let_next_begin();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float early = x[i];
  wait_for_previous();
  y[i] = early;
}
