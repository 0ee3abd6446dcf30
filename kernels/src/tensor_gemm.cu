// Convolution as an implicit matrix product on tensor cores, at three precisions:
// y = activation(conv(x, weight) + bias + residual).
//
//   FP16    x, weight, residual and y are halves; products are exact, and their sums are floats.
//   TF32    All are floats; 11 bits of each factor are multiplied.
//   TF32X3  All are floats, and y has a float's accuracy. Each factor is the sum of two TF32
//           numbers, big + small. Of their four products, the smallest (2^-22 of the whole) is left
//           out; the others are summed, the smallest first. Tensor cores truncate sums, and such
//           errors have one direction and add up in a network. So tensor cores sum only 8 products,
//           and floats add these sums, with rounding (Ootomo & Yokota 2022). Infinity is preserved.
//
// Algorithm: as in implicit_gemm.cu, with tiles of BM pixels x BN filters, of which a warp
//   multiplies WM x WN with mma.sync. In shared memory both factors have a row of 128 bytes of the
//   inner dimension for each pixel or filter. ldmatrix then loads the registers of a fragment at
//   every precision: 8 rows x 16 bytes are 8 x 8 halves, or 8 x 4 floats.
//   Row r has its 16-byte vector v at place v ^ r % 8. So the 8 rows of a matrix lie in different
//   banks, and so do the 8 vectors that neighbouring threads copy.
//   On sm_90a, with WARPGROUPS, wgmma reads these rows itself: a warpgroup multiplies 64 pixels x
//   BN filters, a warp 16 of the pixels, and the sums have the layout of mma.sync's. wgmma would
//   truncate TF32 factors. So pixels pass through registers, where they are rounded; weights were
//   rounded on the host. In TF32X3, pixels are split in these registers. The thread that copied a
//   weight splits it: `big` overwrites the weight, and `small` has its own place after the chunks.
//   A projection (of the residual's channels at a stride) extends the inner dimension. A chunk's
//   unit is copied from x or from the residual; `rows` says where each pixel's window lies in both.
// Layouts: x, residual, y are N·D·H·W pixels with any pitch. The inner dimension is T·R·S taps x
//   channels, padded to UNIT, then the projected channels, also padded to UNIT. A UNIT is copied at
//   once: 16 bytes, or 8 if images have few channels. weight is G x K/G x inner, padded with zeros
//   to 16 bytes (kernels/convolution/tensor_gemm.py, prepare_filter). A tile's sums are BM x (BN +
//   8) floats, so that the rows that half a warp writes at once lie in different banks. The
//   workspace is tiles x splits of such tiles.
// Launch: (tiles, splits, groups) blocks of BM / WM · BN / WN warps; tiles along filters vary
//   fastest. With WARPGROUPS, the blocks of a split may form a cluster of (1, splits, 1) blocks,
//   and there is no workspace. Dynamic shared memory: STAGES chunks of both factors, or a tile's
//   sums; and 16 bytes per pixel, or 32 with a projection.
//   At least 4 blocks per multiprocessor for TF32X3 with a small tile: with a bound of 1 ptxas took
//   118 registers, too many for a third block of 32 x 64; without a bound, an iteration had 55 more
//   instructions. At least 2 blocks of the largest tile with WARPGROUPS, which took 134 registers
//   without a bound.
#include "cluster_sum.cuh"
#include "fragments.cuh"
#include "implicit_gemm.cuh"

// As window_start: every output pixel reads one that exists.
__device__ __forceinline__ int4 projected_start(int pixel, const Sizes& sizes, const Window& window,
                                                const Projection& projection) {
  unsigned index = pixel;
  int at[3];
#pragma unroll
  for (int axis = 2; axis >= 0; --axis)
    at[axis] = int(peel(index, window.output[axis])) * projection.stride[axis];
  const int place = ((int(index) * projection.input[0] + at[0]) * projection.input[1] + at[1]) *
                        projection.input[2] +
                    at[2];
  return make_int4(place * sizes.residual_pitch, pixel < sizes.pixels ? 0 : -(1 << 30), 0, 0);
}

