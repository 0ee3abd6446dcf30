// Direct convolution as an implicit matrix product: y = activation(conv(x, weight) + bias +
// residual).
//
//   y (pixels × K) = columns (pixels × T·R·S·C) · weight (T·R·S·C × K),  for each group
//
// Algorithm: a block computes BM output pixels (of all images, one after another, so that N = 1
//   fills tiles too) × BN filters. It loops over the inner dimension, taps outside, channels
//   inside, in chunks of BK: STAGES - 1 chunks of both factors are being copied to shared memory
//   (cp.async) while one is multiplied. The left factor is never stored: a chunk's elements are
//   copied from where the window's taps fall, or are 0. Each thread sums TM × TN products in
//   registers. Where the tiles do not fill the machine, the inner dimension is split over gridDim.y
//   blocks. Each writes its sums to the workspace, and the last of a tile adds them up (split.cuh).
//   A tile is finished from shared memory, not from registers, in loops that are hardly unrolled:
//   the epilogue's code would be repeated TM · TN / 4 times. A split tile's sums are added up
//   there.
//   POINTWISE (1×1 at stride 1, unpadded): the left factor is x itself. It may be normalised, or
//   scaled and shifted, and activated first (prologue.cuh): every block does so anew.
// Layouts: x, residual, y are N·D·H·W pixels with any pitch. weight is G × T·R·S × C/G × K/G, both
//   channel axes padded to a multiple of 4 with zeros (kernels/convolution/implicit_gemm.py,
//   prepare_filter). Shared memory holds pixels × BK, 4 more floats per row where rows would start
//   in one bank, and BK × BN. A thread's rows lie BM / TM apart and its columns in runs of 4, so
//   that neighbouring threads write neighbouring addresses. Rows of threads one after another,
//   instead of squares of four, took twice the wavefronts for the weights. The workspace is
//   tiles × splits × BM × BN. scale and shift are C floats, padded to a multiple of 4 with zeros.
// Launch: (tiles, splits, groups) blocks, tiles of filters fastest, of BM / TM · BN / TN threads.
#include "channels.cuh"
#include "implicit_gemm.cuh"
#include "prologue.cuh"

template <int BM, int BN, int BK, int TM, int TN, int STAGES, bool POINTWISE, Prologue PROLOGUE,
          Activation BEFORE, Finish FINISH>
