// Fused Winograd convolution: y = activation(conv(x, weight) + bias + residual), F(M, R) along each
// of AXES axes.
//
//   x ── tiles d ── V = Bᵀ d B ─┐
//                               ├─ products, summed over C ── Y = Aᵀ products A ── y
//   weight, transformed ── U ───┘
//
// Algorithm: Lavin & Gray, algorithm 1 and section 5, in one kernel; in 3-D Lan et al., section
//   3.2. A block computes BM tiles × BN filters, with the channels in chunks of BC. The tiles of
//   all images follow each other, so N = 1 fills blocks too. The block's warps have two roles.
//   DATA_WARPS warps copy the next chunk of x, each for its own tiles, and transform it, one
//   channel of a tile per thread. Meanwhile all other warps multiply: GROUP threads at each of a
//   tile's alpha^AXES positions, TM tiles × TN filters each. V and U have two stages, one to
//   multiply and one to fill, so a chunk takes one barrier. d has one stage, which only its warp
//   uses. The products then pass through shared memory, where a thread transforms the products of
//   one tile and filter in place. If the channels are split over gridDim.y blocks (split.cuh), the
//   outputs pass through the workspace: the inverse transform is linear, so it is enough to sum the
//   outputs, which are fewer.
// Versions: in the papers' kernels every thread has both roles, and needs registers for its sums
//   and for the 36 or 64 values of a tile: too many. Separate roles take at most 96 registers and
//   20 warps. An inverse transform of half the filters at a time would need less shared memory, but
//   spilled, because it keeps the other half's sums in registers. Two other variants spilled 50 to
//   90 bytes in some configuration: a running pointer to U instead of an index, and copies of U
//   without a branch around them. An iteration had 64 moves between registers; 22 are left since
//   addresses are held, one counter serves channels and chunks, and a channel's loads come before
//   its products. __syncwarp between channels added moves.
// Layouts: x, residual, y are N·D·H·W pixels with any pitch. weight is alpha^AXES × C × K, with
//   channels zero-padded to a multiple of 4 (kernels/winograd/filter.py). In shared memory V is
//   channels / SIDE × positions × tiles × SIDE. Every SIDE channels are padded, so that the
//   transform's stores, of 32 / BC tiles × BC channels, use different banks. U is positions ×
//   channels × filters, d is positions × tiles × channels. Products are positions × tiles ×
//   filters. In every second run of tiles the halves of 32 filters are exchanged, so that stores of
//   two runs use different banks. A thread has its tiles in runs of RUN and its filters in runs of
//   4, next to its neighbours' runs. The workspace is blocks × splits × outputs × tiles × filters.
// Launch: (blocks, splits) blocks; blocks along filters vary fastest.
#include "channels.cuh"
#include "common.cuh"
#include "epilogue.cuh"
#include "ptx.cuh"
#include "split.cuh"
#include "window.cuh"
#include "winograd.cuh"

// kernels/convolution/winograd.py: sizes of one launch.
struct Sizes : ConvSizes {
  int tiles;         // N·⌈O/m⌉·⌈P/m⌉·⌈Q/m⌉
  Divisor along[3];  // tiles along each axis, ⌈O/m⌉, ⌈P/m⌉, ⌈Q/m⌉
  Divisor splits;    // gridDim.y
};

// Channels that lie side by side in V. Where 32 filters share the transform of 36 positions, that
// bounds the kernel: two channels at once take half its loads and stores, though 28 more moves of a
// turn's products. On GPUs before sm_90 the latter spilled.
__device__ constexpr int side_by_side(int positions, int bm, int bn) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return 1;
#else
  return positions == 36 && bm == 32 && bn == 32 ? 2 : 1;
#endif
}

// Of SIDE channels, which lie side by side in V: padded, so that stores of the 32 / BC tiles × BC
// channels of a warp use different banks.
__device__ constexpr int v_pitch(int positions, int bm, int bc, int side) {
  return (positions * bm + 32 / bc) * side;
}

