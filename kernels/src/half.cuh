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

template <int V>
struct alignas(sizeof(Half) * V) Halves {
  Half at[V];
};

template <int V>
__device__ __forceinline__ Vec<V> load(const Half* from) {
  const Halves<V> halves = *reinterpret_cast<const Halves<V>*>(from);
  Vec<V> vector;
#pragma unroll
  for (int i = 0; i < V; ++i) vector.at[i] = halves.at[i];
  return vector;
}

template <int V>
__device__ __forceinline__ void store(Half* to, const Vec<V>& vector) {
  Halves<V> halves;
#pragma unroll
  for (int i = 0; i < V; ++i) halves.at[i] = Half(vector.at[i]);
  *reinterpret_cast<Halves<V>*>(to) = halves;
}
