// Non-fused Winograd convolution: the transforms before and after the batched products. conv_direct
// or, on tensor cores, conv_tensor computes the products, one group for each of a tile's positions.
//
//   x ── winograd_data ── V ── conv_direct, POINTWISE ── products ── winograd_inverse ── y
//
// Algorithm: Lavin & Gray, algorithm 1, with its three stages in separate launches; in 3-D Lan et
//   al., section 3.2. A thread of the first kernel transforms one channel of one input tile, with
//   zeros outside the image. A thread of the second transforms 4 filters of one output tile and
//   computes the epilogue. Memory limits both kernels, so only coalesced loads matter, as many in
//   flight as registers can hold. One channel per thread is enough for that, and allows any pitch
//   of x.
//   The outputs pass through shared memory, private to each thread, to loops that are hardly
//   unrolled; otherwise the code of an activation chosen at run time would be repeated for each
//   output.
// Layouts: x, residual and y are of type T, floats or halves. V and products are floats, because
//   they may exceed 65504, the largest half, although y does not. V is tiles × alpha^AXES × C, and
//   products are tiles × alpha^AXES × K, with C and K padded to a multiple of 4 (C with zeros).
//   They hold `count` of all images' tiles, from `first` on: a large layer is computed in chunks.
// Launch: count · C and count · K / 4 threads, with C and K padded; channels vary fastest.
#include "common.cuh"
#include "epilogue.cuh"
#include "window.cuh"
#include "winograd.cuh"

// kernels/convolution/winograd_nonfused.py: the tiles of one launch.
struct Tiles {
  int first;
  int count;
  Divisor along[3];
};

template <class T, int M, int R, Points POINTS, int AXES, int THREADS>
__global__ void __launch_bounds__(THREADS)
    winograd_data(const T* x, float* data, Tiles tiles, int channels, Divisor padded, int x_pitch,
                  Window window) {
  follow_previous();
  using Transform = Winograd<M, R, POINTS>;
  constexpr int ALPHA = Transform::ALPHA, POSITIONS = power(ALPHA, AXES);
  unsigned tile = thread_index();
  const int channel = int(peel(tile, padded));
  if (tile >= unsigned(tiles.count)) return;

  const TilePlace place(tiles.along, tiles.first + tile);
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
    values[position] = inside ? float(x[pixel * x_pitch]) : 0.0f;
  }
  data_transform<Transform, AXES>(values);
  data += int(tile) * POSITIONS * padded + channel;
#pragma unroll
  for (int position = 0; position < POSITIONS; ++position)
    data[position * padded] = values[position];
}

template <class T, int M, int R, Points POINTS, int AXES, int THREADS, Finish FINISH>
__global__ void __launch_bounds__(THREADS)
    winograd_inverse(const float* products, const float* bias, const T* residual, T* y, Tiles tiles,
                     int filters, Divisor vectors, int residual_pitch, int y_pitch, int y_vectors,
                     Window window, int activation, float a, float b) {
  follow_previous();
  using Transform = Winograd<M, R, POINTS>;
  constexpr int ALPHA = Transform::ALPHA;
  constexpr int POSITIONS = power(ALPHA, AXES), OUTPUTS = power(M, AXES);
  __shared__ Vec<4> shared[OUTPUTS][THREADS];  // threads side by side
  const int padded = vectors * 4;
  unsigned tile = thread_index();
  const int filter = int(peel(tile, vectors)) * 4;
  if (tile >= unsigned(tiles.count)) return;

  products += int(tile) * POSITIONS * padded + filter;
  {
    Vec<4> outputs[OUTPUTS];
    inverse_transform<Transform, M, AXES, 4>(
        [&](int position) { return load<4>(products + position * padded); }, outputs);
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) shared[i][threadIdx.x] = outputs[i];
  }

  const TilePlace place(tiles.along, tiles.first + tile);
  const EpilogueOf<T, FINISH> epilogue{
      bias, residual, y, residual_pitch, y_pitch, filters, y_vectors != 0, Activation(activation),
      a,    b,
  };
  epilogue.template write<OUTPUTS>(
      filter,
      [&](int i) {
        const int o = AXES == 3 ? place.at[0] * M + i / (M * M) : 0;
        const int p = place.at[1] * M + i / M % M, q = place.at[2] * M + i % M;
        const bool exists = o < window.output[0] && p < window.output[1] && q < window.output[2];
        return exists ? ((place.image * window.output[0] + o) * window.output[1] + p) *
                                window.output[2] +
                            q
                      : -1;
      },
      [&](int i) { return shared[i][threadIdx.x]; });
}
