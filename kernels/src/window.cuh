// A window over three spatial axes, as in kernels/problems/window.py; a 2-D window has depth 1.
#pragma once

#include "common.cuh"

struct Window {
  int input[3];       // D, H, W
  Divisor output[3];  // O, P, Q
  Divisor kernel[3];  // T, R, S
  int stride[3];
  Divisor dilation[3];
  int pad_begin[3];
  int pad_end[3];
};

// The taps of a window along one axis, first <= tap < last, that meet positions from <= i < to.
struct Taps {
  int first, last;
  __device__ __forceinline__ int count() const { return last > first ? last - first : 0; }
};

__device__ __forceinline__ Taps taps_within(const Window& window, int axis, int start, int from,
                                            int to) {
  const Divisor& dilation = window.dilation[axis];
  const int kernel = window.kernel[axis];
  const int first = start >= from ? 0 : int(quotient(from - start + dilation - 1, dilation));
  const int end = start >= to ? 0 : int(quotient(to - start + dilation - 1, dilation));
  return {first, end < kernel ? end : kernel};
}
