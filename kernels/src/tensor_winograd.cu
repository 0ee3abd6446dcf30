// Fused Winograd convolution of halves, with its products on tensor cores:
// y = activation(conv(x, weight) + bias + residual), F(M, R) along two axes.
//
//   x ── tiles d ── V = Bᵀ d B / 4, as halves ─┐
//                                              ├─ products, summed over C ── Y = Aᵀ products A ── y
//   weight, transformed ── U · 4, as halves ───┘
//
// Algorithm: Lavin & Gray, algorithm 1, in one kernel, as in winograd.cu; transforms and sums are
//   floats. Each element of Bᵀ d B is a sum of 4 numbers of d, so a quarter of it is no larger than
//   the largest of them, and fits a half. A block computes BM tiles x BN filters, with the channels
//   in chunks of 16, the inner dimension of an mma. Its tiles are a region of one image, or several
//   whole images; it copies every pixel of the region once. Each warp has some of a tile's
//   positions, and multiplies all of the block's tiles and filters at them. In each iteration, a
//   thread transforms 2 channels of one tile of the next chunk and multiplies this chunk. Meanwhile
//   the next chunk of U and the chunk of d after it are copied. V, U and d have two stages each, so
//   a chunk takes one barrier.
//   The products then pass through shared memory, 32 tiles at a time, to threads that compute the
//   inverse transforms. The outputs pass through shared memory too, or through the workspace if the
//   channels are split over gridDim.y blocks (split.cuh).
// Versions: when each thread loaded its tile to registers, and shared pixels came from the L1
//   cache, a warp took 291 instructions per iteration. Copied regions need fewer addresses and
//   bounds, and took 255. Without the division by 4, x beyond 16376 became infinite; it takes 16
//   instructions.
// Layouts: x, residual, y are N·H·W pixels of halves with any pitch. weight is alpha² x K x C, with
//   K padded with zeros to a multiple of 4 and C to a multiple of 8 (kernels/winograd/filter.py,
//   filter_rows). In shared memory all rows have 16 channels, 32 bytes. d is images x rows x even
//   and odd columns x half the columns, so the pixels of neighbouring tiles are neighbours and lie
//   in different banks. V is positions x tiles, U positions x filters. Row r has its 16-byte vector
//   v at place v ^ r / 4 % 2, so the 8 rows of a matrix that ldmatrix loads lie in different banks.
//   Products are positions x 32 tiles x filters. In each run of 4 tiles, every tile has its runs of
//   8 filters in another order, so that the rows that half a warp stores use different banks.
//   Outputs, and the workspace's parts, are outputs x tiles x filters.
// Launch: (blocks, splits) blocks of 8 threads per tile; blocks along filters vary fastest. Dynamic
//   shared memory: two stages of V, U and d, or products of 32 tiles and the outputs.
#include "channels.cuh"
#include "common.cuh"
#include "epilogue.cuh"
#include "half.cuh"
#include "ptx.cuh"
#include "split.cuh"
#include "window.cuh"
#include "winograd.cuh"

// kernels/convolution/tensor_winograd.py: sizes of one launch.
struct Sizes : ConvSizes {
  int images;
  Divisor regions[3];    // along images, rows and columns
  Divisor region[3];     // images, and tiles along either axis, of one
  Divisor rows;          // of pixels that a region reads in an image
  Divisor half_columns;  // likewise, half of them
  Divisor splits;        // gridDim.y
};

