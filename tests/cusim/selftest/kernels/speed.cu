// What the simulator's speed is measured on: threads that do little but meet.
#include "ptx.cuh"

// A thread-step a round.
__global__ void barriers(float* y, int rounds) {
  float value = 1.0f;
  for (int round = 0; round < rounds; ++round) {
    __syncthreads();
    value += 1.0f;
  }
  y[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

__global__ void shuffles(float* y, int rounds) {
  float value = threadIdx.x;
  for (int round = 0; round < rounds; ++round) value = __shfl_xor_sync(~0u, value, 1);
  y[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

// A warp's product of 16x8 by 8x8 a round; then one of 16x16 by 16x8.
__global__ void products_tf32(float* y, int rounds) {
  unsigned a[4] = {}, b[2] = {};
  float c[4] = {};
  for (int round = 0; round < rounds; ++round) mma_m16n8k8_tf32(c, a, b);
  y[blockIdx.x * blockDim.x + threadIdx.x] = c[0];
}

__global__ void products_f16(float* y, int rounds) {
  unsigned a[4] = {}, b[2] = {};
  float c[4] = {};
  for (int round = 0; round < rounds; ++round) mma_m16n8k16_f16(c, a, b);
  y[blockIdx.x * blockDim.x + threadIdx.x] = c[0];
}

// Threads that never wait: one step each.
__global__ void independent(float* y, int rounds) {
  y[blockIdx.x * blockDim.x + threadIdx.x] = float(rounds);
}
