// Convolution of quantized numbers as an implicit matrix product on tensor cores. x, weight and y
// are bytes; the sums are whole numbers, which are exact in any order.
//
//   sum = Σ x · weight, which requantize.cuh converts to a byte of y
//
// Algorithm: as in tensor_gemm.cu, with rows of 128 bytes; ldmatrix loads the fragments of
//   mma.m16n8k32. On sm_90a, with WARPGROUPS, wgmma reads both factors' rows from shared memory.
//   Outside the image a window reads the zero point of x. Channels that only fill vectors are
//   multiplied by weights of 0.
//   Rejected: storing zero points where a copy would write zeros, which branches in every row.
//   Instead, they are copied from memory: they are the first 16 bytes of the operand offset.
// Layouts: x, residual, y are N·D·H·W pixels of unsigned bytes, with any pitch. weight is G x K/G x
//   T·R·S x channels of signed bytes, with channels padded with zeros to a multiple of 16
//   (kernels/convolution/integer_gemm.py, prepare_filter). offset is 16 bytes that repeat x's zero
//   point, then one int per filter. A tile's sums are BM x (BN + 8) ints; the workspace is tiles x
//   splits of such tiles.
// Launch: (tiles, splits, groups) blocks of BM / WM · BN / WN warps; tiles along filters vary
//   fastest. Dynamic shared memory: STAGES chunks of both factors, or a tile's sums; and 16 bytes
//   per pixel.
#include "channels.cuh"
#include "implicit_gemm.cuh"
#include "requantize.cuh"
#include "wgmma.cuh"

