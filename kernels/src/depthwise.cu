// Depthwise convolution: y = activation(conv(x, weight) + bias + residual), each channel by itself.
//
// Algorithm: memory is the limit, so each element is loaded as few times as possible, 16 bytes at a
//   time. A thread computes 4 neighbouring filters of RUN neighbouring outputs in a row. For each
//   row of the window it loads S filter taps and the (RUN - 1) · STRIDE + S inputs of the run into
//   registers, each once. Consecutive threads take consecutive channels. Inputs that windows in
//   neighbouring rows share come from the caches.
//   S = 0: any width, stride, dilation and number of filters per channel; one output per thread,
//   whose taps are loaded one by one.
//   Bytes: the products with whole weights and their sums are whole numbers, which floats hold
//   exactly below 2^24. Outside an image x is its zero point; requantize.cuh converts sums to
//   bytes. 4 blocks per multiprocessor: without a bound ptxas spilled 8 bytes of <5, 1, 4> on
//   sm_80, and with 7 blocks 40 bytes of <5, 2, 4>. With RUN = 1, registers suffice for 7 blocks.
// Layouts: 2-D; x, residual, y are N·H·W pixels with any pitch. weight is R·S × K, with K padded to
//   a multiple of 4; for bytes the weights are floats. Channels beyond the last are computed but
//   not written; they affect no other channel.
// Launch: one dimension, one thread per run and 4 filters, the last block partial. Runs are short
//   where images are small, so that there are enough threads.
#include "common.cuh"
#include "epilogue.cuh"
#include "requantize.cuh"
#include "window.cuh"

// kernels/convolution/depthwise.py: sizes of one launch.
struct Sizes {
  int steps;           // threads with something to do
  Divisor runs;        // in a row of the output
  Divisor vectors;     // of 4 filters in a pixel
  int filters;         // K
  Divisor multiplier;  // K / C
  int x_pitch;
  int residual_pitch;
  int y_pitch;
  int x_vectors;  // whether every pixel's first channel lies at a vector in x
  int y_vectors;  // likewise in y and in the residual
};

__device__ __forceinline__ void multiply(Vec<4>& sum, const Vec<4>& x, const Vec<4>& weight) {
#pragma unroll
  for (int i = 0; i < 4; ++i) sum.at[i] = fmaf(x.at[i], weight.at[i], sum.at[i]);
}

// The channels that 4 neighbouring filters read, of one pixel.
template <class T>
__device__ __forceinline__ Vec<4> load_inputs(const T* pixel, int filter, const Sizes& sizes) {
  if (sizes.multiplier == 1 && sizes.x_vectors) return load<4>(pixel + filter);
  Vec<4> result = splat<4>(0.0f);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (filter + i < sizes.filters) result.at[i] = pixel[quotient(filter + i, sizes.multiplier)];
  return result;
}

