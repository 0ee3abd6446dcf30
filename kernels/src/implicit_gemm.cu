// Direct convolution as an implicit matrix product: y = activation(conv(x, weight) + bias +
// residual).
//
//   y (pixels × K) = columns (pixels × T·R·S·C) · weight (T·R·S·C × K),  for each group
//
// Algorithm: a block computes BM output pixels × BN filters. The pixels of all images follow each
//   other, so N = 1 fills tiles too. The block loops over the inner dimension in chunks of BK, over
//   the taps and within a tap over the channels. STAGES - 1 chunks of both factors are copied to
//   shared memory (cp.async) while one is multiplied. The left factor is never stored: a chunk's
//   elements are copied from the inputs of the window's taps, or are 0. Each thread sums TM × TN
//   products in registers. If the tiles do not fill the GPU, the inner dimension is split over
//   gridDim.y blocks. Each writes its sums to the workspace, and the tile's last block adds them
//   (split.cuh).
//   A thread multiplies a chunk in steps of 256 products: with whole chunks unrolled, the code was
//   half as long again, for 1% fewer instructions.
//   A tile is finished from shared memory and not from registers, in loops that are hardly
//   unrolled; otherwise the epilogue's code would be repeated TM · TN / 4 times. The sums of a
//   split tile are added there.
//   POINTWISE (1×1 at stride 1, unpadded): the left factor is x itself. A prologue (prologue.cuh)
//   may first normalise, or scale and shift, and activate x; every block computes it again.
// Layouts: x, residual, y are N·D·H·W pixels with any pitch. weight is G × T·R·S × C/G × K/G, with
//   both channel axes padded with zeros to a multiple of 4 (kernels/convolution/implicit_gemm.py,
//   prepare_filter). Shared memory holds pixels × BK and BK × BN; a pixel's row is padded with 4
//   floats if all rows would start in the same bank. A thread's rows are BM / TM apart and its
//   columns come in runs of 4, so that neighbouring threads write neighbouring addresses. Lanes
//   form squares of four; in rows they took twice as many wavefronts to load the weights. The
//   workspace is tiles × splits × BM × BN. scale and shift are C floats, padded with
//   zeros to a multiple of 4.
// Launch: (tiles, splits, groups) blocks of BM / TM · BN / TN threads; tiles along filters vary
//   fastest.
#include "channels.cuh"
#include "implicit_gemm.cuh"
#include "prologue.cuh"

// With 64 sums a thread, the blocks that fit into a multiprocessor's shared memory on the GPUs that
// tiles are chosen for, where the compiler would take registers for fewer or, left alone, spill; 0
// leaves the registers to it.
#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900
template <Prologue PROLOGUE>
constexpr int BLOCKS = PROLOGUE == Prologue::LAYER_NORM ? 3 : 4;
#else
template <Prologue PROLOGUE>
constexpr int BLOCKS = 1;
#endif

template <int BM, int BN, int BK, int TM, int TN, int STAGES, bool POINTWISE, Prologue PROLOGUE,
          Activation BEFORE, Finish FINISH>