template <bool WARPGROUPS, int BM, int BN, int BK, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)
    conv_integer(const Byte* x, const signed char* __restrict__ weight,
                 const int* __restrict__ offset, const float* __restrict__ scale,
                 const Byte* residual, Byte* y, int* workspace, unsigned* counters, Sizes sizes,
                 Window window, Rounding rounding) {
  let_next_begin();
  constexpr int THREADS = BM / WM * (BN / WN) * 32;
  constexpr int X_ROWS = THREADS / (BK / 16), WEIGHT_ROWS = THREADS / (BK / 16);
  constexpr int STAGE = (BM + BN) * BK, PITCH = BN + 8;
  constexpr int CHUNKS_OR_SUMS = STAGES * STAGE > BM * PITCH * 4 ? STAGES * STAGE : BM * PITCH * 4;
  constexpr int M = WM / 16, N = WN / 8;
  static_assert(BK == 128, "a row has 8 vectors");
  static_assert(BM % X_ROWS == 0 && BN % WEIGHT_ROWS == 0, "threads must divide a chunk");
  static_assert(X_ROWS % 8 == 0 && WEIGHT_ROWS % 8 == 0, "all rows of a thread are swizzled alike");
  static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0, "tiles must fit");
  static_assert(!WARPGROUPS || (BM % 64 == 0 && WM == 16 && WN == BN), "warpgroups");
  unsigned char* shared;
  if constexpr (WARPGROUPS) {
    SWIZZLED_SHARED(unsigned char, tiles);
    shared = tiles;
  } else {
    DYNAMIC_SHARED(unsigned char, tiles);
    shared = tiles;
  }
  int4* const rows =
      reinterpret_cast<int4*>(shared + CHUNKS_OR_SUMS);  // window_start of each pixel

  const unsigned thread = kept(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int group = blockIdx.z, split = blockIdx.y, splits = sizes.splits;
  unsigned pixel_tile = blockIdx.x;
  const int first_filter = int(peel(pixel_tile, sizes.filter_tiles)) * BN;
  const int first_pixel = int(pixel_tile) * BM;
  const int channels = sizes.padded_channels;
  const int inner = window.kernel[0] * window.kernel[1] * window.kernel[2] * channels;
  const int weight_pitch = (inner + 15) / 16 * 16;
  const int chunks = (inner + BK - 1) / BK;
  const int first_chunk = int(quotient(chunks * split, sizes.splits));
  const int last_chunk = int(quotient(chunks * (split + 1), sizes.splits));

  // What this thread copies of every chunk: a vector of every WEIGHT_ROWS-th filter, a unit of
  // every X_ROWS-th pixel. Row r has its 16-byte vector v at v ^ r % 8.
  const auto place = [](int row, int byte) {
    return row * BK + ((byte / 16 ^ row % 8) * 16 | byte % 16);
  };
  const int weight_row = thread / (BK / 16), weight_byte = thread % (BK / 16) * 16;
  const int weight_place = kept(BM * BK + place(weight_row, weight_byte));
  const int filters = sizes.filters - first_filter - weight_row;  // that are left, from this one on
  int weight_inner = first_chunk * BK + weight_byte;
  const signed char* weight_from =
      weight +
      (size_t(group * sizes.filters + first_filter + weight_row) * weight_pitch + weight_inner);

  const auto copy_weights = [&](int stage) {
    unsigned char* const to = shared + stage * STAGE + weight_place;
    const int exist = weight_inner < weight_pitch ? filters : 0;
#pragma unroll
    for (int i = 0; i < BN; i += WEIGHT_ROWS)
      cp_async<16>(to + i * BK, weight_from + size_t(i) * weight_pitch, i < exist);
    weight_inner += BK;
    weight_from += BK;
  };
  prefetch_weights(weight, size_t(gridDim.z) * sizes.filters * weight_pitch);
  wait_before_weights();
#pragma unroll 1
  for (int stage = 0; stage < STAGES - 1; ++stage)
    if (first_chunk + stage < last_chunk) copy_weights(stage);

  const int x_row = thread / (BK / 16), x_byte = thread % (BK / 16) * 16;
  const int x_place = kept(place(x_row, x_byte));
  Column column(first_chunk * BK + x_byte, sizes.padded_channels, window);
  const bool whole = sizes.x_vectors != 0 && sizes.channels % 16 == 0;
  const Byte* const padding = reinterpret_cast<const Byte*>(offset);
  x += group * sizes.channels;

  for (int row = thread; row < BM; row += THREADS)
    rows[row] = window_start(first_pixel + row, sizes, window);
  __syncthreads();

  const auto copy_x = [&](int stage) {
    unsigned char* const to = shared + stage * STAGE + x_place;
    const int exist = min(sizes.channels - column.channel, 16);
    // Outside every image where no channel is left, or no tap.
    const bool is_left = exist > 0 && column.at[0] < column.end(0, window);
    const int d = is_left ? column.at[0] : -(1 << 30);
    const int h = column.at[1], w = column.at[2];
    const int tap = column.place(window) * sizes.x_pitch + column.channel;
    // Of each row; -1 outside the image. All are computed before the first copy, behind which
    // the compiler would leave the others.
    int places[BM / X_ROWS];
#pragma unroll
    for (int i = 0; i < BM / X_ROWS; ++i) {
      const int4 start = rows[x_row + i * X_ROWS];
      const bool inside = unsigned(start.y + d) < unsigned(window.input[0]) &&
                          unsigned(start.z + h) < unsigned(window.input[1]) &&
                          unsigned(start.w + w) < unsigned(window.input[2]);
      places[i] = inside ? start.x + tap : -1;
    }
    const auto for_each_row = [&](const auto& copy) {
#pragma unroll
      for (int i = 0; i < BM / X_ROWS; ++i) {
        const bool inside = places[i] != -1;
        copy(reinterpret_cast<Byte*>(to + i * X_ROWS * BK), inside ? x + places[i] : padding,
             inside ? exist : 16);
      }
    };
    if (whole) {
      for_each_row([](Byte* at, const Byte* unit, int) { cp_async<16>(at, unit); });
    } else if (sizes.x_vectors != 0) {
      for_each_row([](Byte* at, const Byte* unit, int read) { cp_async_part<16>(at, unit, read); });
    } else {
      for_each_row([](Byte* at, const Byte* unit, int read) { copy_singly<16>(at, unit, read); });
    }
    column.advance(BK, channels, window);
  };

  // As in tensor_gemm.cu: the row and the vector that this lane gives ldmatrix the address of.
  const int warp_pixel = warp % (BM / WM) * WM, warp_filter = warp / (BM / WM) * WN;
  const int x_lane = kept((warp_pixel + lane % 16) * BK + (lane / 16 ^ lane % 8) * 16);
  const int weight_lane =
      kept((BM + warp_filter + lane / 16 * 8 + lane % 8) * BK + (lane / 8 % 2 ^ lane % 8) * 16);
  int sums[M][N][4];
  if constexpr (!WARPGROUPS) clear(sums);

  // Begins the products of a chunk, which only the first stores instead of adding.
  const unsigned tiles = shared_address(shared);
  const auto begin_products = [&](int stage, bool add) {
    if constexpr (WARPGROUPS) {
      const unsigned begin = tiles + unsigned(stage * STAGE);
      const unsigned long long a = wgmma_tile(begin + warp / 4 * (64 * BK));
      const unsigned long long b = wgmma_tile(begin + BM * BK);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < BK / 32; ++step) {
        const bool adds = add || step > 0;
        const unsigned long long of_step = unsigned(step) * 2;
        wgmma_u8s8(in_a_row(sums), a + of_step, b + of_step, adds);
      }
      wgmma_commit();
    }
  };

  const auto multiply_chunk = [&](int stage) {
    const unsigned char* const chunk = shared + stage * STAGE;
#pragma unroll
    for (int step = 0; step < BK / 32; ++step) {
      unsigned left[M][4], right[N][2];
#pragma unroll
      for (int m = 0; m < M; ++m) ldmatrix_x4(left[m], chunk + (x_lane ^ step * 32) + m * 16 * BK);
#pragma unroll
      for (int n = 0; n < N; n += 2) {
        unsigned two[4];
        ldmatrix_x4(two, chunk + (weight_lane ^ step * 32) + n * 8 * BK);
#pragma unroll
        for (int i = 0; i < 4; ++i) right[n + i / 2][i % 2] = two[i];
      }
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N; ++n) mma_m16n8k32_u8s8(sums[m][n], left[m], right[n]);
    }
  };

  wait_for_previous();