// Blocks of tiles of TILE sums on a multiprocessor for which registers are to suffice; 0 where the
// compiler decides.
template <Precision PRECISION, bool WARPGROUPS, int TILE>
constexpr int min_blocks =
    WARPGROUPS ? (PRECISION != Precision::TF32X3 && TILE == 128 * 128 ? 2 : 0)
    : PRECISION == Precision::TF32X3 && TILE <= 2048 ? 4
                                                     : 0;

template <Precision PRECISION, bool WARPGROUPS, int UNIT, int BM, int BN, int BK, int WM, int WN,
          int STAGES, Finish FINISH>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32,
                                  min_blocks<PRECISION, WARPGROUPS, BM * BN>)
    conv_tensor(const Element<PRECISION>* x, const Element<PRECISION>* __restrict__ weight,
                const float* bias, const Element<PRECISION>* residual, Element<PRECISION>* y,
                float* workspace, unsigned* counters, Sizes sizes, Window window,
                Projection projection, int activation, float a, float b) {
  let_next_begin();
  using T = Element<PRECISION>;
  constexpr int THREADS = BM / WM * (BN / WN) * 32;
  constexpr int ROW = BK * int(sizeof(T)), VECTOR = 16 / int(sizeof(T));
  constexpr int X_ROWS = THREADS / (BK / UNIT), WEIGHT_ROWS = THREADS / (BK / VECTOR);
  constexpr int STAGE = (BM + BN) * ROW, PITCH = BN + 8;
  constexpr bool SPLITS = WARPGROUPS && PRECISION == Precision::TF32X3;
  constexpr int SMALLS = STAGES * STAGE;  // where they begin, of two chunks in turn
  constexpr int CHUNKS = SMALLS + (SPLITS ? 2 * BN * ROW : 0);
  constexpr int CHUNKS_OR_SUMS = CHUNKS > BM * PITCH * 4 ? CHUNKS : BM * PITCH * 4;
  constexpr int M = WM / 16, N = WN / 8;
  // Steps that have sums of their own at the same time, for which registers suffice.
  constexpr int STEPS = !SPLITS ? 0 : BN <= 64 ? 4 : 2;
  static_assert(ROW == 128, "a row has 8 vectors");
  static_assert(UNIT == VECTOR || UNIT == VECTOR / 2, "copies are of 16 or 8 bytes");
  static_assert(BM % X_ROWS == 0 && BN % WEIGHT_ROWS == 0, "threads must divide a chunk");
  static_assert(X_ROWS % 8 == 0 && WEIGHT_ROWS % 8 == 0, "all rows of a thread are swizzled alike");
  static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0, "tiles must fit");
  static_assert(!WARPGROUPS || BM % 64 == 0, "warpgroups");
  static_assert(!SPLITS || CHUNKS_OR_SUMS == CHUNKS, "sums fit where chunks were");
  static_assert(!WARPGROUPS || (WM == 16 && WN == BN), "a warp has 16 pixels of its warpgroup's");
  unsigned char* shared;
  if constexpr (WARPGROUPS) {
    SWIZZLED_SHARED(unsigned char, tiles);
    shared = tiles;
  } else {
    DYNAMIC_SHARED(unsigned char, tiles);
    shared = tiles;
  }
  // Of each pixel window_start in x, then projected_start in the residual.
  int4* const rows = reinterpret_cast<int4*>(shared + CHUNKS_OR_SUMS);

  const unsigned thread = kept(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int group = blockIdx.z, split = blockIdx.y, splits = sizes.splits;
  unsigned pixel_tile = blockIdx.x;
  const int first_filter = int(peel(pixel_tile, sizes.filter_tiles)) * BN;
  const int first_pixel = int(pixel_tile) * BM;
  const int channels = sizes.padded_channels;
  const int of_x = window.kernel[0] * window.kernel[1] * window.kernel[2] * channels;
  const int inner = of_x + (projection.channels + UNIT - 1) / UNIT * UNIT;
  const int weight_pitch = (inner + VECTOR - 1) / VECTOR * VECTOR;
  const int chunks = (inner + BK - 1) / BK;
  const int first_chunk = int(quotient(chunks * split, sizes.splits));
  const int last_chunk = int(quotient(chunks * (split + 1), sizes.splits));

  // What this thread copies of every chunk: a vector of every WEIGHT_ROWS-th filter, a unit of
  // every X_ROWS-th pixel. Those are multiples of 8 rows apart: all have the vector at one place.
  const auto place = [](int row, int element) {
    const int byte = element * int(sizeof(T));
    return row * ROW + ((byte / 16 ^ row % 8) * 16 | byte % 16);
  };
  const int weight_row = thread / (BK / VECTOR), weight_element = thread % (BK / VECTOR) * VECTOR;
  const int weight_place = kept(BM * ROW + place(weight_row, weight_element));
  const int filters = sizes.filters - first_filter - weight_row;  // that are left, from this one on
  int weight_inner = first_chunk * BK + weight_element;
  const T* weight_from =
      weight +
      (size_t(group * sizes.filters + first_filter + weight_row) * weight_pitch + weight_inner);

  const auto copy_weights = [&](int stage) {
    unsigned char* const to = shared + stage * STAGE + weight_place;
    const int exist = weight_inner < weight_pitch ? filters : 0;
#pragma unroll
    for (int i = 0; i < BN; i += WEIGHT_ROWS)
      cp_async<16>(to + i * ROW, weight_from + size_t(i) * weight_pitch, i < exist);
    weight_inner += BK;
    weight_from += BK;
  };
  prefetch_weights(weight, size_t(gridDim.z) * sizes.filters * weight_pitch);
  wait_before_weights();
#pragma unroll 1
  for (int stage = 0; stage < STAGES - 1; ++stage)
    if (first_chunk + stage < last_chunk) copy_weights(stage);

  const int x_row = thread / (BK / UNIT), x_element = thread % (BK / UNIT) * UNIT;
  const int x_place = kept(place(x_row, x_element));
  int x_inner = first_chunk * BK + x_element;
  Column column(x_inner, sizes.padded_channels, window);
  const bool whole =
      sizes.x_vectors != 0 && sizes.channels == channels && projection.channels % UNIT == 0;
  x += group * sizes.channels;

  for (int row = thread; row < BM; row += THREADS) {
    rows[row] = window_start(first_pixel + row, sizes, window);
    if (projection.channels > 0)
      rows[BM + row] = projected_start(first_pixel + row, sizes, window, projection);
  }
  __syncthreads();

  const auto copy_x = [&](int stage) {
    unsigned char* const to = shared + stage * STAGE + x_place;
    const bool is_of_x = x_inner < of_x;
    const int channel = is_of_x ? column.channel : x_inner - of_x;
    const int exist = (is_of_x ? sizes.channels : projection.channels) - channel;
    const int h = is_of_x ? column.at[1] : 0;
    const int w = is_of_x ? column.at[2] : 0;
    // Outside every image where no channel is left.
    const int d = exist <= 0 ? -(1 << 30) : is_of_x ? column.at[0] : 0;
    // Also where nothing is left to copy, the address must be a vector's.
    const T* const from = is_of_x || projection.channels == 0 ? x : residual;
    // Unsigned, for what lies outside every image goes beyond 31 bits.
    const int tap = int(((unsigned(is_of_x ? d : 0) * window.input[1] + h) * window.input[2] + w) *
                            sizes.x_pitch +
                        channel);
    const int4* const starts = rows + x_row + (is_of_x || projection.channels == 0 ? 0 : BM);
    // Of each row; -UNIT where nothing is copied. All are computed before the first copy, behind
    // which the compiler would leave the others.
    int places[BM / X_ROWS];
#pragma unroll
    for (int i = 0; i < BM / X_ROWS; ++i) {
      const int4 start = starts[i * X_ROWS];
      const bool inside = unsigned(start.y + d) < unsigned(window.input[0]) &&
                          unsigned(start.z + h) < unsigned(window.input[1]) &&
                          unsigned(start.w + w) < unsigned(window.input[2]);
      places[i] = inside ? start.x + tap : -UNIT;
    }
    const auto for_each_row = [&](const auto& copy) {
#pragma unroll
      for (int i = 0; i < BM / X_ROWS; ++i)
        copy(reinterpret_cast<T*>(to + i * X_ROWS * ROW), from + places[i], places[i] != -UNIT);
    };
    constexpr int BYTES = UNIT * int(sizeof(T));
    if (whole) {
      for_each_row([](T* at, const T* unit, bool inside) { cp_async<BYTES>(at, unit, inside); });
    } else if (sizes.x_vectors != 0) {
      const int bytes = min(exist, UNIT) * int(sizeof(T));
      for_each_row([bytes](T* at, const T* unit, bool inside) {
        cp_async_part<BYTES>(at, unit, inside ? bytes : 0);
      });
    } else {
      for_each_row([exist](T* at, const T* unit, bool inside) {
        copy_singly<UNIT>(at, unit, inside ? exist : 0);
      });
    }
    column.advance(BK, channels, window);
    x_inner += BK;
  };

  // The row and the vector that this lane gives ldmatrix the address of: 4 matrices are 16 rows x 2
  // vectors, of x the rows first, of the weights the vectors first.
  const int warp_pixel = warp % (BM / WM) * WM, warp_filter = warp / (BM / WM) * WN;
  const int x_lane = kept((warp_pixel + lane % 16) * ROW + (lane / 16 ^ lane % 8) * 16);
  const int weight_lane =
      kept((BM + warp_filter + lane / 16 * 8 + lane % 8) * ROW + (lane / 8 % 2 ^ lane % 8) * 16);
  Sums<M, N> sums;
  if constexpr (!WARPGROUPS || SPLITS) clear(sums);
  const unsigned tiles = shared_address(shared);

  // What this thread copied of a chunk's weights.
  const auto split_weights = [&](int stage, int small) {
    unsigned char* const big = shared + stage * STAGE + weight_place;
    unsigned char* const rest = shared + SMALLS + small * (BN * ROW) + (weight_place - BM * ROW);
#pragma unroll
    for (int i = 0; i < BN * ROW; i += WEIGHT_ROWS * ROW) {
      const Vec<4> weights = load<4>(reinterpret_cast<const float*>(big + i));
      unsigned parts[2][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) parts[0][j] = __float_as_uint(weights.at[j]);
      split_tf32<true>(parts[0], parts[1]);
#pragma unroll
      for (int part = 0; part < 2; ++part)
        store<4>(reinterpret_cast<float*>((part == 0 ? big : rest) + i),
                 Vec<4>{__uint_as_float(parts[part][0]), __uint_as_float(parts[part][1]),
                        __uint_as_float(parts[part][2]), __uint_as_float(parts[part][3])});
    }
  };

  // Begins the products of some steps of a chunk in TF32X3, each with its own sums.
  Sums<M, N> of_steps[STEPS > 0 ? STEPS : 1];
  const auto begin_steps = [&](int stage, int small, int first) {
    if constexpr (SPLITS) {
      const unsigned long long b = wgmma_tile(tiles + unsigned(stage * STAGE + BM * ROW));
      const unsigned long long b_small = wgmma_tile(tiles + unsigned(SMALLS + small * (BN * ROW)));
      unsigned x[STEPS][4], x_small[STEPS][4];
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        ldmatrix_x4(x[step], shared + stage * STAGE + (x_lane ^ (first + step) * 32));
        split_tf32<false>(x[step], x_small[step]);
      }
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        const auto at = unsigned(first + step) * 2;
        wgmma_tf32(in_a_row(of_steps[step]), x_small[step], b + at, false);
        wgmma_tf32(in_a_row(of_steps[step]), x[step], b_small + at, true);
        wgmma_tf32(in_a_row(of_steps[step]), x[step], b + at, true);
      }
      wgmma_commit();
    }
  };
  const auto add_steps = [&] {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[m][n][i] += of_steps[step][m][n][i];
  };

  const auto multiply_chunk = [&](int stage) {
    const unsigned char* const chunk = shared + stage * STAGE;
#pragma unroll
    for (int step = 0; step < ROW / 32; ++step) {
      Fragments<M, N> factors;
#pragma unroll
      for (int m = 0; m < M; ++m)
        ldmatrix_x4(factors.a[m], chunk + (x_lane ^ step * 32) + m * 16 * ROW);
#pragma unroll
      for (int n = 0; n < N; n += 2) {
        unsigned two[4];
        ldmatrix_x4(two, chunk + (weight_lane ^ step * 32) + n * 8 * ROW);
#pragma unroll
        for (int i = 0; i < 4; ++i) factors.b[n + i / 2][i % 2] = two[i];
      }
      multiply_step<PRECISION, true>(sums, factors);
    }
  };

  wait_for_previous();
