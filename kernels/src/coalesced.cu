// Coalesced direct convolution: y = activation(conv(x, weight) + bias + residual), 2-D, stride 1.
//
// Algorithm: Jordà et al. 2021 (cuConv), section 3, for pixels whose channels are contiguous.
//   First stage: dot products of filter rows (a filter's C numbers at a tap) with input rows (a
//   pixel's C numbers); shared memory holds the filter rows for all positions. Second stage: the
//   sums over the taps. A block computes ROWS × COLUMNS output pixels of an image for some filters,
//   and sums TAPS_R × TAPS_S of the taps over one of `strips` parts of the channels. Its partial
//   sums belong to one plane, of R / TAPS_R · S / TAPS_S · strips planes in all. With TAPS_R =
//   TAPS_S = strips = 1, these are the paper's R·S planes. A single plane is the output, as for the
//   paper's 1×1 filters. Several planes are added in order: with counters by the last block of each
//   tile, in one launch, and otherwise by `sum_planes` (the paper's two stages). Shared memory also
//   holds the input rows and their halo, so a block reads each input row from global memory only
//   once. One chunk of CHUNK channels is multiplied while STAGES - 1 chunks of filter and input
//   rows are copied (cp.async). A warp computes one row of COLUMNS pixels. Its lanes form
//   FILTER_LANES groups of filters × 32 / FILTER_LANES slices of channels. In each step of 4 ·
//   slices channels, a lane multiplies 4 channels for 4 filters and all COLUMNS pixels. The row's
//   input slides through registers: COLUMNS + TAPS_S - 1 vectors serve TAPS_S taps. Shuffles add
//   the slices and divide the outputs among the lanes; each step has half as many shuffles as the
//   previous step.
//   Rejected by ptxas's report and the cost model, not by a measurement: 8 filters per lane save a
//   fifth of the loads or more, but with the 128 registers that two resident blocks allow, ptxas
//   spills. Tiles of 7 rows give one of a multiprocessor's four schedulers a warp less, and no
//   image needs fewer such tiles than tiles of 8. Two stages are best for no layer of the paper.
// Layouts: x, residual, y are N·H·W pixels with any pitch. weight is R·S × C × K as for
//   conv_direct, with C and K zero-padded to a multiple of 4. In shared memory a step's filter rows
//   lie in the order in which lanes read them, 128 contiguous floats per load of a warp: taps ×
//   steps × 4 channels × filter warps × lanes × 4 filters. Planes are N·P·Q × K, K padded likewise.
// Launch: (tiles, planes) blocks of ROWS · FILTER_WARPS warps; tiles along filters vary fastest.
//   For 1×1 without padding, all images form one image, COLUMNS wide, with a partial last row.
#include "channels.cuh"
#include "common.cuh"
#include "epilogue.cuh"
#include "ptx.cuh"
#include "split.cuh"
#include "window.cuh"

// kernels/convolution/coalesced.py: sizes of one launch.
struct Sizes : ConvSizes {
  int x_pixels;  // of all images
  int y_pixels;
  Divisor column_tiles;  // of COLUMNS pixels of a row
  Divisor row_tiles;     // of ROWS rows
  Divisor strips;
  Divisor taps;  // of TAPS_S taps in a row of the window
};

// The result of `share_sums` for a lane: the sums of `count` outputs from `first` on.
struct Share {
  int first, count;
};

// Adds up COUNT sums of each of SLICES lanes, FILTER_LANES apart.
template <int COUNT, int SLICES, int FILTER_LANES, int N>
__device__ __forceinline__ Share share_sums(float (&sums)[N], int slice, Share share) {
  if constexpr (SLICES == 1) {
    return share;
  } else {
    constexpr int KEPT = (COUNT + 1) / 2;
    const bool upper = (slice & (SLICES / 2)) != 0;
#pragma unroll
    for (int i = 0; i < KEPT; ++i) {
      const float low = sums[i], high = i + KEPT < COUNT ? sums[i + KEPT] : 0.0f;
      sums[i] = (upper ? high : low) +
                __shfl_xor_sync(0xffffffffu, upper ? low : high, SLICES / 2 * FILTER_LANES);
    }
    // A lane has COUNT of them, or one less where the last number was odd.
    static_assert(COUNT > 1, "then the lower half always has all that it keeps");
    share = upper ? Share{share.first + KEPT, share.count - KEPT} : Share{share.first, KEPT};
    return share_sums<KEPT, SLICES / 2, FILTER_LANES>(sums, slice, share);
  }
}

