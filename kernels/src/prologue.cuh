// The start of a product of pixels and filters, applied to x in shared memory:
// x' = activation((x - mean) / sqrt(variance + epsilon) * scale + shift).
//
// A thread applies it to the numbers that it copied itself, before the barrier after which others
// read them, so no barrier is added. Channels beyond the last become activation(0), or NaN if the
// whole pixel is NaN; their weights are zeros.
#pragma once

#include "channels.cuh"

// kernels/problems/prologue.py: a scale and a shift a channel, without or with the mean and the
// variance of each pixel's channels.
enum class Prologue { NONE, SCALE_SHIFT, LAYER_NORM };

// Adds up the numbers of LANES neighbouring lanes, for each of them alike.
template <int LANES, int ROWS>
__device__ __forceinline__ void add_lanes(float (&sums)[ROWS]) {
#pragma unroll
  for (int apart = LANES / 2; apart > 0; apart /= 2)
#pragma unroll
    for (int row = 0; row < ROWS; ++row)
      sums[row] += __shfl_xor_sync(0xffffffffu, sums[row], apart);
}

// What LAYER_NORM subtracts and multiplies by in each of ROWS pixels.
template <Prologue PROLOGUE, int ROWS>
struct Statistics {
  float mean[ROWS], by[ROWS];  // by: 1 / sqrt(variance + epsilon)

  // `four(row, channel)` loads 4 channels, 0 beyond the last. LANES neighbouring lanes read a pixel
  // together, this one from `first` on; all lanes of a warp must call it. The variance is that of
  // the differences from the mean, as in normalise.cu.
  template <int LANES, class Four>
  __device__ __forceinline__ void find(const Four& four, int first, int channels, float epsilon) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row) mean[row] = by[row] = 0.0f;
    for (int channel = first; channel < channels; channel += LANES * 4)
#pragma unroll
      for (int row = 0; row < ROWS; ++row) {
        const Vec<4> x = four(row, channel);
        mean[row] += x.at[0] + x.at[1] + (x.at[2] + x.at[3]);
      }
    add_lanes<LANES>(mean);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) mean[row] /= float(channels);
    for (int channel = first; channel < channels; channel += LANES * 4)
#pragma unroll
      for (int row = 0; row < ROWS; ++row) {
        const Vec<4> x = four(row, channel);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float apart = channel + i < channels ? x.at[i] - mean[row] : 0.0f;
          by[row] = fmaf(apart, apart, by[row]);
        }
      }
    add_lanes<LANES>(by);
#pragma unroll
    for (int row = 0; row < ROWS; ++row)
      by[row] = 1.0f / sqrtf(by[row] / float(channels) + epsilon);
  }

  __device__ __forceinline__ float of(float x, int row) const {
    return PROLOGUE == Prologue::LAYER_NORM ? (x - mean[row]) * by[row] : x;
  }
};