#pragma unroll 1
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (first_chunk + stage < last_chunk) copy_x(stage);
    cp_async_commit();
  }
  int reading = 0, writing = STAGES - 1, small = 0;
  if constexpr (SPLITS) {
    cp_async_wait<STAGES - 2>();
    if (first_chunk < last_chunk) split_weights(reading, small);
  }
  for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {
    if constexpr (!SPLITS) cp_async_wait<STAGES - 2>();
    if constexpr (WARPGROUPS) fence_proxy_async();
    __syncthreads();  // this chunk is there for all, and the one before it read by all
    if constexpr (SPLITS) begin_steps(reading, small, 0);
    if constexpr (WARPGROUPS && !SPLITS)
      begin_products<PRECISION>(sums, shared + reading * STAGE, warp / 4 * (64 * ROW), BM * ROW,
                                x_lane, chunk > first_chunk);
    if (chunk + STAGES - 1 < last_chunk) {
      copy_weights(writing);
      copy_x(writing);
    }
    cp_async_commit();
    const int next = reading + 1 == STAGES ? 0 : reading + 1;
    if constexpr (SPLITS) {
      // The next chunk's weights, meanwhile: of `smalls` others read this chunk's alone.
      cp_async_wait<STAGES - 2>();
      if (chunk + 1 < last_chunk) split_weights(next, small ^ 1);
    }
    if constexpr (WARPGROUPS)
      wgmma_wait<0>();
    else
      multiply_chunk(reading);
    if constexpr (SPLITS) {
      add_steps();
      if constexpr (STEPS < ROW / 32) {
        begin_steps(reading, small, STEPS);
        wgmma_wait<0>();
        add_steps();
      }
      small ^= 1;
    }
    reading = next;
    writing = writing + 1 == STAGES ? 0 : writing + 1;
  }

  if (WARPGROUPS && !SPLITS && first_chunk >= last_chunk) clear(sums);  // no product has stored any

  const unsigned tile = blockIdx.z * gridDim.x + blockIdx.x;
  float* const all_sums = reinterpret_cast<float*>(shared);
  float* const to = all_sums + ((warp_pixel + lane / 4) * PITCH + warp_filter + lane % 4 * 2);
  __syncthreads();  // all have read the last chunk
  let_next_begin_late();
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; i += 2)
        store<2>(to + (m * 16 + i * 4) * PITCH + n * 8, Vec<2>{sums[m][n][i], sums[m][n][i + 1]});
  __syncthreads();
  // Of a cluster, each block finishes some rows; all have whole tiles otherwise.
  const bool in_cluster = WARPGROUPS && splits > 1 && workspace == nullptr;
  int first_row = 0, end = sizes.pixels;
  if constexpr (WARPGROUPS) {
    if (in_cluster) {
      const int exist = min(end - first_pixel, BM);
      const int each = int(quotient(exist + splits - 1, sizes.splits));
      first_row = min(split * each, exist);
      const int count = min(each, exist - first_row);
      end = first_pixel + first_row + count;
      add_up_rows<BN, PITCH, THREADS>(all_sums + first_row * PITCH, count, splits, 1, 0);
    }
  }
  // The threads that added a row up are those that finish it.
  write_tile<BM, BN, PITCH, THREADS>(
      all_sums + first_row * PITCH, workspace + size_t(tile) * splits * (BM * PITCH), split,
      in_cluster ? 1 : splits, counters + tile, end, first_pixel + first_row,
      group * sizes.filters + first_filter,
      epilogue_of<FINISH>(sizes, bias, projection.channels > 0 ? nullptr : residual, y, activation,
                          a, b, group));
  if constexpr (WARPGROUPS) {
    if (in_cluster) cluster_wait();  // the others may read this block's part until then
  }
}