__global__ void __launch_bounds__(BM / TM * (BN / TN))
    conv_direct(const float* __restrict__ x, const float* __restrict__ weight, const float* bias,
                const float* residual, float* y, float* workspace, unsigned* counters, Sizes sizes,
                Window window, const float* __restrict__ scale, const float* __restrict__ shift,
                float epsilon, float before_a, float before_b, int activation, float a, float b) {
  let_next_begin();
  constexpr int THREADS = BM / TM * (BN / TN);
  // Two neighbouring rows, which lanes load and store at once, lie in different banks.
  constexpr int X_PITCH = BK % 32 == 16 ? BK : BK + 4;
  constexpr int X_ROWS = THREADS / (BK / 4), WEIGHT_ROWS = THREADS / (BN / 4);  // copied at once
  constexpr int STAGE = BM * X_PITCH + BK * BN;
  constexpr int FLOATS = STAGES * STAGE > BM * BN ? STAGES * STAGE : BM * BN;
  static_assert(THREADS % (BK / 4) == 0 && BM % X_ROWS == 0, "threads must divide a chunk of x");
  static_assert(THREADS % (BN / 4) == 0 && BK % WEIGHT_ROWS == 0, "and one of the weights");
  static_assert(POINTWISE || PROLOGUE == Prologue::NONE, "padding would be shifted");
  static_assert(BK % 4 == 0 && TN % 4 == 0 && BM % TM == 0 && BN % TN == 0, "tiles must fit");
  __shared__ __align__(16) float shared[FLOATS];
  __shared__ int4 rows[POINTWISE ? 1 : BM];  // of each pixel: floats to the window's start; d, h, w

  const int thread = threadIdx.x;
  const int group = blockIdx.z, split = blockIdx.y, splits = gridDim.y;
  unsigned pixel_tile = blockIdx.x;
  const int first_filter = int(peel(pixel_tile, sizes.filter_tiles)) * BN;
  const int first_pixel = int(pixel_tile) * BM;
  const int channels = padded(sizes.channels), filters = padded(sizes.filters);
  const int inner =
      POINTWISE ? channels : window.kernel[0] * window.kernel[1] * window.kernel[2] * channels;
  const int chunks = (inner + BK - 1) / BK;
  const int first_chunk = int(quotient(chunks * split, sizes.splits));
  const int last_chunk = int(quotient(chunks * (split + 1), sizes.splits));
  const int group_channel = group * sizes.channels;  // the first

  if constexpr (!POINTWISE) {
    for (int row = thread; row < BM; row += THREADS)
      rows[row] = window_start(first_pixel + row, sizes, window);
    __syncthreads();
  }

  // What this thread copies of every chunk: one column of 4 channels of x, one of 4 filters.
  const int x_row = thread / (BK / 4), x_column = thread % (BK / 4) * 4;
  const int weight_row = thread / (BN / 4), weight_column = thread % (BN / 4) * 4;
  const bool filters_exist = first_filter + weight_column < filters;
  Column column(first_chunk * BK + x_column, sizes.padded_channels, window);
  int weight_from =
      (group * inner + first_chunk * BK + weight_row) * filters + first_filter + weight_column;
  const int weight_end = (group + 1) * inner * filters;

  const auto copy_chunk = [&](int stage) {
    float* const x_chunk = shared + stage * STAGE;
    float* const weight_chunk = x_chunk + BM * X_PITCH;
    const int d = column.tap[0] * window.dilation[0];
    const int h = column.tap[1] * window.dilation[1];
    const int w = column.tap[2] * window.dilation[2];
    const int tap = ((d * window.input[1] + h) * window.input[2] + w) * sizes.x_pitch +
                    group_channel + column.channel;
    const int exist = sizes.channels - column.channel;
    const bool any = (exist > 0) & (POINTWISE || column.tap[0] < window.kernel[0]);
    // copy(to, from, whether there is anything to copy but zeros)
    const auto copy_row = [&](int row, const auto& copy) {
      float* const to = x_chunk + row * X_PITCH + x_column;
      if constexpr (POINTWISE) {
        const int from = (first_pixel + row) * sizes.x_pitch + group_channel + column.channel;
        copy(to, x + from, any & (first_pixel + row < sizes.pixels));
      } else {
        const int4 start = rows[row];
        // Not &&, which would become branches.
        copy(to, x + (start.x + tap),
             any & (unsigned(start.y + d) < unsigned(window.input[0])) &
                 (unsigned(start.z + h) < unsigned(window.input[1])) &
                 (unsigned(start.w + w) < unsigned(window.input[2])));
      }
    };
    if (sizes.x_vectors && (exist >= 4 || exist <= 0)) {
#pragma unroll
      for (int i = 0; i < BM; i += X_ROWS)
        copy_row(i + x_row, [&](float* to, const float* from, bool inside) {
          cp_async<16>(to, from, inside);
        });
    } else {
#pragma unroll 1
      for (int i = 0; i < BM; i += X_ROWS)
        copy_row(i + x_row, [&](float* to, const float* from, bool inside) {
          copy_channels(to, from, inside, exist, sizes.x_vectors);
        });
    }
#pragma unroll
    for (int i = 0; i < BK; i += WEIGHT_ROWS) {
      const int row = i + weight_row;
      const bool exists = filters_exist && weight_from + i * filters < weight_end;
      cp_async<16>(weight_chunk + row * BN + weight_column, weight + (weight_from + i * filters),
                   exists);
    }
    if constexpr (POINTWISE)
      column.channel += BK;
    else
      column.advance(BK, channels, window);
    weight_from += BK * filters;
  };

  // Pairs of lanes load the same of x, pairs of pairs the same weights: so half a warp loads either
  // at once.
  constexpr int COLUMNS = BN / TN;
  static_assert(COLUMNS % 2 == 0 && BM / TM % 2 == 0, "lanes are dealt out to squares of four");
  const int thread_row = thread / (2 * COLUMNS) * 2 + thread / 2 % 2;
  const int thread_column = (thread / 4 % (COLUMNS / 2) * 2 + thread % 2) * 4;
  float sums[TM][TN] = {};

  const auto multiply_chunk = [&](int stage) {
    const float* const x_chunk = shared + stage * STAGE + thread_row * X_PITCH;
    const float* const weight_chunk = shared + stage * STAGE + BM * X_PITCH + thread_column;
#pragma unroll
    for (int k = 0; k < BK; k += 4) {
      Vec<4> right[4][TN / 4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int n = 0; n < TN / 4; ++n)
          right[i][n] = load<4>(weight_chunk + (k + i) * BN + n * (COLUMNS * 4));
#pragma unroll
      for (int m = 0; m < TM; ++m) {
        const Vec<4> left = load<4>(x_chunk + m * (BM / TM) * X_PITCH + k);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int n = 0; n < TN; ++n)
            sums[m][n] = fmaf(left.at[i], right[i][n / 4].at[n % 4], sums[m][n]);
      }
    }
  };

  wait_for_previous();
