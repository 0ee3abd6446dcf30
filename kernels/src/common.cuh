// Shared by all kernels: vectors of channels, indices along axes, activations.
//
// Activations lie in memory as N·H·W pixels (N·D·H·W in 3-D) of C channels each, float or half
// (half.cuh). A pixel starts `pitch` channels after the previous pixel. `pitch` exceeds C where
// channels are padded, or where the pixel is a part of a wider pixel. A kernel on vectors of V
// channels requires that C, every pitch and every address are multiples of V channels
// (kernels/layout/pixels.py, strided.py).
#pragma once
#include "dependent.cuh"

template <int V>
struct alignas(sizeof(float) * V) Vec {
  float at[V];
};

template <int V>
__device__ __forceinline__ Vec<V> load(const float* from) {
  return *reinterpret_cast<const Vec<V>*>(from);
}

template <int V>
__device__ __forceinline__ void store(float* to, const Vec<V>& vector) {
  *reinterpret_cast<Vec<V>*>(to) = vector;
}

// V neighbours of a type that is narrower in memory than the float that it is in registers.
template <class T, int V>
struct alignas(sizeof(T) * V) Packed {
  static_assert(sizeof(T) < sizeof(float), "floats are loaded as they are");
  T at[V];
};

template <int V, class T>
__device__ __forceinline__ Vec<V> load(const T* from) {
  const Packed<T, V> packed = *reinterpret_cast<const Packed<T, V>*>(from);
  Vec<V> vector;
#pragma unroll
  for (int i = 0; i < V; ++i) vector.at[i] = packed.at[i];
  return vector;
}

template <int V, class T>
__device__ __forceinline__ void store(T* to, const Vec<V>& vector) {
  Packed<T, V> packed;
#pragma unroll
  for (int i = 0; i < V; ++i) packed.at[i] = T(vector.at[i]);
  *reinterpret_cast<Packed<T, V>*>(to) = packed;
}

template <int V>
__device__ __forceinline__ Vec<V> splat(float number) {
  Vec<V> vector;
#pragma unroll
  for (int i = 0; i < V; ++i) vector.at[i] = number;
  return vector;
}

// INFINITY is a macro of a header that NVRTC does not have.
__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// The thread's index in a one-dimensional grid.
__device__ __forceinline__ unsigned thread_index() { return blockIdx.x * blockDim.x + threadIdx.x; }

// A number above 0 that is known when a launch is planned, and what divides by it without a
// division: kernels/device/launch.py, divisor.
struct Divisor {
  unsigned number, magic, shift;
  __device__ __forceinline__ operator int() const { return int(number); }
};

// Exact for dividends below 2^31.
__device__ __forceinline__ unsigned quotient(unsigned dividend, const Divisor& divisor) {
  return unsigned(static_cast<unsigned long long>(dividend) * divisor.magic >> divisor.shift);
}

__device__ __forceinline__ unsigned quotient(unsigned dividend, unsigned divisor) {
  return dividend / divisor;
}

// Splits the fastest axis off a linear index: returns the position on it, keeps the rest in
// `index`. The extent is a Divisor or a constant.
template <class Extent>
__device__ __forceinline__ unsigned peel(unsigned& index, const Extent& extent) {
  const unsigned rest = quotient(index, extent);
  const unsigned position = index - rest * unsigned(extent);
  index = rest;
  return position;
}

// kernels/problems/activation.py, ActivationKind: the same names and equations. NaN stays NaN,
// which fmaxf and fminf would hide.
enum class Activation {
  NONE,
  RELU,
  CLIP,
  LEAKY_RELU,
  SIGMOID,
  HARD_SIGMOID,
  HARD_SWISH,
  SILU,
  TANH,
  ERF,
  GELU,
  GELU_TANH,
  ELU,
  SOFTPLUS,
  MISH,
  SQRT,
};

__device__ __forceinline__ float at_least(float x, float least) { return x < least ? least : x; }

__device__ __forceinline__ float clamp(float x, float least, float most) {
  const float raised = at_least(x, least);
  return raised > most ? most : raised;
}

