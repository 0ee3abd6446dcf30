// Resamples images: resizes them, or pads them with pixels of the image itself.
//
//   y[p, q] = sum over i, j of h[p, i] * w[q, j] * x[h'[p, i], w'[q, j]], for every channel
//
// Algorithm: each thread computes V neighbouring channels of one output pixel. A table for each
//   axis gives the positions that an output reads, and a factor for each: one position for nearest
//   neighbours and reflected padding, two for linear interpolation. The tables are short and stay
//   in the caches.
// Layouts: N·D·H·W pixels with any pitch in, N·O·P·Q out. 2-D images have depth 1 and no table for
//   the depth. A table is P × T pairs of a position and a factor.
// Launch: one dimension, one thread per output pixel and channel vector, the last block partial.
#include "common.cuh"
#include "half.cuh"

struct Resampling {
  int input[3];       // D, H, W
  Divisor output[3];  // O, P, Q
  int taps[3];        // of each output position
};

struct Tap {
  int position;
  float factor;
};

__device__ __forceinline__ Tap tap_of(const float* table, int index) {
  if (table == nullptr) return {0, 1.0f};
  const Vec<2> pair = load<2>(table + 2 * index);
  return {int(pair.at[0]), pair.at[1]};
}

template <class T, int V>
__global__ void __launch_bounds__(256, 4)
    resample(const T* x, const float* __restrict__ depths, const float* __restrict__ heights,
             const float* __restrict__ widths, T* y, int steps, Divisor vectors, int x_pitch,
             int y_pitch, Resampling sizes) {
  follow_previous();
  unsigned index = thread_index();
  if (index >= unsigned(steps)) return;
  const unsigned channel = peel(index, vectors) * V;
  T* const to = y + index * y_pitch + channel;
  const int q = int(peel(index, sizes.output[2])) * sizes.taps[2];
  const int p = int(peel(index, sizes.output[1])) * sizes.taps[1];
  const int o = int(peel(index, sizes.output[0])) * sizes.taps[0];
  const int image = int(index) * sizes.input[0];

  Vec<V> sum = splat<V>(0.0f);
  for (int t = 0; t < sizes.taps[0]; ++t) {
    const Tap depth = tap_of(depths, o + t);
    for (int r = 0; r < sizes.taps[1]; ++r) {
      const Tap height = tap_of(heights, p + r);
      const int row =
          ((image + depth.position) * sizes.input[1] + height.position) * sizes.input[2];
      for (int s = 0; s < sizes.taps[2]; ++s) {
        const Tap width = tap_of(widths, q + s);
        const float factor = depth.factor * height.factor * width.factor;
        const Vec<V> seen = load<V>(x + (row + width.position) * x_pitch + channel);
#pragma unroll
        for (int i = 0; i < V; ++i) sum.at[i] = fmaf(factor, seen.at[i], sum.at[i]);
      }
    }
  }
  store<V>(to, sum);
}
