// Elementwise operations on tensors with strides: maps, copies, binary operations, scale and shift.
//
// Algorithm: each thread computes one step of a walk (common.cuh), which is V neighbouring elements
//   of the output. Consecutive threads write consecutive addresses.
// Layouts: any strides. kernels/layout/strided.py merges axes: one axis remains for contiguous
//   tensors, two for a slice of NHWC's channels. A transposition reads with a stride and relies on
//   the caches.
// Launch: one dimension, one thread per step, the last block partial. The output may overwrite an
//   operand with the same strides: the thread that writes an element has read it before.
#include "bytes.cuh"
#include "half.cuh"

enum class BinaryOp { ADD, SUB, MUL, DIV, MAX, MIN, PRELU };

template <BinaryOp OP>
__device__ __forceinline__ float apply(float a, float b) {
  if constexpr (OP == BinaryOp::ADD) return a + b;
  if constexpr (OP == BinaryOp::SUB) return a - b;
  if constexpr (OP == BinaryOp::MUL) return a * b;
  if constexpr (OP == BinaryOp::DIV) return a / b;
  // NaN stays NaN, which fmaxf and fminf would hide.
  if constexpr (OP == BinaryOp::MAX) return a > b || a != a ? a : b;
  if constexpr (OP == BinaryOp::MIN) return a < b || a != a ? a : b;
  if constexpr (OP == BinaryOp::PRELU) return a >= 0.0f ? a : a * b;
}

// y = activation(x); a copy where there is none.
template <class X, class Y, Activation ACTIVATION, int RANK, int V>
__global__ void __launch_bounds__(256) map(const X* x, Y* y, Walk<RANK, 2> walk, float a, float b) {
  follow_previous();
  const unsigned step = thread_index();
  if (step >= walk.steps) return;
  const auto at = places(walk, step);
  store<V>(y + at.of[0], activate<ACTIVATION>(load_step<V>(x, walk, at, 1), a, b));
}

// y = activation(left op right)
template <class T, BinaryOp OP, Activation ACTIVATION, int RANK, int V>
__global__ void __launch_bounds__(256)
    binary(const T* left, const T* right, T* y, Walk<RANK, 3> walk, float a, float b) {
  follow_previous();
  const unsigned step = thread_index();
  if (step >= walk.steps) return;
  const auto at = places(walk, step);
  Vec<V> result = load_step<V>(left, walk, at, 1);
  const Vec<V> other = load_step<V>(right, walk, at, 2);
#pragma unroll
  for (int i = 0; i < V; ++i) result.at[i] = apply<OP>(result.at[i], other.at[i]);
  store<V>(y + at.of[0], activate<ACTIVATION>(result, a, b));
}

// y = activation(x * scale + shift)
template <class T, Activation ACTIVATION, int RANK, int V>
__global__ void __launch_bounds__(256)
    scale_shift(const T* x, const float* __restrict__ scale, const float* __restrict__ shift, T* y,
                Walk<RANK, 4> walk, float a, float b) {
  follow_previous();
  const unsigned step = thread_index();
  if (step >= walk.steps) return;
  const auto at = places(walk, step);
  Vec<V> result = load_step<V>(x, walk, at, 1);
  const Vec<V> times = load_step<V>(scale, walk, at, 2);
  const Vec<V> plus = load_step<V>(shift, walk, at, 3);
#pragma unroll
  for (int i = 0; i < V; ++i) result.at[i] = fmaf(result.at[i], times.at[i], plus.at[i]);
  store<V>(y + at.of[0], activate<ACTIVATION>(result, a, b));
}

// y = value
template <class T, int RANK, int V>
__global__ void __launch_bounds__(256) fill(T* y, Walk<RANK, 1> walk, float value) {
  follow_previous();
  const unsigned step = thread_index();
  if (step >= walk.steps) return;
  store<V>(y + places(walk, step).of[0], splat<V>(value));
}
