// Shared by Winograd kernels: the transforms nested along 2 or 3 axes, the places of tiles, and the
// end of a block that has computed its outputs.
//
// The positions of a tile are numbered along its last axis fastest: nu, then xi, and in 3-D the
// depth slowest. The transformed filter has the same order (kernels/winograd/filter.py).
#pragma once

#include "common.cuh"
#include "epilogue.cuh"
#include "split.cuh"
#include "window.cuh"
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

  __device__ __forceinline__ TilePlace(int image, int row, int column)
      : image(image), at{0, row, column} {}
};

// Where a tile lies, and what of it exists: bit 8 · axis + i for its position i along an axis.
struct Place {
  int input;       // elements to its first position in x, be it outside the image
  int output;      // its first pixel in y
  unsigned read;   // positions inside the image
  unsigned write;  // outputs
};

// The bit of a position along three axes.
__device__ __forceinline__ bool has(unsigned bits, int d, int h, int w) {
  return (bits >> d & bits >> (8 + h) & bits >> (16 + w) & 1) != 0;
}

template <int M, int ALPHA>
__device__ __forceinline__ Place place_of(const TilePlace& number, bool exists, int x_pitch,
                                          const Window& window) {
  Place place{number.image, number.image, 0, 0};
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    const int output = number.at[axis] * M, input = output - window.pad_begin[axis];
    place.input = place.input * window.input[axis] + input;
    place.output = place.output * window.output[axis] + output;
#pragma unroll
    for (int i = 0; i < ALPHA; ++i) {
      place.read |= unsigned(unsigned(input + i) < unsigned(window.input[axis])) << (8 * axis + i);
      place.write |= unsigned(i < M && output + i < window.output[axis]) << (8 * axis + i);
    }
  }
  place.input *= x_pitch;
  if (!exists) place.read = place.write = 0;
  return place;
}

// Finishes and writes a block's outputs, those of BM tiles x BN filters: output o of tile t and of
// 4 filters from f on lies at `at(o, t, f)` in `shared`; where `splits` > 1, it is this block's
// part, and lies in its part of the workspace too. All threads call it, behind a barrier.
template <int M, int OUTPUTS, int BM, int BN, int THREADS, class At, class T, Finish FINISH>
__device__ __forceinline__ void write_outputs(float* shared, const float* parts, int split,
                                              int splits, unsigned* counter,
                                              const Place (&places)[BM], int first_filter,
                                              const Window& window, const At& at,
                                              const EpilogueOf<T, FINISH>& epilogue) {
  constexpr int VECTORS = BN / 4;
  const int column = threadIdx.x % VECTORS * 4, filter = first_filter + column;
  const bool finishes = filter < epilogue.end;
  static_assert(THREADS % VECTORS == 0, "each thread finishes the same filters of all its outputs");
  constexpr int AT_ONCE = THREADS / VECTORS, COUNT = (OUTPUTS * BM + AT_ONCE - 1) / AT_ONCE;
  const int first = threadIdx.x / VECTORS;
  const auto sums_at = [&](int each) {
    const int i = first + each * AT_ONCE;
    return at(i / BM, i % BM, column);
  };
  const int count = (OUTPUTS * BM - first + AT_ONCE - 1) / AT_ONCE;
  if (splits > 1 && !add_up_parts<OUTPUTS * BM * BN>(shared, parts, split, splits, counter,
                                                     finishes ? count : 0, sums_at))
    return;
  if (!finishes) return;
  epilogue.template write<COUNT>(
      filter,
      [&](int each) {
        const int i = first + each * AT_ONCE, output = i / BM;
        if (i >= OUTPUTS * BM) return -1;
        const int o = output / (M * M), p = output / M % M, q = output % M;
        const Place place = places[i % BM];
        return has(place.write, o, p, q)
                   ? place.output + (o * window.output[1] + p) * window.output[2] + q
                   : -1;
      },
      [&](int each) { return load<4>(shared + sums_at(each)); });
}
