// Shared by the implicit matrix products: the addresses of a window's elements, and a tile's end.
#pragma once

#include "epilogue.cuh"
#include "split.cuh"
#include "window.cuh"

// kernels/convolution/implicit_gemm.py: sizes of one launch; channels and filters of one group.
struct Sizes : ConvSizes {
  int pixels;               // N·O·P·Q
  Divisor padded_channels;  // to a multiple of what is copied at once
  Divisor splits;           // gridDim.y
};

// 4 neighbouring channels at one tap of the window, and the step along the inner dimension.
struct Column {
  int channel;
  int at[3];  // from the window's start: the tap, dilated; beyond the last tap at[0] is end(0)

  __device__ __forceinline__ Column(int inner, const Divisor& channels, const Window& window) {
    unsigned index = inner;
    channel = int(peel(index, channels));
    at[2] = int(peel(index, window.kernel[2])) * window.dilation[2];
    at[1] = int(peel(index, window.kernel[1])) * window.dilation[1];
    at[0] = int(index) * window.dilation[0];
  }

  static __device__ __forceinline__ int end(int axis, const Window& window) {
    return window.kernel[axis] * window.dilation[axis];
  }

  // Pixels from the window's start to the tap.
  __device__ __forceinline__ int place(const Window& window) const {
    return (at[0] * window.input[1] + at[1]) * window.input[2] + at[2];
  }

  __device__ __forceinline__ void advance(int by, int channels, const Window& window) {
    channel += by;
    while (channel >= channels) {
      channel -= channels;
      at[2] += window.dilation[2];
      if (at[2] == end(2, window)) {
        at[2] = 0;
        at[1] += window.dilation[1];
        if (at[1] == end(1, window)) {
          at[1] = 0;
          at[0] += window.dilation[0];
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

// Finishes a tile of BM pixels x BN filters. Its sums, or this block's part of them where `splits`
// > 1, lie in rows of PITCH floats in `tile`, in shared memory. All threads call it, behind a
// barrier.
template <int BM, int BN, int PITCH, int THREADS, class T, Finish FINISH>
__device__ __forceinline__ void write_tile(float* tile, float* parts, int split, int splits,
                                           unsigned* counter, int pixels, int first_pixel,
                                           int first_filter,
                                           const EpilogueOf<T, FINISH>& epilogue) {
  constexpr int ROWS = THREADS / (BN / 4);  // at once
  // Kept: computed here, instead of before the products, which leave no register for it.
  const unsigned thread = kept(threadIdx.x);
  const int first_row = thread / (BN / 4), column = thread % (BN / 4) * 4;
  const bool finishes = first_filter + column < epilogue.end;
  const auto at = [&](int i) { return (first_row + i * ROWS) * PITCH + column; };
  if (splits > 1) {
    const int count = finishes ? BM / ROWS : 0;
    write_part(tile, parts + split * (BM * PITCH), count, at);
    if (!add_up_parts<BM * PITCH>(tile, parts, split, splits, counter, count, at)) return;
  }
  if (!finishes) return;
  first_pixel += first_row;
  static_assert(BM % ROWS == 0, "each thread finishes as many");
  epilogue.template write<BM / ROWS>(
      first_filter + column,
      [&](int i) { return first_pixel + i * ROWS < pixels ? first_pixel + i * ROWS : -1; },
      [&](int i) { return load<4>(tile + at(i)); });
}