// expf overflows to infinity for x < -88, and 1 / infinity is the 0 that is wanted.
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// log(1 + exp(x)), in the form whose exponential cannot overflow.
__device__ __forceinline__ float softplus(float x) {
  return at_least(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

template <Activation KIND>
__device__ __forceinline__ float activate(float x, float a, float b) {
  if constexpr (KIND == Activation::RELU) return at_least(x, 0.0f);
  if constexpr (KIND == Activation::CLIP) return clamp(x, a, b);
  if constexpr (KIND == Activation::LEAKY_RELU) return x >= 0.0f ? x : a * x;
  if constexpr (KIND == Activation::SIGMOID) return sigmoid(x);
  if constexpr (KIND == Activation::HARD_SIGMOID) return clamp(a * x + b, 0.0f, 1.0f);
  if constexpr (KIND == Activation::HARD_SWISH)
    return x * clamp(x * (1.0f / 6.0f) + 0.5f, 0.0f, 1.0f);
  if constexpr (KIND == Activation::SILU) return x * sigmoid(x);
  if constexpr (KIND == Activation::TANH) return tanhf(x);
  if constexpr (KIND == Activation::ERF) return erff(x);
  // 1 + erf(z) = erfc(-z), which keeps its digits where erf(z) nears -1.
  if constexpr (KIND == Activation::GELU) return 0.5f * x * erfcf(-0.70710678118654752f * x);
  // 1 + tanh(z) = 2 sigmoid(2z), likewise; 2 sqrt(2 / pi) = 1.5957691...
  if constexpr (KIND == Activation::GELU_TANH)
    return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
  if constexpr (KIND == Activation::ELU) return x > 0.0f ? b * x : a * expm1f(x);
  if constexpr (KIND == Activation::SOFTPLUS) return softplus(x);
  if constexpr (KIND == Activation::MISH) return x * tanhf(softplus(x));
  if constexpr (KIND == Activation::SQRT) return sqrtf(x);
  return x;
}

template <Activation KIND, int V>
__device__ __forceinline__ Vec<V> activate(Vec<V> vector, float a, float b) {
#pragma unroll
  for (int i = 0; i < V; ++i) vector.at[i] = activate<KIND>(vector.at[i], a, b);
  return vector;
}

// One number after another, the vector turning by one each time: at once some would not fit
// the registers that a convolution's epilogue has left.
template <Activation KIND>
__device__ __forceinline__ Vec<4> activate_in_turn(Vec<4> x, float a, float b) {
#pragma unroll 1
  for (int i = 0; i < 4; ++i) x = {x.at[1], x.at[2], x.at[3], activate<KIND>(x.at[0], a, b)};
  return x;
}

// kernels/layout/strided.py, Walk: loops over OPERANDS tensors of one shape in steps of V floats.
template <int RANK, int OPERANDS>
struct Walk {
  unsigned steps;
  Divisor extent[RANK];
  unsigned stride[OPERANDS][RANK];
};

// The place in each tensor at one step: floats from its first element.
template <int OPERANDS>
struct Places {
  unsigned of[OPERANDS];
};

template <int RANK, int OPERANDS>
__device__ __forceinline__ Places<OPERANDS> places(const Walk<RANK, OPERANDS>& walk,
                                                   unsigned step) {
  Places<OPERANDS> at{};
#pragma unroll
  for (int axis = RANK - 1; axis >= 0; --axis) {
    const unsigned position = axis == 0 ? step : peel(step, walk.extent[axis]);
#pragma unroll
    for (int i = 0; i < OPERANDS; ++i) at.of[i] += position * walk.stride[i][axis];
  }
  return at;
}

// V elements of a tensor of a walk, or one repeated where the innermost axis repeats it.
template <int V, class T, int RANK, int OPERANDS>
__device__ __forceinline__ Vec<V> load_step(const T* tensor, const Walk<RANK, OPERANDS>& walk,
                                            const Places<OPERANDS>& at, int operand) {
  const T* from = tensor + at.of[operand];
  return walk.stride[operand][RANK - 1] == 0 ? splat<V>(*from) : load<V>(from);
}
