// What the implicit matrix products share: where a window's elements lie, and how a tile ends.
#pragma once

#include "epilogue.cuh"
#include "split.cuh"
#include "window.cuh"

// kernels/convolution/implicit_gemm.py: sizes of one launch; channels and filters of one group.
struct Sizes {
  int pixels;  // N·O·P·Q
  int channels;
  int filters;
  int x_pitch;
  int residual_pitch;
  int y_pitch;
  int x_vectors;  // whether every pixel's first channel of every group lies at 16 bytes in x
  int y_vectors;  // likewise in y and in the residual
};

// 4 neighbouring channels at one tap of the window, and the step along the inner dimension.
struct Column {
  int channel;
  int tap[3];  // T, R, S; past the last when tap[0] == T

  __device__ __forceinline__ Column(int inner, int channels, const Window& window) {
    unsigned index = inner;
    channel = int(peel(index, channels));
    tap[2] = int(peel(index, window.kernel[2]));
    tap[1] = int(peel(index, window.kernel[1]));
    tap[0] = int(index);
  }

  __device__ __forceinline__ void advance(int by, int channels, const Window& window) {
    channel += by;
    while (channel >= channels) {
      channel -= channels;
      if (++tap[2] == window.kernel[2]) {
        tap[2] = 0;
        if (++tap[1] == window.kernel[1]) {
          tap[1] = 0;
          ++tap[0];
        }
      }
    }
  }
};

// Of an output pixel: elements from x to its window's start; d, h, w there. A pixel beyond the last
// has all its taps outside the image.
__device__ __forceinline__ int4 window_start(int pixel, const Sizes& sizes, const Window& window) {
  unsigned index = pixel;
  int start[3];
#pragma unroll
  for (int axis = 2; axis >= 0; --axis)
    start[axis] =
        int(peel(index, window.output[axis])) * window.stride[axis] - window.pad_begin[axis];
  const int place =
      ((int(index) * window.input[0] + start[0]) * window.input[1] + start[1]) * window.input[2] +
      start[2];
  return make_int4(place * sizes.x_pitch, pixel < sizes.pixels ? start[0] : -(1 << 30), start[1],
                   start[2]);
}

template <class T>
__device__ __forceinline__ EpilogueOf<T> epilogue_of(int group, const Sizes& sizes,
                                                     const float* bias, const T* residual, T* y,
                                                     int activation, float a, float b) {
  const int offset = group * sizes.filters;
  return {bias == nullptr ? nullptr : bias + offset,
          residual == nullptr ? nullptr : residual + offset,
          y + offset,
          sizes.residual_pitch,
          sizes.y_pitch,
          sizes.filters,
          sizes.y_vectors != 0,
          Activation(activation),
          a,
          b};
}

// Finishes a tile of BM pixels x BN filters, whose sums lie in memory in rows of PITCH floats, as
// one of `splits` parts that are added up.
template <int BM, int BN, int PITCH, int THREADS, class T>
__device__ __forceinline__ void write_tile(const float* parts, int splits, int pixels,
                                           int first_pixel, int first_filter,
                                           const EpilogueOf<T>& epilogue) {
  const int column = threadIdx.x % (BN / 4) * 4, filter = first_filter + column;
  if (filter >= epilogue.channels) return;
  const Vec<4> bias = epilogue.bias_of(filter);
  for (int row = threadIdx.x / (BN / 4); row < BM && first_pixel + row < pixels;
       row += THREADS / (BN / 4)) {
    const int at = row * PITCH + column;
    const Vec<4> sum =
        splits == 1 ? load<4>(parts + at) : sum_of_parts(parts + at, splits, BM * PITCH);
    epilogue.write(first_pixel + row, filter, sum, bias);
  }
}