template <int M, int R, Points POINTS, int BM, int BN, Finish FINISH>
__global__ void __launch_bounds__(BM * 8, 64 / BM)
    conv_tensor_winograd(const Half* x, const Half* __restrict__ weight, const float* bias,
                         const Half* residual, Half* y, float* workspace, unsigned* counters,
                         Sizes sizes, Window window, int activation, float a, float b) {
  let_next_begin();
  using Transform = Winograd<M, R, POINTS>;
  constexpr int ALPHA = Transform::ALPHA, POSITIONS = ALPHA * ALPHA, OUTPUTS = M * M;
  constexpr int THREADS = BM * 8, EACH = POSITIONS * 32 / THREADS;  // positions of a warp
  constexpr int CHUNK = 16, ROW = 2 * CHUNK;
  constexpr int PIXELS = 8 * BM;  // that a region reads, at most
  constexpr int V = POSITIONS * BM * ROW, U = POSITIONS * BN * ROW, D = PIXELS * ROW;  // of a stage
  constexpr int FRAGMENTS_M = BM / 16, FRAGMENTS_N = BN / 8;
  constexpr int AT_ONCE = 32, TILE = AT_ONCE * BN;  // of products
  static_assert(M == 2, "a tile begins at an even column of its region");
  static_assert(POSITIONS * 32 % THREADS == 0, "warps must divide the positions");
  static_assert(BM % AT_ONCE == 0 && BN % 32 == 0, "runs of 8 filters change places within 32");
  DYNAMIC_SHARED(unsigned char, shared);  // V, U, d; then the products and the outputs
  __shared__ Place places[BM];
  unsigned char* const v = shared;
  unsigned char* const u = v + 2 * V;
  unsigned char* const d = u + 2 * U;

  const int thread = threadIdx.x, lane = thread % 32, position = thread / 32 * EACH;
  const int split = blockIdx.y, splits = gridDim.y;
  unsigned number = blockIdx.x;
  const int first_filter = int(peel(number, sizes.filter_tiles)) * BN;
  const int all_chunks = (sizes.channels + CHUNK - 1) / CHUNK;
  const int first_chunk = int(quotient(all_chunks * split, sizes.splits));
  const int last_chunk = int(quotient(all_chunks * (split + 1), sizes.splits));

  int region[3];  // its first image and tile
#pragma unroll
  for (int axis = 2; axis >= 0; --axis)
    region[axis] = int(peel(number, sizes.regions[axis])) * int(sizes.region[axis]);

  // Of each chunk this thread transforms two channels of one tile; a tile beyond the region's last
  // is computed as the first, and not written.
  const int tile = thread / 8, pair = thread % 8;
  unsigned image = tile;
  const int tile_column = int(peel(image, sizes.region[2]));
  const int tile_row = int(peel(image, sizes.region[1]));
  const bool exists = int(image) < int(sizes.region[0]);
  const int half = sizes.half_columns;
  const int corner =
      exists ? (int(image) * sizes.rows + tile_row * M) * (2 * half) + tile_column : 0;
  if (pair == 0)
    places[tile] = place_of<M, ALPHA>(
        TilePlace(region[0] + int(image), region[1] + tile_row, region[2] + tile_column),
        exists && region[0] + int(image) < sizes.images, sizes.x_pitch, window);

  // The row's vector of 8 channels, where it lies.
  const auto at = [](int row, int vector) { return row * ROW + (vector ^ row / 4 % 2) * 16; };

  // Of each chunk of U this thread copies one vector of some rows.
  const int pitch = (sizes.channels + 7) / 8 * 8;
  prefetch_weights(weight, size_t(POSITIONS) * padded(sizes.filters) * pitch);
  const int u_row = thread / 2, u_filter = first_filter + u_row % BN;
  const int apart = THREADS / 2 / BN * padded(sizes.filters) * pitch;
  const int u_from = (u_row / BN * padded(sizes.filters) + u_filter) * pitch;
  const auto copy_filters = [&](int chunk, int stage) {
    const int channel = chunk * CHUNK + thread % 2 * 8;
    const bool exists = u_filter < sizes.filters && channel < pitch;
#pragma unroll
    for (int i = 0; i < POSITIONS * BN / (THREADS / 2); ++i)
      cp_async<16>(u + stage * U + at(u_row, thread % 2) + i * (THREADS / 2 * ROW),
                   weight + (u_from + i * apart + channel), exists);
    cp_async_commit();
  };

  // Of each chunk of d it copies one vector of some pixels, in the order in which they lie there.
  constexpr int COPIES = 2 * PIXELS / THREADS;
  int d_from[COPIES], d_channels[COPIES];  // none outside the image
#pragma unroll
  for (int i = 0; i < COPIES; ++i) {
    unsigned pixel = (thread + i * THREADS) / 2;
    const int by_two = int(peel(pixel, sizes.half_columns)), odd = int(peel(pixel, 2u));
    const int row = region[1] * M - window.pad_begin[1] + int(peel(pixel, sizes.rows));
    const int column = region[2] * M - window.pad_begin[2] + by_two * 2 + odd;
    const int of = region[0] + int(pixel);
    const bool inside = int(pixel) < int(sizes.region[0]) && of < sizes.images &&
                        unsigned(row) < unsigned(window.input[1]) &&
                        unsigned(column) < unsigned(window.input[2]);
    d_channels[i] = inside ? sizes.channels : 0;
    d_from[i] =
        inside ? ((of * window.input[1] + row) * window.input[2] + column) * sizes.x_pitch : 0;
  }
  const auto copy_pixels = [&](int chunk, int stage) {
    const int channel = chunk * CHUNK + thread % 2 * 8;
#pragma unroll
    for (int i = 0; i < COPIES; ++i) {
      unsigned char* const to = d + stage * D + (thread + i * THREADS) * 16;
      const Half* const from = x + (d_from[i] + channel);
      const int exist = d_channels[i] - channel;
      if (sizes.x_vectors && (exist >= 8 || exist <= 0))
        cp_async<16>(to, from, exist > 0);
      else
        copy_singly<8>(reinterpret_cast<Half*>(to), from, exist);
    }
    cp_async_commit();
  };

  const auto transform = [&](int stage) {
    const unsigned char* const from = d + stage * D + corner * ROW + pair * 4;
    float first[POSITIONS], second[POSITIONS];
#pragma unroll
    for (int p = 0; p < POSITIONS; ++p) {
      const int h = p / ALPHA, w = p % ALPHA, pixel = (h * 2 + w % 2) * half + w / 2;
      const Vec<2> both = load<2>(reinterpret_cast<const Half*>(from + pixel * ROW));
      first[p] = both.at[0] * 0.25f;
      second[p] = both.at[1] * 0.25f;
    }
    data_transform<Transform, 2>(first);
    data_transform<Transform, 2>(second);
    unsigned char* const to = v + stage * V + at(tile, pair / 4) + pair % 4 * 4;
#pragma unroll
    for (int p = 0; p < POSITIONS; ++p)
      store<2>(reinterpret_cast<Half*>(to + p * (BM * ROW)), Vec<2>{first[p], second[p]});
  };

  // The row and the vector that this lane gives ldmatrix the address of: 4 matrices are 16 rows x 2
  // vectors, of V the rows first, of U the vectors first.
  const int v_lane = at(lane % 16, lane / 16), u_lane = at(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  float sums[EACH][FRAGMENTS_M][FRAGMENTS_N][4] = {};
  const auto multiply = [&](int stage) {
#pragma unroll
    for (int each = 0; each < EACH; ++each) {
      const unsigned char* const v_rows = v + stage * V + (position + each) * (BM * ROW) + v_lane;
      const unsigned char* const u_rows = u + stage * U + (position + each) * (BN * ROW) + u_lane;
      unsigned filters[FRAGMENTS_N][2];
#pragma unroll
      for (int n = 0; n < FRAGMENTS_N; n += 2) {
        unsigned two[4];
        ldmatrix_x4(two, u_rows + n * 8 * ROW);
#pragma unroll
        for (int i = 0; i < 4; ++i) filters[n + i / 2][i % 2] = two[i];
      }
#pragma unroll
      for (int m = 0; m < FRAGMENTS_M; ++m) {
        unsigned data[4];
        ldmatrix_x4(data, v_rows + m * 16 * ROW);
#pragma unroll
        for (int n = 0; n < FRAGMENTS_N; ++n) mma_m16n8k16_f16(sums[each][m][n], data, filters[n]);
      }
    }
  };

  wait_before_weights();
  if (first_chunk < last_chunk) copy_filters(first_chunk, 0);
  wait_for_previous();  // weights of the first chunk are on their way
  if (first_chunk < last_chunk) copy_pixels(first_chunk, 0);
  if (first_chunk + 1 < last_chunk) copy_pixels(first_chunk + 1, 1);
  cp_async_wait<0>();
  __syncthreads();
  if (first_chunk < last_chunk) transform(0);
  int stage = 0;
#pragma unroll 1
  for (int chunk = first_chunk; chunk < last_chunk; ++chunk, stage = 1 - stage) {
    cp_async_wait<0>();
    __syncthreads();  // V and U of this chunk and d of the next are there, those before read by all
    if (chunk + 1 < last_chunk) {
      copy_filters(chunk + 1, 1 - stage);
      if (chunk + 2 < last_chunk) copy_pixels(chunk + 2, stage);
      transform(1 - stage);
    }
    multiply(stage);
  }

  float* const products = reinterpret_cast<float*>(shared);
  float* const outputs = products + POSITIONS * TILE;
  float* const parts = workspace + size_t(blockIdx.x) * splits * (OUTPUTS * BM * BN);
  const auto product_at = [](int tile, int filter) { return (tile * BN + filter) ^ tile % 4 * 8; };
#pragma unroll
  for (int begin = 0; begin < BM; begin += AT_ONCE) {
    __syncthreads();  // V and U, or the products before, are read by all
#pragma unroll
    for (int each = 0; each < EACH; ++each)
#pragma unroll
      for (int m = 0; m < AT_ONCE / 16; ++m)
#pragma unroll
        for (int n = 0; n < FRAGMENTS_N; ++n)
#pragma unroll
          for (int i = 0; i < 4; i += 2) {
            const float (&sum)[4] = sums[each][begin / 16 + m][n];
            store<2>(products + (position + each) * TILE +
                         product_at(m * 16 + i * 4 + lane / 4, n * 8 + lane % 4 * 2),
                     Vec<2>{sum[i], sum[i + 1]});
          }
    __syncthreads();
    constexpr int WIDTH = TILE / THREADS;  // filters of a thread
    const int of = thread / (BN / WIDTH), filter = thread % (BN / WIDTH) * WIDTH;
    Vec<WIDTH> inverse[OUTPUTS];
    inverse_transform<Transform, M, 2>(
        [&](int p) { return load<WIDTH>(products + p * TILE + product_at(of, filter)); }, inverse);
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o)
      store<WIDTH>(outputs + (o * BM + begin + of) * BN + filter, inverse[o]);
    if (splits > 1) {
      float* const part = parts + split * (OUTPUTS * BM * BN);
#pragma unroll
      for (int o = 0; o < OUTPUTS; ++o)
        store<WIDTH>(part + (o * BM + begin + of) * BN + filter, inverse[o]);
    }
  }
  __syncthreads();
  let_next_begin_late();
  write_outputs<M, OUTPUTS, BM, BN, THREADS>(
      outputs, parts, split, splits, counters + blockIdx.x, places, first_filter, window,
      [](int output, int tile, int filter) { return (output * BM + tile) * BN + filter; },
      epilogue_of<FINISH>(sizes, bias, residual, y, activation, a, b));
}
