// Pooling over windows and over whole images, in every variant that ONNX has.
//
// `pool`: each thread computes V neighbouring channels of one output pixel, and loops over the
//   window's taps inside the image. Consecutive threads read consecutive channels. Neighbouring
//   windows overlap; their common inputs come from the caches.
//   A row of three taps, the usual window, is loaded at once. Without the bound of 4 blocks per
//   multiprocessor, ptxas spilled up to 20 bytes per thread on sm_100, so that more blocks fit.
//   Launch: one dimension, one thread per output pixel and channel vector, the last block partial.
// `global_pool`: a block computes 32 channels of one image. Each of its ROWS warps loops over every
//   ROWS-th pixel, then the first warp adds the others' results in order.
//   Launch: (ceil(C / 32), N) blocks of 32 × ROWS threads. A thread has one channel and no vector:
//   with vectors N = 1 would have too few blocks, and a warp already reads 128 contiguous bytes.
// Layouts: N·D·H·W pixels with any pitch in, N·O·P·Q out. 2-D images have depth 1.
#include "bytes.cuh"
#include "half.cuh"
#include "window.cuh"

enum class PoolKind {
  MAX,
  AVERAGE,         // divided by the positions inside the image
  AVERAGE_PADDED,  // by those inside the padded image
};

// One more element. NaN stays NaN, which fmaxf would hide.
template <PoolKind KIND>
__device__ __forceinline__ float combine(float so_far, float seen) {
  if constexpr (KIND == PoolKind::MAX) return seen > so_far || seen != seen ? seen : so_far;
  return so_far + seen;
}

template <PoolKind KIND>
__device__ __forceinline__ float nothing_seen() {
  return KIND == PoolKind::MAX ? -infinity() : 0.0f;
}

template <class T, PoolKind KIND, int V>
__global__ void __launch_bounds__(256, 4)
    pool(const T* x, T* y, int steps, Divisor vectors, int x_pitch, int y_pitch, Window window) {
  follow_previous();
  unsigned index = thread_index();
  if (index >= unsigned(steps)) return;
  const unsigned channel = peel(index, vectors) * V;
  T* const to = y + index * y_pitch + channel;

  int start[3];
  Taps taps[3];
  int positions = 1;
#pragma unroll
  for (int axis = 2; axis >= 0; --axis) {
    const int size = window.input[axis];
    const int at = int(peel(index, window.output[axis]));
    start[axis] = at * window.stride[axis] - window.pad_begin[axis];
    taps[axis] = taps_within(window, axis, start[axis], 0, size);
    if constexpr (KIND == PoolKind::AVERAGE) positions *= taps[axis].count();
    if constexpr (KIND == PoolKind::AVERAGE_PADDED)
      positions *= taps_within(window, axis, start[axis], -window.pad_begin[axis],
                               size + window.pad_end[axis])
                       .count();
  }

  // Floats from one tap to the next along an axis, and to the first, which may lie in the padding.
  const int to_s = window.dilation[2] * x_pitch;
  const int to_r = window.dilation[1] * window.input[2] * x_pitch;
  const int to_t = window.dilation[0] * window.input[1] * window.input[2] * x_pitch;
  const int image = int(index) * window.input[0];
  const int first =
      (((image + start[0]) * window.input[1] + start[1]) * window.input[2] + start[2]) * x_pitch +
      int(channel);

  Vec<V> result = splat<V>(nothing_seen<KIND>());
  for (int t = taps[0].first; t < taps[0].last; ++t) {
    for (int r = taps[1].first; r < taps[1].last; ++r) {
      const int row = first + t * to_t + r * to_r;
#pragma unroll 3
      for (int s = taps[2].first; s < taps[2].last; ++s) {
        const Vec<V> seen = load<V>(x + row + s * to_s);
#pragma unroll
        for (int i = 0; i < V; ++i) result.at[i] = combine<KIND>(result.at[i], seen.at[i]);
      }
    }
  }
  if constexpr (KIND != PoolKind::MAX) {
#pragma unroll
    for (int i = 0; i < V; ++i) result.at[i] /= float(positions);
  }
  store<V>(to, result);
}

template <class T, PoolKind KIND, int ROWS>
__global__ void __launch_bounds__(32 * ROWS)
    global_pool(const T* x, T* y, int channels, int pixels, int x_pitch, int y_pitch) {
  follow_previous();
  __shared__ float partial[ROWS][32];
  const int channel = blockIdx.x * 32 + threadIdx.x;
  const int row = threadIdx.y;
  const T* const image = x + blockIdx.y * pixels * x_pitch;
  float result = nothing_seen<KIND>();
  if (channel < channels) {
    for (int pixel = row; pixel < pixels; pixel += ROWS)
      result = combine<KIND>(result, image[pixel * x_pitch + channel]);
  }
  partial[row][threadIdx.x] = result;
  __syncthreads();
  if (row == 0 && channel < channels) {
#pragma unroll
    for (int other = 1; other < ROWS; ++other)
      result = combine<KIND>(result, partial[other][threadIdx.x]);
    if constexpr (KIND != PoolKind::MAX) result /= float(pixels);
    y[blockIdx.y * y_pitch + channel] = T(result);
  }
}