template <int TAPS_R, int TAPS_S, int ROWS, int COLUMNS, int FILTER_WARPS, int FILTER_LANES,
          int CHUNK, int STAGES, Finish FINISH>
__global__ void __launch_bounds__(ROWS * FILTER_WARPS * 32, FILTER_WARPS == 1 ? 2 : 1)
    conv_coalesced(const float* x, const float* __restrict__ weight, const float* bias,
                   const float* residual, float* y, float* planes, unsigned* counters, Sizes sizes,
                   Window window, int activation, float a, float b) {
  let_next_begin();
  constexpr int THREADS = ROWS * FILTER_WARPS * 32;
  constexpr int SLICES = 32 / FILTER_LANES, STEP = 4 * SLICES, STEPS = CHUNK / STEP;
  constexpr int FILTERS = FILTER_WARPS * FILTER_LANES * 4;
  constexpr int PATCH_COLUMNS = COLUMNS + TAPS_S - 1;
  constexpr int PATCH = (ROWS + TAPS_R - 1) * PATCH_COLUMNS;
  constexpr int ROW = 128 * FILTER_WARPS;  // weights of 1 channel a lane, all filters
  constexpr int TAP = 4 * STEPS * ROW;
  constexpr int TAPS = TAPS_R * TAPS_S, STAGE = TAPS * TAP + PATCH * CHUNK;
  constexpr int QUADS = FILTERS / 4;
  constexpr int UNROLLED = TAPS_S == 1 ? 2 : 1;  // enough products to load the next step's behind
  static_assert(32 % FILTER_LANES == 0 && CHUNK % STEP == 0, "lanes");
  static_assert(THREADS % QUADS == 0, "each thread finishes the same filters of all its pixels");
  DYNAMIC_SHARED(float, shared);  // max(STAGES · STAGE, the tile), then `places`
  constexpr int TILE = ROWS * COLUMNS * FILTERS;
  int* const places =
      reinterpret_cast<int*>(shared + (STAGES * STAGE > TILE ? STAGES * STAGE : TILE));

  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int channels = padded(sizes.channels), filters = padded(sizes.filters);
  unsigned index = blockIdx.x;
  const int first_filter = int(peel(index, sizes.filter_tiles)) * FILTERS;
  const int first_column = int(peel(index, sizes.column_tiles)) * COLUMNS;
  const int first_row = int(peel(index, sizes.row_tiles)) * ROWS;
  const int image = int(index);

  index = blockIdx.y;
  const int strip = int(peel(index, sizes.strips));
  const int tap_s = int(peel(index, sizes.taps)) * TAPS_S;
  const int tap_r = int(index) * TAPS_R;
  const int chunks = (sizes.channels + CHUNK - 1) / CHUNK;
  const int first_chunk = int(quotient(chunks * strip, sizes.strips));
  const int last_chunk = int(quotient(chunks * (strip + 1), sizes.strips));

  // A lane copies the vectors of weights that this lane of any warp multiplies. A warp's are of the
  // same filters and channels of a chunk at every TAPS_AT_ONCE-th tap.
  const int slice = lane / FILTER_LANES, filter_lane = lane % FILTER_LANES;
  constexpr int TAPS_AT_ONCE = ROWS / 4 / STEPS;
  static_assert(TAPS_AT_ONCE * 4 * STEPS == ROWS, "warps must divide the rows of a tap");
  unsigned rest = warp;
  const int weight_filter =
      first_filter + int(peel(rest, FILTER_WARPS)) * (4 * FILTER_LANES) + filter_lane * 4;
  int weight_channel = first_chunk * CHUNK + slice * 4 + int(peel(rest, 4));
  weight_channel += int(peel(rest, STEPS)) * STEP;  // one at a time: each takes its axis off `rest`
  const int first_tap = int(rest);
  // A row of the window has TAPS_S taps, or the block sums only one.
  int weight_from =
      ((tap_r * window.kernel[2] + tap_s + first_tap) * channels + weight_channel) * filters +
      weight_filter;
  const auto copy_filter_rows = [&](int stage) {
    float* const to = shared + stage + thread * 4;
    const bool exists = weight_filter < filters && weight_channel < channels;
#pragma unroll
    for (int tap = 0; tap < TAPS; tap += TAPS_AT_ONCE)
      if (tap + TAPS_AT_ONCE <= TAPS || first_tap + tap < TAPS)
        cp_async<16>(to + tap * TAP, weight + (weight_from + tap * channels * filters), exists);
    weight_channel += CHUNK;
    weight_from += CHUNK * filters;
  };

  // Of the input a thread copies 4 channels of a chunk, of every PIXELS_AT_ONCE-th pixel.
  constexpr int PIXELS_AT_ONCE = THREADS / (CHUNK / 4);
  static_assert(THREADS % (CHUNK / 4) == 0, "threads must divide a pixel's channels");
  constexpr int COPIED = (PATCH + PIXELS_AT_ONCE - 1) / PIXELS_AT_ONCE;
  const int first_copied = thread / (CHUNK / 4);
  int copied[COPIED];  // their places
  int x_channel = first_chunk * CHUNK + thread % (CHUNK / 4) * 4;
  const auto copy_input_rows = [&](int stage) {
    float* const to = shared + stage + TAPS * TAP + thread * 4;
    const int exist = sizes.channels - x_channel;
    if (sizes.x_vectors && (exist >= 4 || exist <= 0)) {
#pragma unroll
      for (int i = 0; i < COPIED; ++i)
        if ((i + 1) * PIXELS_AT_ONCE <= PATCH || i * PIXELS_AT_ONCE + first_copied < PATCH)
          cp_async<16>(to + i * (PIXELS_AT_ONCE * CHUNK), x + (copied[i] + x_channel),
                       copied[i] >= 0 && exist > 0);
    } else {
#pragma unroll 1
      for (int i = first_copied; i < PATCH; i += PIXELS_AT_ONCE)
        copy_channels(to + (i - first_copied) * CHUNK, x + (places[i] + x_channel), places[i] >= 0,
                      exist, false);
    }
    x_channel += CHUNK;
  };

  prefetch_weights(weight, size_t(window.kernel[1]) * window.kernel[2] * channels * filters);
  // The first weights are on their way before it is known where input rows lie.
  wait_before_weights();
  if (first_chunk < last_chunk) copy_filter_rows(0);
  // Floats from x to each pixel of the patch; a vector before x where it is padding.
  for (int pixel = thread; pixel < PATCH; pixel += THREADS) {
    const int h = first_row - window.pad_begin[1] + tap_r + pixel / PATCH_COLUMNS;
    const int w = first_column - window.pad_begin[2] + tap_s + pixel % PATCH_COLUMNS;
    const int place = (image * window.input[1] + h) * window.input[2] + w;
    const bool inside = unsigned(h) < unsigned(window.input[1]) &&
                        unsigned(w) < unsigned(window.input[2]) && place < sizes.x_pixels;
    places[pixel] = inside ? place * sizes.x_pitch : -4;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < COPIED; ++i)
    copied[i] = places[min(i * PIXELS_AT_ONCE + first_copied, PATCH - 1)];

  const int row = warp % ROWS, filter_warp = warp / ROWS;
  float sums[COLUMNS * 4] = {};

  const bool row_exists = first_row + row < window.output[1];
  const float* const weight_begin = shared + filter_warp * 128 + lane * 4;
  const float* const x_begin = shared + TAPS * TAP + row * (PATCH_COLUMNS * CHUNK) + slice * 4;

  const auto multiply_chunk = [&](int stage) {
#pragma unroll UNROLLED
    for (int step = 0; step < STEPS * TAPS_R; ++step) {
      const int r = step / STEPS, of_chunk = step % STEPS;
      const float* const x_row = x_begin + stage + r * (PATCH_COLUMNS * CHUNK) + of_chunk * STEP;
      const float* const taps = weight_begin + stage + r * (TAPS_S * TAP) + of_chunk * (4 * ROW);
      Vec<4> seen[PATCH_COLUMNS];
#pragma unroll
      for (int column = 0; column < PATCH_COLUMNS; ++column)
        seen[column] = load<4>(x_row + column * CHUNK);
#pragma unroll
      for (int s = 0; s < TAPS_S; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const Vec<4> tap = load<4>(taps + s * TAP + i * ROW);
#pragma unroll
          for (int column = 0; column < COLUMNS; ++column)
#pragma unroll
            for (int f = 0; f < 4; ++f) {
              float& sum = sums[column * 4 + f];
              sum = fmaf(seen[column + s].at[i], tap.at[f], sum);
            }
        }
      }
    }
  };

  wait_for_previous();  // weights of the first chunk are on their way