__global__ void __launch_bounds__(BM / TM * (BN / TN), TM* TN == 64 ? BLOCKS<PROLOGUE> : 0)
    conv_direct(const float* x, const float* __restrict__ weight, const float* bias,
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
  static_assert(BM <= THREADS, "a thread has at most one window to find the start of");
  static_assert(BK % 8 == 0 && TN % 4 == 0 && BM % TM == 0 && BN % TN == 0, "tiles must fit");
  __shared__ __align__(16) float shared[FLOATS];
  __shared__ int4 rows[POINTWISE ? 1 : BM];  // of each pixel: floats to the window's start; d, h, w

  const unsigned thread = threadIdx.x;
  const int group = blockIdx.z, split = blockIdx.y, splits = sizes.splits;
  unsigned pixel_tile = blockIdx.x;
  const int first_filter = int(peel(pixel_tile, sizes.filter_tiles)) * BN;
  const int first_pixel = int(pixel_tile) * BM;
  const int channels = padded(sizes.channels), filters = padded(sizes.filters);
  const int inner =
      POINTWISE ? channels : window.kernel[0] * window.kernel[1] * window.kernel[2] * channels;
  const int chunks = unsigned(inner + BK - 1) / BK;
  prefetch_weights(weight, size_t(gridDim.z) * inner * filters);
  const int first_chunk = int(quotient(chunks * split, sizes.splits));
  const int last_chunk = int(quotient(chunks * (split + 1), sizes.splits));

  if constexpr (!POINTWISE) {
    if (thread < BM) rows[thread] = window_start(first_pixel + int(thread), sizes, window);
    __syncthreads();
  }

  // What this thread copies of every chunk: 4 channels of every X_ROWS-th pixel, 4 filters of every
  // WEIGHT_ROWS-th row.
  const int x_row = thread / (BK / 4), x_column = thread % (BK / 4) * 4;
  const int x_place = x_row * X_PITCH + x_column;
  const bool whole = sizes.x_vectors != 0 && sizes.channels == channels;
  Column column(first_chunk * BK + x_column, sizes.padded_channels, window);
  if constexpr (POINTWISE) column.channel = first_chunk * BK + x_column;  // has no next tap
  const int weight_row = thread / (BN / 4), weight_column = thread % (BN / 4) * 4;
  const int weight_place = BM * X_PITCH + weight_row * BN + weight_column;
  int weight_from =
      (group * inner + first_chunk * BK + weight_row) * filters + first_filter + weight_column;
  int weights_left =
      first_filter + weight_column < filters ? inner - first_chunk * BK - weight_row : 0;
  const int group_channel = group * sizes.channels;  // the first
  // POINTWISE: pixels from this thread's first row on, and where its channels lie there.
  const int pixels_left = sizes.pixels - first_pixel - x_row;
  int x_from = (first_pixel + x_row) * sizes.x_pitch + group_channel + column.channel;

  const auto copy_weights = [&](int stage) {
    float* const weight_chunk = shared + (stage * STAGE + weight_place);
#pragma unroll
    for (int i = 0; i < BK; i += WEIGHT_ROWS)
      cp_async<16>(weight_chunk + i * BN, weight + (weight_from + i * filters), i < weights_left);
    weight_from += BK * filters;
    weights_left -= BK;
  };
  const auto copy_x = [&](int stage) {
    float* const x_chunk = shared + (stage * STAGE + x_place);
    const int channel = group_channel + column.channel;
    const int tap = column.place(window) * sizes.x_pitch + channel;
    // Whether there is anything to copy but zeros, and where from.
    const auto place_of = [&](int row, int& place) {
      if constexpr (POINTWISE) {
        place = x_from + row * sizes.x_pitch;
        return (column.channel < channels) & (row < pixels_left);
      } else {
        const int4 start = rows[row + x_row];
        place = start.x + tap;
        // Not &&, which would become branches.
        return (column.at[0] < column.end(0, window)) &
               (unsigned(start.y + column.at[0]) < unsigned(window.input[0])) &
               (unsigned(start.z + column.at[1]) < unsigned(window.input[1])) &
               (unsigned(start.w + column.at[2]) < unsigned(window.input[2]));
      }
    };
    if (whole) {
      // All are computed before the first copy, behind which the compiler would leave the others.
      int places[BM / X_ROWS];
      bool inside[BM / X_ROWS];
#pragma unroll
      for (int i = 0; i < BM / X_ROWS; ++i) inside[i] = place_of(i * X_ROWS, places[i]);
#pragma unroll
      for (int i = 0; i < BM / X_ROWS; ++i)
        cp_async<16>(x_chunk + i * (X_ROWS * X_PITCH), x + places[i], inside[i]);
    } else {
#pragma unroll 1
      for (int i = 0; i < BM / X_ROWS; ++i) {
        int place;
        const bool inside = place_of(i * X_ROWS, place);
        copy_channels(x_chunk + i * (X_ROWS * X_PITCH), x + place, inside,
                      sizes.channels - column.channel, sizes.x_vectors);
      }
    }
    if constexpr (POINTWISE) {
      column.channel += BK;
      x_from += BK;
    } else {
      column.advance(BK, channels, window);
    }
  };

  // Pairs of lanes load the same of x, pairs of pairs the same weights: so half a warp loads either
  // at once.
  constexpr int COLUMNS = BN / TN;
  static_assert(COLUMNS % 2 == 0 && BM / TM % 2 == 0, "lanes are dealt out to squares of four");
  const int thread_row = thread / (2 * COLUMNS) * 2 + thread / 2 % 2;
  const int thread_column = (thread / 4 % (COLUMNS / 2) * 2 + thread % 2) * 4;
  float sums[TM][TN] = {};

  const float* x_begin = shared + thread_row * X_PITCH;
  const float* weight_begin = shared + BM * X_PITCH + thread_column;
  if constexpr (TM * TN < 64) {  // others have no registers for them
    x_begin = held(x_begin);
    weight_begin = held(weight_begin);
  }

  constexpr int STEP = 256 / (TM * TN);  // of a chunk, between two branches
  static_assert(STEP % 4 == 0 && BK % STEP == 0, "steps must fit");
  const auto multiply_step = [&](const float* x_step, const float* weight_step) {
#pragma unroll
    for (int k = 0; k < STEP; k += 4) {
      Vec<4> right[4][TN / 4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int n = 0; n < TN / 4; ++n)
          right[i][n] = load<4>(weight_step + (k + i) * BN + n * (COLUMNS * 4));
#pragma unroll
      for (int m = 0; m < TM; ++m) {
        const Vec<4> left = load<4>(x_step + m * (BM / TM) * X_PITCH + k);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int n = 0; n < TN; ++n)
            sums[m][n] = fmaf(left.at[i], right[i][n / 4].at[n % 4], sums[m][n]);
      }
    }
  };

  // Not ahead of a layer's normalisation, which reads x twice and has no registers for it.
  constexpr bool AHEAD = OVERLAPS && PROLOGUE != Prologue::LAYER_NORM;
  wait_before_weights();
  if constexpr (AHEAD)
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage)
      if (first_chunk + stage < last_chunk) copy_weights(stage);
  wait_for_previous();
