// Numbers of 16 bits in memory, of 32 in registers: a kernel's storage may be half, its arithmetic
// is float.
#pragma once

#include "common.cuh"
#include "ptx.cuh"

struct Half {
  unsigned short bits;

  Half() = default;
  __device__ __forceinline__ explicit Half(float x) : bits(half_of_float(x)) {}
  __device__ __forceinline__ operator float() const { return float_of_half(bits); }
};