// Copies 4 channels, of which `exist` do, at a tile's positions, zeros where they are outside the
// image; the copies lie APART floats from each other. AT_ONCE lanes share the tile: this one begins
// each row at position `ahead` and continues in steps of AT_ONCE.
template <int ALPHA, int AXES, int AT_ONCE, int APART>
__device__ __forceinline__ void copy_tile(float* shared, const float* x, unsigned read, int ahead,
                                          int exist, const Sizes& sizes, const Window& window) {
  constexpr int DEPTH = AXES == 3 ? ALPHA : 1;
  static_assert(ALPHA % AT_ONCE == 0, "lanes must divide a row");
  const int row = window.input[2] * sizes.x_pitch, slice = window.input[1] * row;
  const unsigned columns = read >> (16 + ahead);
  if (sizes.x_vectors && (exist >= 4 || exist <= 0)) {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
#pragma unroll
      for (int h = 0; h < ALPHA; ++h) {
        const float* const begin = x + (d * slice + h * row);
        const unsigned inside = (read >> d & read >> (8 + h) & 1) != 0 ? columns : 0;
#pragma unroll
        for (int w = 0; w < ALPHA; w += AT_ONCE)
          cp_async_where(inside & 1u << w, shared + ((d * ALPHA + h) * ALPHA + w) * APART,
                         begin + w * sizes.x_pitch);
      }
  } else {
#pragma unroll 1
    for (int d = 0; d < DEPTH; ++d)
#pragma unroll 1
      for (int h = 0; h < ALPHA; ++h)
#pragma unroll 1
        for (int w = 0; w < ALPHA; w += AT_ONCE)
          copy_channels(shared + ((d * ALPHA + h) * ALPHA + w) * APART,
                        x + (d * slice + h * row + w * sizes.x_pitch), has(read, d, h, w + ahead),
                        exist, false);
  }
}

// Transforms d, positions × BM tiles × BC channels, into V: AT_ONCE channels of a tile at once,
// every `step`-th such item from `begin` to before `end`. The channels of a tile follow one
// another.
template <class Transform, int AXES, int BM, int BC, int SIDE, int AT_ONCE>
__device__ __forceinline__ void transform_tiles(float* v, const float* d, int begin, int step,
                                                int end) {
  static_assert(AT_ONCE == 1 || AT_ONCE == SIDE, "what lies side by side is stored at once");
  constexpr int POSITIONS = power(Transform::ALPHA, AXES), ITEMS = BC / AT_ONCE;  // of a tile
  const int channel = begin % ITEMS * AT_ONCE;
  float* to =
      v + channel / SIDE * v_pitch(POSITIONS, BM, BC, SIDE) + begin / ITEMS * SIDE + channel % SIDE;
#pragma unroll 1
  for (int i = begin; i < end; i += step, to += step / ITEMS * SIDE) {
    const float* const from = d + i * AT_ONCE;
    float values[AT_ONCE][POSITIONS];
#pragma unroll
    for (int p = 0; p < POSITIONS; ++p) {
      const Vec<AT_ONCE> channels = load<AT_ONCE>(from + p * (BM * BC));
#pragma unroll
      for (int c = 0; c < AT_ONCE; ++c) values[c][p] = channels.at[c];
    }
#pragma unroll
    for (int c = 0; c < AT_ONCE; ++c) data_transform<Transform, AXES>(values[c]);
#pragma unroll
    for (int p = 0; p < POSITIONS; ++p) {
      Vec<AT_ONCE> channels;
#pragma unroll
      for (int c = 0; c < AT_ONCE; ++c) channels.at[c] = values[c][p];
      store<AT_ONCE>(to + p * (BM * SIDE), channels);
    }
  }
}

