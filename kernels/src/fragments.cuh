// Multiplies a warp's fragments with mma.sync, at the precisions that tensor_gemm.cu describes.
#pragma once

#include "tensor_gemm.cuh"

// Floats to TF32 numbers; `small` is what they lack, but for 2^-22 of them. What has no finite
// `big` is all `small`: infinity, of which the next product would else be infinity - infinity, and
// NaN. Weights are FINITE.
template <bool FINITE, int COUNT>
__device__ __forceinline__ void split_tf32(unsigned (&big)[COUNT], unsigned (&small)[COUNT]) {
  constexpr unsigned KEPT = 0xffffe000;  // of a float's bits, by TF32
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const auto x = __uint_as_float(big[i]);
    big[i] = (big[i] + 0x1000) & KEPT;  // the nearest
    if (!FINITE && !(fabsf(__uint_as_float(big[i])) < infinity())) big[i] = 0;
    small[i] = __float_as_uint(x - __uint_as_float(big[i])) & KEPT;
  }
}

// The factors of one step: 32 bytes of the inner dimension of a warp's rows of a, and of b.
template <int M, int N>
struct Fragments {
  unsigned a[M][4], b[N][2];
};

template <Precision PRECISION, int M, int N>
__device__ __forceinline__ void multiply(Sums<M, N>& sums, const Fragments<M, N>& factors,
                                         const Fragments<M, N>& others) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
      if constexpr (PRECISION == Precision::FP16)
        mma_m16n8k16_f16(sums[m][n], factors.a[m], others.b[n]);
      else
        mma_m16n8k8_tf32(sums[m][n], factors.a[m], others.b[n]);
}

// Adds the products of one step. Where b are WEIGHTS, they are finite, and TF32 numbers already.
template <Precision PRECISION, bool WEIGHTS, int M, int N>
__device__ __forceinline__ void multiply_step(Sums<M, N>& sums, Fragments<M, N>& factors) {
  if constexpr (PRECISION == Precision::TF32X3) {
    Fragments<M, N> small;
#pragma unroll
    for (int m = 0; m < M; ++m) split_tf32<false>(factors.a[m], small.a[m]);
#pragma unroll
    for (int n = 0; n < N; ++n) split_tf32<WEIGHTS>(factors.b[n], small.b[n]);
    Sums<M, N> step = {};
    multiply<PRECISION>(step, small, factors);
    multiply<PRECISION>(step, factors, small);
    multiply<PRECISION>(step, factors, factors);
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] += step[m][n][i];
  } else {
    if constexpr (PRECISION == Precision::TF32) {
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) factors.a[m][i] = to_tf32(__uint_as_float(factors.a[m][i]));
#pragma unroll
      for (int n = 0; n < N && !WEIGHTS; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) factors.b[n][i] = to_tf32(__uint_as_float(factors.b[n][i]));
    }
    multiply<PRECISION>(sums, factors, factors);
  }
}