#pragma unroll 1
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (first_chunk + stage < last_chunk) {
      if (stage > 0) copy_filter_rows(stage * STAGE);
      copy_input_rows(stage * STAGE);
    }
    cp_async_commit();
  }
  int reading = 0, writing = (STAGES - 1) * STAGE;  // floats to the stage
  for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // this chunk is there for all, and the one before it read by all
    if (chunk + STAGES - 1 < last_chunk) {
      copy_filter_rows(writing);
      copy_input_rows(writing);
    }
    cp_async_commit();
    if (row_exists) multiply_chunk(reading);
    reading = reading == (STAGES - 1) * STAGE ? 0 : reading + STAGE;
    writing = writing == (STAGES - 1) * STAGE ? 0 : writing + STAGE;
  }

  // The tile as ROWS · COLUMNS × FILTERS in shared memory.
  const Share share = share_sums<COLUMNS * 4, SLICES, FILTER_LANES>(sums, slice, {0, COLUMNS * 4});
  constexpr int MOST = (COLUMNS * 4 + SLICES - 1) / SLICES;
  float* const tile =
      shared + row * (COLUMNS * FILTERS) + (filter_warp * FILTER_LANES + filter_lane) * 4;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < MOST; ++i) {
    const int at = share.first + i;
    if (i < share.count) tile[at / 4 * FILTERS + at % 4] = sums[i];
  }
  __syncthreads();
  let_next_begin_late();

  const int plane_count = gridDim.y;
  const int plane_size = sizes.y_pixels * filters;
  const int filter = first_filter + thread % QUADS * 4;
  // Where a pixel of the tile is in y; -1 beyond its end.
  const auto pixel_of = [&](int at) {
    const int p = first_row + at / COLUMNS, q = first_column + at % COLUMNS;
    const int pixel = (image * window.output[1] + p) * window.output[2] + q;
    return p < window.output[1] && q < window.output[2] && pixel < sizes.y_pixels ? pixel : -1;
  };
  if (plane_count > 1) {
    float* const plane = planes + blockIdx.y * plane_size + filter;
    for (int at = thread / QUADS; at < ROWS * COLUMNS; at += THREADS / QUADS) {
      const int pixel = pixel_of(at);
      if (pixel >= 0 && filter < filters)
        store<4>(plane + pixel * filters, load<4>(shared + at * FILTERS + thread % QUADS * 4));
    }
    if (counters == nullptr) return;
    if (!last_of_split(counters + blockIdx.x, plane_count)) return;
  }

  if (filter >= sizes.filters) return;
  float* const sums_of_filter = shared + thread % QUADS * 4;
  constexpr int AT_ONCE = THREADS / QUADS, COUNT = (ROWS * COLUMNS + AT_ONCE - 1) / AT_ONCE;
  const int first = thread / QUADS;
  const auto place_of = [&](int i) {
    const int at = first + i * AT_ONCE;
    return at < ROWS * COLUMNS ? pixel_of(at) : -1;
  };
  if (plane_count > 1) {
#pragma unroll 1
    for (int i = 0; i < COUNT; ++i) {  // each thread those that it reads again
      const int pixel = place_of(i);
      if (pixel >= 0)
        store<4>(sums_of_filter + (first + i * AT_ONCE) * FILTERS,
                 sum_of_parts(planes + pixel * filters + filter, plane_count, plane_size));
    }
  }
  epilogue_of<FINISH>(sizes, bias, residual, y, activation, a, b)
      .template write<COUNT>(filter, place_of, [&](int i) {
        return load<4>(sums_of_filter + (first + i * AT_ONCE) * FILTERS);
      });
}

// The second stage as a launch of its own: a thread takes 4 filters of a pixel.
template <Finish FINISH>
__global__ void __launch_bounds__(256)
    sum_planes(const float* planes, const float* bias, const float* residual, float* y,
               int plane_count, int pixels, int filters, Divisor vectors, int residual_pitch,
               int y_pitch, int y_vectors, int activation, float a, float b) {
  follow_previous();
  unsigned index = thread_index();
  const int filter = int(peel(index, vectors)) * 4;
  const int pixel = int(index);
  if (pixel >= pixels) return;
  const int plane_size = pixels * padded(filters);
  const EpilogueOf<float, FINISH> epilogue{
      bias, residual, y, residual_pitch, y_pitch, filters, y_vectors != 0, Activation(activation),
      a,    b};
  const Vec<4> sum =
      sum_of_parts(planes + pixel * padded(filters) + filter, plane_count, plane_size);
  epilogue.template write<1>(filter, [&](int) { return pixel; }, [&](int) { return sum; });
}
