// Shared by the matrix products on tensor cores: precisions, sums, and products of warpgroups.
#pragma once

#include "channels.cuh"
#include "wgmma.cuh"

// kernels/problems/precision.py, those that tensor cores compute.
enum class Precision { TF32, TF32X3, FP16 };

// kernels/problems/conv.py, Projection: a 1x1 convolution of the residual, which is added instead.
struct Projection {
  int channels;  // 0 where the residual, if there is one, is added as it is
  int input[3];
  int stride[3];
};

template <Precision PRECISION>
struct Stored {
  using Element = float;
};
template <>
struct Stored<Precision::FP16> {
  using Element = Half;
};
template <Precision PRECISION>
using Element = typename Stored<PRECISION>::Element;

template <int M, int N>
using Sums = float[M][N][4];

// Begins the products of 64 pixels, a warpgroup's, with all filters of a chunk of 128 bytes. Its
// tiles lie at `x` and at `weight` from `chunk`; `lane` is where ldmatrix has this lane's row of x.
// Sums are stored, not added to what there is, unless `add`.
template <Precision PRECISION, int M, int N>
__device__ __forceinline__ void begin_products(Sums<M, N>& sums, const unsigned char* chunk, int x,
                                               int weight, int lane, bool add) {
  constexpr int STEPS = 4;  // of 32 bytes of the inner dimension
  const unsigned begin = shared_address(chunk);
  const unsigned long long a = wgmma_tile(begin + x), b = wgmma_tile(begin + weight);
  unsigned pixels[STEPS][4];
  if constexpr (PRECISION == Precision::TF32) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      ldmatrix_x4(pixels[step], chunk + (lane ^ step * 32));
#pragma unroll
      for (int i = 0; i < 4; ++i) pixels[step][i] = to_tf32(__uint_as_float(pixels[step][i]));
    }
  }
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    const bool adds = add || step > 0;
    const unsigned long long of_step = b + unsigned(step) * 2;
    if constexpr (PRECISION == Precision::TF32)
      wgmma_tf32(in_a_row(sums), pixels[step], of_step, adds);
    else
      wgmma_f16(in_a_row(sums), a + unsigned(step) * 2, of_step, adds);
  }
  wgmma_commit();
}
