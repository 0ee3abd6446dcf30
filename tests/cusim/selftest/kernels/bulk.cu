// Bulk copies by one thread, and the barriers by which others know of them.
#include "bulk.cuh"
#include "wgmma.cuh"

enum class Defect {
  NONE,
  NO_INIT_FENCE,
  NO_BARRIER_AFTER_INIT,
  NOT_INITIALISED,
  INITIALISED_TWICE,
  NO_ARRIVALS,
  OVERWRITTEN,
  EXPECTS_NOTHING,
  EXPECTS_TOO_FEW,
  EXPECTS_TOO_MANY,
  EXPECTS_BEYOND_COUNTER,
  NO_WAIT,
  WRONG_PARITY,
  NO_PARITY,
  REFILLED_TOO_SOON,
  ARRIVES_TWICE,
  ARRIVES_NEVER,
  MISALIGNED,
  SOURCE_PAST_END,
  TARGET_PAST_END,
  RETURNS_WITH_COPIES,
};

// y[i] = the sum over `chunks` of x[chunk][i], of which two are on their way at a time; 4 warps
// add, and one copies.
__global__ void sum_chunks(const float4* x, float4* y, int chunks, Defect defect) {
#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 900
  constexpr int STAGES = 2, ADDING = 128, BYTES = ADDING * 16;
  SWIZZLED_SHARED(float4, staged);
  __shared__ unsigned long long full[STAGES], empty[STAGES];
  const int thread = threadIdx.x;
  if (thread == 0) {
    for (int i = 0; i < STAGES; ++i) {
      if (defect != Defect::NOT_INITIALISED)
        mbarrier_init(full + i, defect == Defect::NO_ARRIVALS ? 0 : 1);
      mbarrier_init(empty + i, ADDING / 32);
    }
    if (defect == Defect::INITIALISED_TWICE) mbarrier_init(full, 1);
    if (defect != Defect::NO_INIT_FENCE) fence_proxy_async();
    if (defect == Defect::OVERWRITTEN) full[1] = 0;
  }
  if (defect != Defect::NO_BARRIER_AFTER_INIT) __syncthreads();
  if (thread >= ADDING) {
    if (thread > ADDING) return;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int stage = chunk % STAGES;
      if (chunk >= STAGES && defect != Defect::REFILLED_TOO_SOON)
        mbarrier_wait(empty + stage, (chunk / STAGES - 1) & 1);
      const float4* from = x + chunk * ADDING;
      float4* to = staged + stage * ADDING;
      int bytes = BYTES;
      if (defect == Defect::MISALIGNED) bytes -= 4;
      if (defect == Defect::SOURCE_PAST_END && chunk == chunks - 1) from += 1;
      if (defect == Defect::TARGET_PAST_END && stage == 1) to += 1;
      int expected = bytes;
      if (defect == Defect::EXPECTS_TOO_FEW) expected -= 16;
      if (defect == Defect::EXPECTS_TOO_MANY) expected += 16;
      if (defect == Defect::EXPECTS_BEYOND_COUNTER) expected = 1 << 20;
      if (defect == Defect::EXPECTS_NOTHING)
        mbarrier_arrive(full + stage);
      else
        mbarrier_expect(full + stage, expected);
      if (defect == Defect::ARRIVES_TWICE) mbarrier_arrive(full + stage);
      copy_bulk(to, from, bytes, full + stage);
    }
    if (defect == Defect::RETURNS_WITH_COPIES) {
      mbarrier_wait(empty, (chunks / STAGES - 1) & 1);
      mbarrier_wait(empty + 1, (chunks / STAGES - 1) & 1);
      copy_bulk(staged, x, BYTES, full);
    }
    return;
  }
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int stage = chunk % STAGES;
    int parity = chunk / STAGES & 1;
    if (defect == Defect::WRONG_PARITY) parity ^= 1;
    if (defect == Defect::NO_PARITY) parity = 2;
    if (defect != Defect::NO_WAIT) mbarrier_wait(full + stage, parity);
    const float4 four = staged[stage * ADDING + (thread + 1) % ADDING];
    sum = make_float4(sum.x + four.x, sum.y + four.y, sum.z + four.z, sum.w + four.w);
    __syncwarp();
    if (thread % 32 == 0 && defect != Defect::ARRIVES_NEVER) mbarrier_arrive(empty + stage);
  }
  y[(thread + 1) % ADDING] = sum;
#endif
}

struct Place {
  int at[4], tap[2], shift;
};

// What a tensor copy of one tile leaves in shared memory, y being as large.
template <bool PIXELS>
__global__ void copy_tensor(const __grid_constant__ TensorMap map, Place place, float4* y,
                            int vectors) {
#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 900
  SWIZZLED_SHARED(float4, staged);
  __shared__ unsigned long long barrier;
  if (threadIdx.x == 0) {
    mbarrier_init(&barrier, 1);
    fence_proxy_async();
    mbarrier_expect(&barrier, vectors * 16);
    if constexpr (PIXELS)
      copy_pixels(staged + place.shift, map, place.at[0], place.at[1], place.at[2], place.at[3],
                  place.tap[0], place.tap[1], &barrier);
    else
      copy_tile(staged + place.shift, map, place.at[0], place.at[1], &barrier);
  }
  __syncthreads();
  mbarrier_wait(&barrier, 0);
  for (int i = int(threadIdx.x); i < vectors; i += int(blockDim.x)) y[i] = staged[i];
#endif
}