#pragma unroll 1
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (first_chunk + stage < last_chunk) copy_x(stage);
    cp_async_commit();
  }
  int reading = 0, writing = STAGES - 1;
  for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {
    cp_async_wait<STAGES - 2>();
    if constexpr (WARPGROUPS) fence_proxy_async();
    __syncthreads();  // this chunk is there for all, and the one before it read by all
    if constexpr (WARPGROUPS) begin_products(reading, chunk > first_chunk);
    if (chunk + STAGES - 1 < last_chunk) {
      copy_weights(writing);
      copy_x(writing);
    }
    cp_async_commit();
    if constexpr (WARPGROUPS)
      wgmma_wait<0>();
    else
      multiply_chunk(reading);
    reading = reading + 1 == STAGES ? 0 : reading + 1;
    writing = writing + 1 == STAGES ? 0 : writing + 1;
  }

  if (WARPGROUPS && first_chunk >= last_chunk) clear(sums);  // no product has stored any

  int* const all_sums = reinterpret_cast<int*>(shared);
  __syncthreads();  // all have read the last chunk
  let_next_begin_late();
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; i += 2)
        *reinterpret_cast<int2*>(all_sums + ((warp_pixel + lane / 4 + m * 16 + i * 4) * PITCH +
                                             warp_filter + lane % 4 * 2 + n * 8)) =
            make_int2(sums[m][n][i], sums[m][n][i + 1]);
  __syncthreads();

  write_bytes<BM, BN, PITCH, THREADS>(
      all_sums, {offset, scale, residual, y, workspace, counters, rounding}, split, splits,
      blockIdx.z * gridDim.x + blockIdx.x, sizes, group * sizes.filters + first_filter,
      (group + 1) * sizes.filters,
      [&](int row) { return first_pixel + row < sizes.pixels ? first_pixel + row : -1; });
}