// The number, in a register on architectures from FIRST to LAST: those where ptxas otherwise leaves
// the products too few, and spills. Found by trying; tests/kernels/resources.tsv would show it.
template <int FIRST, int LAST>
__device__ __forceinline__ int register_for(int number) {
#ifdef __CUDA_ARCH__
  if constexpr (__CUDA_ARCH__ >= FIRST * 10 && __CUDA_ARCH__ <= LAST * 10) return kept(number);
#endif
  return number;
}

// Threads of a block, of both roles.
__device__ constexpr int threads(int positions, int group, int data_warps) {
  return positions * group + 32 * data_warps;
}

template <int M, int R, int AXES, Points POINTS, int BM, int BN, int BC, int TM, int TN,
          int DATA_WARPS, int RESIDENT, Finish FINISH>
__global__ void __launch_bounds__(threads(power(M + R - 1, AXES), BM / TM * (BN / TN), DATA_WARPS),
                                  RESIDENT)
    conv_winograd(const float* x, const float* __restrict__ weight, const float* bias,
                  const float* residual, float* y, float* workspace, unsigned* counters,
                  Sizes sizes, Window window, int activation, float a, float b) {
  let_next_begin();
  using Transform = Winograd<M, R, POINTS>;
  constexpr int ALPHA = Transform::ALPHA;
  constexpr int POSITIONS = power(ALPHA, AXES), OUTPUTS = power(M, AXES);
  constexpr int GROUP = BM / TM * (BN / TN), MULTIPLIERS = POSITIONS * GROUP;
  constexpr int THREADS = threads(POSITIONS, GROUP, DATA_WARPS);
  constexpr int SIDE = side_by_side(POSITIONS, BM, BN);
  constexpr int RUN = 4 / SIDE;  // tiles that are loaded at once, of all channels side by side
  constexpr int V_PITCH = v_pitch(POSITIONS, BM, BC, SIDE);
  constexpr int V = BC / SIDE * V_PITCH, U = POSITIONS * BC * BN, TILE = BM * BN;
  static_assert(MULTIPLIERS % 32 == 0, "a warp must have one role");
  static_assert(BC == 4 || BC == 8, "or V's rows would not lie on vectors");
  static_assert(BN % 32 == 0, "halves of 32 filters are exchanged");
  DYNAMIC_SHARED(float, shared);  // V, U, d; then the products
  __shared__ Place places[BM];
  float* const v = shared;
  float* const u = v + 2 * V;
  float* const d = u + 2 * U;

  const int thread = threadIdx.x;
  constexpr int SPLIT_FROM = AXES == 3 && DATA_WARPS == 4 ? 90 : 75;
  const int split = register_for<SPLIT_FROM, 120>(blockIdx.y), splits = gridDim.y;
  unsigned tiles_before = blockIdx.x;
  const int first_filter = register_for<75, 90>(int(peel(tiles_before, sizes.filter_tiles)) * BN);
  const int first_tile = int(tiles_before) * BM;
  const int channels = padded(sizes.channels), filters = padded(sizes.filters);
  prefetch_weights(weight, size_t(POSITIONS) * channels * filters);
  const int all_chunks = (channels + BC - 1) / BC;
  const int first_chunk = int(quotient(all_chunks * split, sizes.splits));
  const int chunks = int(quotient(all_chunks * (split + 1), sizes.splits)) - first_chunk;

  for (int tile = thread; tile < BM; tile += THREADS)
    places[tile] = place_of<M, ALPHA>(TilePlace(sizes.along, first_tile + tile),
                                      first_tile + tile < sizes.tiles, sizes.x_pitch, window);
  __syncthreads();

  // Where in shared memory the products of a tile and a filter lie, and later its outputs.
  const auto at = [](int tile, int filter) { return (tile * BN + filter) ^ (tile / RUN % 2 * 16); };

  // The first chunk by all threads, for until then there is nothing to multiply.
  const auto transform_first = [&] {
    cp_async_wait<0>();
    barrier_of_roles();  // d is there for all, and U
    if (chunks > 0)
      transform_tiles<Transform, AXES, BM, BC, SIDE, 1>(v, d, thread, THREADS, BM * BC);
    barrier_of_roles();  // and so is V; d is read
  };

  if (thread >= MULTIPLIERS) {
    constexpr int TILES = BM / DATA_WARPS;  // of this warp alone
    constexpr int ITEMS = BC / SIDE;        // of a tile
    constexpr int LANES = TILES * (BC / 4), AT_ONCE = LANES < 32 ? 32 / LANES : 1;
    static_assert(BM % DATA_WARPS == 0, "each tile must be some warp's");
    static_assert(TILES * ITEMS % 32 == 0 && LANES * AT_ONCE % 32 == 0, "lanes must divide tiles");
    const int lane = thread % 32, first = (thread - MULTIPLIERS) / 32 * TILES;

    const auto copy = [&](int chunk) {
#pragma unroll
      for (int i = 0; i < LANES; i += 32) {
        const int index = lane % LANES + i, ahead = lane % 32 / LANES;
        const int tile = first + index / (BC / 4), vector = index % (BC / 4) * 4;
        const Place place = places[tile];
        const int channel = (first_chunk + chunk) * BC + vector;
        const int exist = sizes.channels - channel;
        copy_tile<ALPHA, AXES, AT_ONCE, BM * BC>(
            d + (ahead * BM + tile) * BC + vector,
            x + (place.input + channel + ahead * sizes.x_pitch), exist > 0 ? place.read : 0, ahead,
            exist, sizes, window);
      }
      cp_async_commit();
    };

    wait_for_previous();
    if (chunks > 0) copy(0);
    transform_first();
    if (chunks > 1) copy(1);
    for (int chunk = 1; chunk < chunks; ++chunk) {
      cp_async_wait<0>();
      __syncwarp();  // d is there for all lanes
      transform_tiles<Transform, AXES, BM, BC, SIDE, SIDE>(
          v + chunk % 2 * V, d, first * ITEMS + lane, 32, (first + TILES) * ITEMS);
      __syncwarp();  // and read by all
      if (chunk + 1 < chunks) copy(chunk + 1);
      barrier_of_roles();  // this chunk's V is there, and the one before read
    }
    if (chunks > 0) barrier_of_roles();
  } else {
    const int position = thread / GROUP, in_group = thread % GROUP;
    // Lanes differ in their filters, pairs of lanes in their tiles, and so on in turn: then half a
    // warp loads either factor at once, for some of it is the same for neighbours.
    constexpr int ROWS = BM / TM, COLUMNS = BN / TN;
    static_assert(ROWS == 2 && COLUMNS <= 8 || ROWS == 4 && COLUMNS >= 4 && COLUMNS <= 8,
                  "lanes are dealt out to these");
    const int row = (in_group / 2 % 2 + (ROWS == 4 ? in_group / 8 % 2 * 2 : 0)) * RUN;
    const int column =
        (in_group % 2 + (ROWS == 2 ? in_group / 4 * 2 : in_group / 4 % 2 * 2 + in_group / 16 * 4)) *
        4;
    // Where half a warp has two positions, the second takes its filters in another order.
    const int swap = GROUP == 8 ? position % 2 * (BN / 2) : 0;

    // Every thread copies of U what its group multiplies, chunk by chunk.
    constexpr int APART = GROUP / (BN / 4);
    static_assert(GROUP % (BN / 4) == 0 && 4 % APART == 0, "threads must fit rows");
    const int u_row = in_group / (BN / 4), u_column = in_group % (BN / 4) * 4;
    float* const to = held(u + (position * BC + u_row) * BN + u_column);
    const bool in_filters = first_filter + u_column < filters;
    const int step = held(APART * filters);
    int from = (position * channels + first_chunk * BC + u_row) * filters + first_filter + u_column;
    const auto copy = [&](int stage, int exist) {  // so many channels, 4 of them at least
      const bool all = in_filters && (BC == 4 || exist >= BC);
#pragma unroll
      for (int i = 0; i < BC; i += APART, from += step)
        cp_async<16>(to + stage * U + i * BN, weight + from, i < 4 ? in_filters : all);
      cp_async_commit();
    };

    float* const v_begin = held(v + (position * BM + row) * SIDE);
    float* const u_begin = held(u + position * (BC * BN) + column);
    // Channels of this chunk and later ones.
    int rest = min(channels - first_chunk * BC, chunks * BC);
    wait_before_weights();
    if (rest > 0) copy(0, rest);
    wait_for_previous();
    transform_first();
    float sums[TM][TN] = {};
    for (; rest > 0; rest -= 2 * BC) {
#pragma unroll
      for (int stage = 0; stage < 2; ++stage) {  // two chunks a turn: each has its stage
        if (rest <= stage * BC) break;
        if (rest > (stage + 1) * BC) copy(1 - stage, rest - (stage + 1) * BC);
        const float* const v_rows = v_begin + stage * V;
        const float* const u_columns = u_begin + stage * U;
#pragma unroll
        for (int channel = 0; channel < BC; channel += SIDE) {
          Vec<4> left[TM / RUN];
#pragma unroll
          for (int m = 0; m < TM / RUN; ++m)
            left[m] = load<4>(v_rows + channel / SIDE * V_PITCH + m * (4 * ROWS));
#pragma unroll
          for (int c = 0; c < SIDE; ++c) {
            Vec<4> right[TN / 4];
#pragma unroll
            for (int n = 0; n < TN / 4; ++n)
              right[n] = load<4>(u_columns + (channel + c) * BN + (4 * n * COLUMNS ^ swap));
            // The order decides how many moves between registers there are.
#pragma unroll
            for (int i = 0; i < TM * TN; ++i) {
              const int m = SIDE == 1 ? i / TN : i % TM, n = SIDE == 1 ? i % TN : i / TM;
              sums[m][n] =
                  fmaf(left[m / RUN].at[m % RUN * SIDE + c], right[n / 4].at[n % 4], sums[m][n]);
            }
          }
        }
        cp_async_wait<0>();
        barrier_of_roles();  // the next chunk's U and V are there, and this one's read
      }
    }
#pragma unroll
    for (int m = 0; m < TM; ++m)
#pragma unroll
      for (int n = 0; n < TN; n += 4)
        store<4>(shared + position * TILE +
                     at(m / RUN * (ROWS * RUN) + row + m % RUN, (n * COLUMNS ^ swap) + column),
                 Vec<4>{sums[m][n], sums[m][n + 1], sums[m][n + 2], sums[m][n + 3]});
  }
  __syncthreads();
  let_next_begin_late();

#pragma unroll 1
  for (int i = thread; i < TILE; i += THREADS) {
    const int place = at(i / BN, i % BN);
    const float* const products = shared + place;
    Vec<1> outputs[OUTPUTS];
    inverse_transform<Transform, M, AXES>([&](int p) { return load<1>(products + p * TILE); },
                                          outputs);
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o) shared[place + o * TILE] = outputs[o].at[0];
    if (splits > 1) {
      float* const part =
          workspace + (size_t(blockIdx.x) * splits + split) * (OUTPUTS * TILE) + place;
#pragma unroll
      for (int o = 0; o < OUTPUTS; ++o) part[o * TILE] = outputs[o].at[0];
    }
  }
  __syncthreads();

  write_outputs<M, OUTPUTS, BM, BN, THREADS>(
      shared, workspace + size_t(blockIdx.x) * splits * (OUTPUTS * TILE), split, splits,
      counters + blockIdx.x, places, first_filter, window,
      [&](int output, int tile, int filter) { return output * TILE + at(tile, filter); },
      epilogue_of<FINISH>(sizes, bias, residual, y, activation, a, b));
}
