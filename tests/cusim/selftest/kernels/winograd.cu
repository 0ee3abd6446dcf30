// The generated transforms of F(M, R) along one axis, a vector a thread.
#include "winograd_transforms.cuh"

template <int N>
__device__ void read(const float* from, float (&to)[N]) {
  for (int i = 0; i < N; ++i) to[i] = from[threadIdx.x * N + i];
}

template <int N>
__device__ void write(const float (&from)[N], float* to) {
  for (int i = 0; i < N; ++i) to[threadIdx.x * N + i] = from[i];
}

template <int M, int R, Points POINTS>
__global__ void transforms(const float* x, float* v, float* y) {
  using F = Winograd<M, R, POINTS>;
  float tile[F::ALPHA], transformed[F::ALPHA], outputs[M];
  read(x, tile);
  F::data(tile, transformed);
  write(transformed, v);
  F::inverse(tile, outputs);
  write(outputs, y);
}