#pragma unroll 1
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (first_chunk + stage < last_chunk) copy_chunk(stage);
    cp_async_commit();
  }

  // The prologue, on what this thread copies.
  constexpr int ROWS = BM / X_ROWS;
  Statistics<PROLOGUE, ROWS> statistics;
  if constexpr (PROLOGUE == Prologue::LAYER_NORM) {
    const auto four = [&](int row, int channel) {
      // Beyond the last pixel is one that is never written.
      const int pixel = min(first_pixel + row * X_ROWS + x_row, sizes.pixels - 1);
      return load_channels(x + (pixel * sizes.x_pitch + group_channel + channel),
                           sizes.channels - channel, sizes.x_vectors != 0);
    };
    statistics.template find<BK / 4>(four, x_column, sizes.channels, epsilon);
  }
  const auto prepare_chunk = [&](int stage, int channel) {
    if (channel >= sizes.channels) return;
    float* const x_chunk = shared + stage * STAGE + x_row * X_PITCH + x_column;
    const Vec<4> times = load<4>(scale + channel), plus = load<4>(shift + channel);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      Vec<4> four = load<4>(x_chunk + row * (X_ROWS * X_PITCH));
#pragma unroll
      for (int i = 0; i < 4; ++i)
        four.at[i] = fmaf(statistics.of(four.at[i], row), times.at[i], plus.at[i]);
      store<4>(x_chunk + row * (X_ROWS * X_PITCH), activate<BEFORE>(four, before_a, before_b));
    }
  };

  int reading = 0, writing = STAGES - 1;
  for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {
    cp_async_wait<STAGES - 2>();
    if constexpr (PROLOGUE != Prologue::NONE) prepare_chunk(reading, chunk * BK + x_column);
    __syncthreads();  // this chunk is there for all, and the one before it read by all
    if (chunk + STAGES - 1 < last_chunk) copy_chunk(writing);
    cp_async_commit();
    multiply_chunk(reading);
    reading = reading + 1 == STAGES ? 0 : reading + 1;
    writing = writing + 1 == STAGES ? 0 : writing + 1;
  }

  // The tile as BM × BN, in shared memory or, where it is one of several, in the workspace.
  const unsigned tile = blockIdx.z * gridDim.x + blockIdx.x;
  float* const partials = splits == 1 ? shared : workspace + size_t(tile) * splits * (BM * BN);
  float* const partial = partials + split * (BM * BN);
  __syncthreads();
#pragma unroll
  for (int m = 0; m < TM; ++m)
#pragma unroll
    for (int n = 0; n < TN; n += 4)
      store<4>(partial + (thread_row + m * (BM / TM)) * BN + thread_column + n / 4 * (COLUMNS * 4),
               Vec<4>{sums[m][n], sums[m][n + 1], sums[m][n + 2], sums[m][n + 3]});
  if (splits > 1) {
    if (!last_of_split(counters + tile, splits)) return;
  } else {
    __syncthreads();
  }

  write_tile<BM, BN, BN, THREADS>(
      shared, partials, splits, sizes.pixels, first_pixel, group * sizes.filters + first_filter,
      epilogue_of<FINISH>(sizes, bias, residual, y, activation, a, b, group));
}
