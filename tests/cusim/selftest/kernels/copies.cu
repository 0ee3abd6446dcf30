// Sums columns of `rows` x THREADS * 4 numbers, the next row on its way while one is added.
#include "ptx.cuh"

enum class Defect {
  NONE,
  NO_WAIT,
  WAITS_FOR_TOO_FEW,
  NO_BARRIER_AFTER_WAIT,
  NO_BARRIER_BEFORE_COPY,
  RETURNS_WITH_COPIES,
  MISALIGNED,
  SOURCE_PAST_END,
  TARGET_PAST_END,
};

template <int THREADS>
__global__ void sum_rows(const float* x, float* y, int rows, Defect defect) {
  DYNAMIC_SHARED(float, staged);  // 2 rows
  constexpr int width = THREADS * 4;
  const int i = threadIdx.x;
  const auto copy = [&](int row) {
    const int astray = defect == Defect::SOURCE_PAST_END ? 4 * THREADS : 0;
    const int shift = defect == Defect::MISALIGNED ? 1 : 0;
    const int beyond = defect == Defect::TARGET_PAST_END ? width : 0;
    cp_async<16>(staged + row % 2 * width + 4 * i + beyond,
                 x + row * width + 4 * i + astray + shift, row < rows);
    cp_async_commit();
  };
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  copy(0);
  for (int row = 0; row < rows; ++row) {
    copy(row + 1);  // past the last, zeros
    if (defect == Defect::WAITS_FOR_TOO_FEW) {
      cp_async_wait<2>();
    } else if (defect != Defect::NO_WAIT) {
      cp_async_wait<1>();
    }
    if (defect != Defect::NO_BARRIER_AFTER_WAIT) __syncthreads();
    // What another thread copied, so that a barrier is needed.
    const float4 four =
        reinterpret_cast<const float4*>(staged + row % 2 * width)[(i + 1) % THREADS];
    sum = make_float4(sum.x + four.x, sum.y + four.y, sum.z + four.z, sum.w + four.w);
    if (defect != Defect::NO_BARRIER_BEFORE_COPY) __syncthreads();
  }
  if (defect != Defect::RETURNS_WITH_COPIES) cp_async_wait<0>();
  reinterpret_cast<float4*>(y)[(i + 1) % THREADS] = sum;
}

// One copy of BYTES a thread, of which the first threadIdx.x % (BYTES + 1) are read.
template <int BYTES>
__global__ void copy_parts(const unsigned char* x, unsigned char* y) {
  __shared__ __align__(16) unsigned char staged[64 * BYTES];
  const int i = threadIdx.x;
  cp_async_part<BYTES>(staged + i * BYTES, x + i * BYTES, i % (BYTES + 1));
  cp_async_commit();
  cp_async_wait<0>();
  for (int j = 0; j < BYTES; ++j) y[i * BYTES + j] = staged[i * BYTES + j];
}

// One copy of BYTES a thread, zeros where the thread's index is odd.
template <int BYTES>
__global__ void copy_even(const unsigned char* x, unsigned char* y) {
  __shared__ __align__(16) unsigned char staged[64 * BYTES];
  const int i = threadIdx.x;
  cp_async<BYTES>(staged + i * BYTES, x + i * BYTES, i % 2 == 0);
  cp_async_commit();
  cp_async_wait<0>();
  for (int j = 0; j < BYTES; ++j) y[i * BYTES + j] = staged[i * BYTES + j];
}
