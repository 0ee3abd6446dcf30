// What the lanes of a warp do together.
#include "ptx.cuh"

enum class Defect {
  NONE,
  NO_SYNCWARP,
  LANE_MISSING,
  LANE_NOT_IN_MASK,
  MASKS_DIFFER,
  OTHER_LINE,
  OTHER_OPERATION,
};

// y = for each lane the sum over its warp, half of it by shuffles, half through shared memory.
template <int THREADS>
__global__ void sum(const float* x, float* y, Defect defect) {
  __shared__ float staged[THREADS];
  const int i = threadIdx.x, lane = i % 32;
  float total = x[i];
  unsigned mask = ~0u;
  if (defect == Defect::LANE_NOT_IN_MASK && i == 5) mask = ~(1u << 5);
  if (defect == Defect::MASKS_DIFFER && i == 5) mask = 0x7fffffffu;
  if (defect == Defect::LANE_MISSING && i == 5) {
    __syncthreads();
  } else if (defect == Defect::OTHER_LINE && i == 5) {
    total += __shfl_xor_sync(mask, total, 1);
  } else if (defect == Defect::OTHER_OPERATION && i == 5) {
    total = __ballot_sync(mask, total > 0.0f);
  } else {
    total += __shfl_xor_sync(mask, total, 1);
  }
  for (int flip = 2; flip < 8; flip *= 2) total += __shfl_xor_sync(~0u, total, flip);
  for (int flip = 8; flip < 32; flip *= 2) {
    staged[i] = total;
    __syncwarp();
    total += staged[i ^ flip];
    if (defect != Defect::NO_SYNCWARP) __syncwarp();
  }
  y[i] = total;
}

// One row of y a function: what each lane of one warp gets.
__global__ void shuffles(const int* x, int* y) {
  const int lane = threadIdx.x, value = x[lane];
  y[0 * 32 + lane] = __shfl_sync(~0u, value, lane * 7);
  y[1 * 32 + lane] = __shfl_sync(~0u, value, 3, 8);
  y[2 * 32 + lane] = __shfl_up_sync(~0u, value, 3);
  y[3 * 32 + lane] = __shfl_up_sync(~0u, value, 3, 16);
  y[4 * 32 + lane] = __shfl_down_sync(~0u, value, 5);
  y[5 * 32 + lane] = __shfl_down_sync(~0u, value, 5, 8);
  y[6 * 32 + lane] = __shfl_xor_sync(~0u, value, 9);
  y[7 * 32 + lane] = __shfl_xor_sync(~0u, value, 9, 8);
  y[8 * 32 + lane] = int(__ballot_sync(~0u, value > 0));
  y[9 * 32 + lane] = __any_sync(~0u, value > 1000);
  y[10 * 32 + lane] = __all_sync(~0u, value <= 1000);
  y[11 * 32 + lane] = __reduce_add_sync(~0u, value);
  y[12 * 32 + lane] = __reduce_min_sync(~0u, value);
  y[13 * 32 + lane] = int(__reduce_or_sync(~0u, unsigned(value)));
  y[14 * 32 + lane] = int(__shfl_xor_sync(~0u, (long long)value << 32, 1) >> 32);
  // Two halves of a warp, each by itself: the first meets twice while the second meets once.
  const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
  int part = __reduce_max_sync(half, value);
  if (lane < 16) part = __shfl_sync(half, part + lane, 3);
  y[15 * 32 + lane] = part;
  // Pairs, the first of which go on before others have looked at what all handed over.
  const int opposite = __shfl_sync(~0u, value, 31 - lane);
  y[16 * 32 + lane] = opposite;
  y[17 * 32 + lane] = __shfl_xor_sync(3u << (lane & ~1), opposite * 3 + lane, 1);
  // Lanes that have returned are not waited for; what they would have handed over is undefined.
  if (lane >= 20) {
    for (int i = 0; i < 3; ++i) __syncwarp(0xfff00000u);
    return;
  }
  y[18 * 32 + lane] = __shfl_xor_sync(~0u, value, 1);
  y[19 * 32 + lane] = int(__activemask());
}

// Every thread of every block works on the same few numbers.
__global__ void atomics(const int* x, int* y, float* sum) {
  const int value = x[blockIdx.x * blockDim.x + threadIdx.x];
  atomicAdd(&y[0], value);
  atomicSub(&y[1], value);
  atomicMax(&y[2], value);
  atomicMin(&y[3], value);
  atomicOr(&y[4], value);
  atomicAnd(&y[5], value);
  atomicInc(reinterpret_cast<unsigned*>(&y[6]), 99u);
  for (int seen = atomicAdd(&y[7], 0), was = seen - 1; was != seen;) {
    was = seen;
    seen = atomicCAS(&y[7], was, was + value);
  }
  if (atomicExch(&y[8], 1) == 0) y[9] = 1;
  atomicAdd(sum, float(value));
}
