// Numbers that have 16 bits in memory and 32 in registers: kernels store halves and compute with
// floats.
#pragma once

#include "common.cuh"
#include "ptx.cuh"

struct Half {
  unsigned short bits;

  Half() = default;
  __device__ __forceinline__ explicit Half(float x) : bits(half_of_float(x)) {}
  __device__ __forceinline__ operator float() const { return float_of_half(bits); }
};