#pragma unroll 1
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (first_chunk + stage < last_chunk) {
      copy_x(stage);
      if constexpr (!AHEAD) copy_weights(stage);
    }
    cp_async_commit();
  }

  // The prologue, on what this thread copies.
  constexpr int ROWS = BM / X_ROWS;
  Statistics<PROLOGUE, ROWS> statistics;
  if constexpr (PROLOGUE == Prologue::LAYER_NORM) {
    const auto four = [&](int row, int channel) {
      // Beyond the last pixel is one that is never written.
      const int pixel = min(first_pixel + row * X_ROWS + x_row, sizes.pixels - 1);
      return load_channels(x + (pixel * sizes.x_pitch + channel), sizes.channels - channel,
                           sizes.x_vectors != 0);
    };
    statistics.template find<BK / 4>(four, x_column, sizes.channels, epsilon);
  }
  const auto prepare_chunk = [&](int stage, int channel) {
    if (channel >= sizes.channels) return;
    float* const x_chunk = shared + (stage * STAGE + x_place);
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
    if (chunk + STAGES - 1 < last_chunk) {
      copy_x(writing);
      copy_weights(writing);
    }
    cp_async_commit();
    const float *x_step = x_begin + reading * STAGE, *weight_step = weight_begin + reading * STAGE;
#pragma unroll 1
    for (int k = 0; k < BK; k += STEP) {
      multiply_step(x_step, weight_step);
      x_step += STEP;
      weight_step += STEP * BN;
    }
    writing = reading;
    reading = reading + 1 == STAGES ? 0 : reading + 1;
  }

  const unsigned tile = blockIdx.z * gridDim.x + blockIdx.x;
  __syncthreads();  // all have read the last chunk
  let_next_begin_late();
#pragma unroll
  for (int m = 0; m < TM; ++m)
#pragma unroll
    for (int n = 0; n < TN; n += 4)
      store<4>(shared + (thread_row + m * (BM / TM)) * BN + thread_column + n * COLUMNS,
               Vec<4>{sums[m][n], sums[m][n + 1], sums[m][n + 2], sums[m][n + 3]});
  __syncthreads();
  write_tile<BM, BN, BN, THREADS>(
      shared, workspace + size_t(tile) * splits * (BM * BN), split, splits, counters + tile,
      sizes.pixels, first_pixel, group * sizes.filters + first_filter,
      epilogue_of<FINISH>(sizes, bias, residual, y, activation, a, b, group));
}
