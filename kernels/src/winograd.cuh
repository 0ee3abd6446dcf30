// Shared by Winograd kernels: the transforms nested along 2 or 3 axes, and the places of tiles.
//
// Positions of a tile count along its last axis fastest: nu, then xi (in 3-D the depth slowest), as
// in the transformed filter (kernels/winograd/filter.py).
#pragma once

#include "common.cuh"
#include "winograd_transforms.cuh"

__device__ constexpr int power(int base, int exponent) {
  return exponent == 0 ? 1 : base * power(base, exponent - 1);
}

// v = Bᵀ d along every axis, in place.
template <class Transform, int AXES>
__device__ __forceinline__ void data_transform(float (&tile)[power(Transform::ALPHA, AXES)]) {
  constexpr int ALPHA = Transform::ALPHA, LINES = power(ALPHA, AXES - 1);
#pragma unroll
  for (int axis = 0; axis < AXES; ++axis) {
    const int stride = axis == 0 ? 1 : axis == 1 ? ALPHA : ALPHA * ALPHA;
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
      const int begin = line / stride * stride * ALPHA + line % stride;
      float d[ALPHA], v[ALPHA];
#pragma unroll
      for (int i = 0; i < ALPHA; ++i) d[i] = tile[begin + i * stride];
      Transform::data(d, v);
#pragma unroll
      for (int i = 0; i < ALPHA; ++i) tile[begin + i * stride] = v[i];
    }
  }
}

// y = Aᵀ m along AXES axes, V neighbouring filters at once: `load(i)` is the product at position i.
// Rows are reduced as they come, so that few are held.
template <class Transform, int M, int AXES, int V, class Load>
__device__ __forceinline__ void inverse_transform(const Load& load, Vec<V> (&y)[power(M, AXES)]) {
  constexpr int ALPHA = Transform::ALPHA;
  if constexpr (AXES == 0) {
    y[0] = load(0);
  } else {
    constexpr int ROW = power(ALPHA, AXES - 1), OUTPUTS = power(M, AXES - 1);
    Vec<V> rows[ALPHA][OUTPUTS];
#pragma unroll
    for (int i = 0; i < ALPHA; ++i)
      inverse_transform<Transform, M, AXES - 1>([&](int j) { return load(i * ROW + j); }, rows[i]);
#pragma unroll
    for (int j = 0; j < OUTPUTS; ++j)
#pragma unroll
      for (int filter = 0; filter < V; ++filter) {
        float products[ALPHA], outputs[M];
#pragma unroll
        for (int i = 0; i < ALPHA; ++i) products[i] = rows[i][j].at[filter];
        Transform::inverse(products, outputs);
#pragma unroll
        for (int i = 0; i < M; ++i) y[i * OUTPUTS + j].at[filter] = outputs[i];
      }
  }
}

// The place of a tile: its image, and its number along each axis. Tiles go along Q, then P, then O,
// then N.
struct TilePlace {
  int image;
  int at[3];

  // `along`: tiles along each axis, ⌈O/m⌉, ⌈P/m⌉, ⌈Q/m⌉; in 2-D the first is 1.
  __device__ __forceinline__ TilePlace(const Divisor (&along)[3], unsigned tile) {
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) at[axis] = int(peel(tile, along[axis]));
    image = int(tile);
  }
};