// Computes a thread's sums and passes them to `finish`: the sums, the first filter, the first pixel
// of y, and how many pixels exist. Bytes are *padding outside an image.
template <class T, class Weight, int S, int STRIDE, int RUN, class Finishing>
__device__ __forceinline__ void sum_taps(const T* x, const Weight* weight, const T* padding,
                                         const Sizes& sizes, const Window& window,
                                         const Finishing& finish) {
  follow_previous();
  unsigned index = thread_index();
  if (index >= unsigned(sizes.steps)) return;
  const int filter = int(peel(index, sizes.vectors)) * 4;
  const int first_q = int(peel(index, sizes.runs)) * RUN;
  const int p = int(peel(index, window.output[1]));
  const int image = int(index);

  const int start_h = p * window.stride[1] - window.pad_begin[1];
  const int start_w = first_q * window.stride[2] - window.pad_begin[2];
  const int width = window.input[2];
  const int filters = sizes.vectors * 4;
  // Zeros outside an image are left out; a zero point of bytes is not.
  constexpr bool ALL = sizeof(T) == 1;
  const float outside = ALL ? float(*padding) : 0.0f;
  const Taps rows =
      ALL ? Taps{0, window.kernel[1]} : taps_within(window, 1, start_h, 0, window.input[1]);

  Vec<4> sums[RUN];
#pragma unroll
  for (int q = 0; q < RUN; ++q) sums[q] = splat<4>(0.0f);
  for (int r = rows.first; r < rows.last; ++r) {
    const int h = start_h + r * window.dilation[1];
    const bool is_inside = !ALL || unsigned(h) < unsigned(window.input[1]);
    const T* const row = x + (image * window.input[1] + h) * width * sizes.x_pitch;
    const Weight* const taps = weight + r * window.kernel[2] * filters + filter;
    if constexpr (S > 0) {
      constexpr int MET = (RUN - 1) * STRIDE + S;
      Vec<4> met[MET];
#pragma unroll
      for (int i = 0; i < MET; ++i) {
        const int w = start_w + i;
        met[i] = is_inside && unsigned(w) < unsigned(width)
                     ? load<4>(row + w * sizes.x_pitch + filter)
                     : splat<4>(outside);
      }
#pragma unroll
      for (int s = 0; s < S; ++s) {
        const Vec<4> tap = load<4>(taps + s * filters);
#pragma unroll
        for (int q = 0; q < RUN; ++q) multiply(sums[q], met[q * STRIDE + s], tap);
      }
    } else {
      const Taps columns =
          ALL ? Taps{0, window.kernel[2]} : taps_within(window, 2, start_w, 0, width);
#pragma unroll 2
      for (int s = columns.first; s < columns.last; ++s) {
        const int w = start_w + s * window.dilation[2];
        const bool exists = !ALL || (is_inside && unsigned(w) < unsigned(width));
        multiply(sums[0],
                 exists ? load_inputs(row + w * sizes.x_pitch, filter, sizes) : splat<4>(outside),
                 load<4>(taps + s * filters));
      }
    }
  }

  const int first_pixel = (image * window.output[1] + p) * window.output[2] + first_q;
  finish(sums, filter, first_pixel, window.output[2] - first_q);
}

template <class T, int S, int STRIDE, int RUN, Finish FINISH>
__global__ void __launch_bounds__(128, RUN == 1 ? 7 : 4)
    conv_depthwise(const T* x, const T* __restrict__ weight, const float* bias, const T* residual,
                   T* y, Sizes sizes, Window window, int activation, float a, float b) {
  const auto finish = [&](const Vec<4>(&sums)[RUN], int filter, int first_pixel, int exist) {
    epilogue_of<FINISH>(sizes, bias, residual, y, activation, a, b)
        .template write<RUN>(
            filter, [&](int q) { return q < exist ? first_pixel + q : -1; },
            [&](int q) {
              Vec<4> sum = sums[0];
#pragma unroll
              for (int i = 1; i < RUN; ++i)
                if (i == q) sum = sums[i];  // an index not known would keep them in memory
              return sum;
            });
  };
  sum_taps<T, T, S, STRIDE, RUN>(x, weight, nullptr, sizes, window, finish);
}

template <int S, int STRIDE, int RUN>
__global__ void __launch_bounds__(128, RUN == 1 ? 7 : 4)
    conv_integer_depthwise(const Byte* x, const float* __restrict__ weight, const int* offset,
                           const float* scale, const Byte* residual, Byte* y, Sizes sizes,
                           Window window, Rounding rounding) {
  const auto finish = [&](const Vec<4>(&sums)[RUN], int filter, int first_pixel, int pixels) {
    const int exist = min(sizes.filters - filter, 4);
    const bool whole = sizes.y_vectors != 0 && exist == 4;
    WholeSums<4> plus;
    Vec<4> times;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      plus.at[i] = i < exist ? offset[4 + filter + i] : 0;
      times.at[i] = i < exist ? scale[filter + i] : 0.0f;
    }
#pragma unroll
    for (int q = 0; q < RUN; ++q) {
      if (q >= pixels) return;
      WholeSums<4> sum;
#pragma unroll
      for (int i = 0; i < 4; ++i) sum.at[i] = int(sums[q].at[i]);
      Bytes<4> added{};
      if (residual != nullptr)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (i < exist)
            added.at[i] = residual[(first_pixel + q) * sizes.residual_pitch + filter + i];
      const Bytes<4> value = residual != nullptr
                                 ? requantized<true>(sum, plus, times, added, rounding)
                                 : requantized<false>(sum, plus, times, added, rounding);
      Byte* const to = y + ((first_pixel + q) * sizes.y_pitch + filter);
      if (whole) {
        *reinterpret_cast<Bytes<4>*>(to) = value;
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (i < exist) to[i] = value.at[i];
      }
    }
  };
  sum_taps<Byte, float, S, STRIDE, RUN>(x, weight, reinterpret_cast<const Byte*>(offset), sizes,
                                        window, finish);
}
