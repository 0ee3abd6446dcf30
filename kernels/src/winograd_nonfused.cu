// Non-fused Winograd convolution: what stands before and after the batched products, which are
// conv_direct's, one group for each of a tile's positions.
//
//   x ── winograd_data ── V ── conv_direct, POINTWISE ── products ── winograd_inverse ── y
//
// Algorithm: Lavin & Gray, algorithm 1, its three stages launched one after another; in 3-D Lan et
//   al., section 3.2. A thread of the first kernel transforms one channel of one input tile, zeros
//   outside the image; one of the second 4 filters of one output tile, with the epilogue. Both read
//   and write far more than they compute. Loads side by side, as many in flight as registers hold,
//   are all there is to gain: a channel a thread suffices for that, and for any pitch of x.
//   The outputs pass through shared memory, each thread's its own, to be finished in a loop that is
//   not unrolled: an activation chosen at run time would stand in the code for each of them.
// Layouts: V is tiles × alpha^AXES × C, products tiles × alpha^AXES × K, both channel axes padded
// to
//   a multiple of 4 (V with zeros). Tiles go along Q, then P, then O, then N; only `count` of them
//   from `first` on are there, so that a large layer's need not all be there at once.
// Launch: count · C and count · K / 4 threads, both padded, channels fastest.
#include "common.cuh"
#include "epilogue.cuh"
#include "window.cuh"
#include "winograd_transforms.cuh"

// kernels/conv_winograd_nonfused.py: the tiles of one launch.
struct Tiles {
  int first;
  int count;
  int along[3];  // ⌈O/m⌉, ⌈P/m⌉, ⌈Q/m⌉; in 2-D the first is 1
};

// Where a tile stands: its image, and its number along each axis.
struct TilePlace {
  int image;
  int at[3];

  __device__ __forceinline__ TilePlace(const Tiles& tiles, unsigned tile) {
    unsigned index = tiles.first + tile;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) at[axis] = int(peel(index, tiles.along[axis]));
    image = int(index);
  }
};

__device__ constexpr int power(int base, int exponent) {
  return exponent == 0 ? 1 : base * power(base, exponent - 1);
}

// v = Bᵀ d along every axis, in place; the last axis is the fastest.
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

// y = Aᵀ m along AXES axes, on vectors: `load(i)` is the product at position i. Rows are reduced as
// they come, so that few are held.
template <class Transform, int M, int AXES, class Load>
__device__ __forceinline__ void inverse_transform(const Load& load, Vec<4> (&y)[power(M, AXES)]) {
  constexpr int ALPHA = Transform::ALPHA;
  if constexpr (AXES == 0) {
    y[0] = load(0);
  } else {
    constexpr int ROW = power(ALPHA, AXES - 1), OUTPUTS = power(M, AXES - 1);
    Vec<4> rows[ALPHA][OUTPUTS];
#pragma unroll
    for (int i = 0; i < ALPHA; ++i)
      inverse_transform<Transform, M, AXES - 1>([&](int j) { return load(i * ROW + j); }, rows[i]);
#pragma unroll
    for (int j = 0; j < OUTPUTS; ++j)
#pragma unroll
      for (int channel = 0; channel < 4; ++channel) {
        float products[ALPHA], outputs[M];
#pragma unroll
        for (int i = 0; i < ALPHA; ++i) products[i] = rows[i][j].at[channel];
        Transform::inverse(products, outputs);
#pragma unroll
        for (int i = 0; i < M; ++i) y[i * OUTPUTS + j].at[channel] = outputs[i];
      }
  }
}

template <int M, int R, Points POINTS, int AXES, int THREADS>
__global__ void __launch_bounds__(THREADS)
    winograd_data(const float* __restrict__ x, float* __restrict__ data, Tiles tiles, int channels,
                  int x_pitch, Window window) {
  using Transform = Winograd<M, R, POINTS>;
  constexpr int ALPHA = Transform::ALPHA, POSITIONS = power(ALPHA, AXES);
  const int padded = (channels + 3) / 4 * 4;
  unsigned tile = thread_index();
  const int channel = int(peel(tile, padded));
  if (tile >= unsigned(tiles.count)) return;

  const TilePlace place(tiles, tile);
  int start[3];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) start[axis] = place.at[axis] * M - window.pad_begin[axis];
  const int first =
      ((place.image * window.input[0] + start[0]) * window.input[1] + start[1]) * window.input[2] +
      start[2];
  x += channel;
  float values[POSITIONS];
#pragma unroll
  for (int position = 0; position < POSITIONS; ++position) {
    const int d = AXES == 3 ? position / (ALPHA * ALPHA) : 0;
    const int h = position / ALPHA % ALPHA, w = position % ALPHA;
    const bool inside = channel < channels && unsigned(start[0] + d) < unsigned(window.input[0]) &&
                        unsigned(start[1] + h) < unsigned(window.input[1]) &&
                        unsigned(start[2] + w) < unsigned(window.input[2]);
    const int pixel = first + (d * window.input[1] + h) * window.input[2] + w;
    values[position] = inside ? x[pixel * x_pitch] : 0.0f;
  }
  data_transform<Transform, AXES>(values);
  data += int(tile) * POSITIONS * padded + channel;
#pragma unroll
  for (int position = 0; position < POSITIONS; ++position)
    data[position * padded] = values[position];
}

template <int M, int R, Points POINTS, int AXES, int THREADS>
__global__ void __launch_bounds__(THREADS)
    winograd_inverse(const float* __restrict__ products, const float* bias, const float* residual,
                     float* y, Tiles tiles, int filters, int residual_pitch, int y_pitch,
                     int y_vectors, Window window, int activation, float a, float b) {
  using Transform = Winograd<M, R, POINTS>;
  constexpr int ALPHA = Transform::ALPHA;
  constexpr int POSITIONS = power(ALPHA, AXES), OUTPUTS = power(M, AXES);
  __shared__ Vec<4> shared[OUTPUTS][THREADS];  // threads side by side
  const int padded = (filters + 3) / 4 * 4;
  unsigned tile = thread_index();
  const int filter = int(peel(tile, padded / 4)) * 4;
  if (tile >= unsigned(tiles.count)) return;

  products += int(tile) * POSITIONS * padded + filter;
  {
    Vec<4> outputs[OUTPUTS];
    inverse_transform<Transform, M, AXES>(
        [&](int position) { return load<4>(products + position * padded); }, outputs);
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) shared[i][threadIdx.x] = outputs[i];
  }

  const TilePlace place(tiles, tile);
  const Epilogue epilogue{
      bias, residual, y, residual_pitch, y_pitch, filters, y_vectors != 0, Activation(activation),
      a,    b};
  const Vec<4> bias_of = epilogue.bias_of(filter);
#pragma unroll 1
  for (int i = 0; i < OUTPUTS; ++i) {
    const int o = AXES == 3 ? place.at[0] * M + i / (M * M) : 0;
    const int p = place.at[1] * M + i / M % M, q = place.at[2] * M + i % M;
    if (o >= window.output[0] || p >= window.output[1] || q >= window.output[2]) continue;
    const int pixel =
        ((place.image * window.output[0] + o) * window.output[1] + p) * window.output[2] + q;
    epilogue.write(pixel, filter, shared[i][threadIdx.x], bias_of);
  }
}
