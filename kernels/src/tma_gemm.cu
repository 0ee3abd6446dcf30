// Convolution with wgmma as in conv_tensor (tensor_gemm.cu), only on sm_90a and at two precisions.
// The tensor memory accelerator copies the factors: y = activation(conv(x, weight) + bias +
// residual).
//
// Algorithm: a block multiplies BM pixels x BN filters in chunks of 128 bytes (BK elements) of the
//   inner dimension. One thread of the last warp copies whole tiles of both factors, whose layouts
//   tensor maps describe. Pixels are copied window by window at one tap (im2col). Weights are
//   copied as a matrix, and so are the pixels of 1×1 windows at stride 1. Elements outside an
//   image, or beyond the last channel, pixel or filter, are zeros. The other warps multiply.
//   Each of STAGES chunks has two barriers in shared memory (mbarrier): `full` counts the bytes of
//   a chunk that have arrived, and `empty` counts the warps that have multiplied it.
//   TOGETHER blocks, 2 or 4, may form a cluster. Two blocks have the same pixels or the same
//   filters; of 4 blocks, each shares its pixels with one neighbour and its filters with another.
//   Each block of a pair copies half of the shared rows into both blocks. A chunk is empty when all
//   blocks to which this block copies a part of it have multiplied it. The blocks of a split may
//   belong to the same cluster. Then there is no workspace, and each block finishes some rows of
//   the tile.
//   wgmma has 64 rows and any multiple of 8 columns. Rows are pixels or, with FILTER_ROWS, filters,
//   so that a tile can have as few pixels as a small image.
// Layouts: x, residual, y are N·H·W pixels; those of x, and of a projected residual, begin at
//   multiples of 16 bytes. The inner dimension is T·R·S taps x channels, then the projected
//   channels. Both are padded to BK, so a chunk has only one tap. The weights have conv_tensor's
//   layout, in which a tap's row ends where the next begins: a chunk may contain weights of the
//   next tap, which are multiplied by zeros. Shared memory has tiles in wgmma's layout. Sums and
//   the workspace are as in conv_tensor; with FILTER_ROWS they have rows of BN + 4 floats, so that
//   the 4 pixels and 8 filters that a warp stores at once lie in different banks.
// Launch: (tiles, splits) blocks of a warpgroup per 64 rows and one more warp, in clusters of
//   (TOGETHER, 1) blocks, or of (TOGETHER, splits) without a workspace. Clusters along filters vary
//   fastest, then clusters along pixels; so do the tiles in a cluster. Dynamic shared memory:
//   STAGES chunks of both factors, or a tile's sums.
#include "bulk.cuh"
#include "cluster_sum.cuh"
#include "implicit_gemm.cuh"
#include "tensor_gemm.cuh"

// kernels/convolution/tma_gemm.py: how the factors of one launch are copied.
struct Copies {
  int chunks;               // of a whole sum
  int of_x;                 // of these, the first ones; the others are of what is projected
  Divisor tap_chunks;       // of x's channels at one tap
  int pointwise;            // whether x is copied as a matrix of pixels
  int pixels;               // tiles of pixels of a cluster: 2 where blocks share filters, else 1
  int filters;              // tiles of filters, likewise
  Divisor filter_clusters;  // of all filters
};

template <Precision PRECISION, int TOGETHER, bool FILTER_ROWS, int BM, int BN, int BK, int STAGES,
          Finish FINISH>
__global__ void __launch_bounds__((FILTER_ROWS ? BN : BM) * 2 + 32)
    conv_tensor_tma(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weight,
                    const __grid_constant__ TensorMap projected, Copies copies, const float* bias,
                    const Element<PRECISION>* residual, Element<PRECISION>* y, float* workspace,
                    unsigned* counters, Sizes sizes, Window window, Projection projection,
                    int activation, float a, float b) {
  let_next_begin();
  constexpr int ROWS = FILTER_ROWS ? BN : BM, COLUMNS = FILTER_ROWS ? BM : BN;  // of wgmma
  constexpr int MULTIPLYING = ROWS * 2;                                         // threads
  constexpr int ROW = 128, STAGE = (BM + BN) * ROW, PITCH = BN + (FILTER_ROWS ? 4 : 8);
  constexpr int READERS = TOGETHER == 4 ? 3 : TOGETHER;  // blocks that get what one copies
  static_assert(BK * int(sizeof(Element<PRECISION>)) == ROW && ROWS % 64 == 0, "tiles of wgmma");
  static_assert(!FILTER_ROWS || PRECISION == Precision::FP16, "TF32's pixels lie in registers");
  static_assert(PRECISION != Precision::TF32X3, "factors that are split pass through registers");
  SWIZZLED_SHARED(unsigned char, shared);
  __shared__ unsigned long long full[STAGES], empty[STAGES];

  const unsigned thread = kept(threadIdx.x), lane = thread % 32;
  // Of the first lane, so that ptxas knows it to be that of all: descriptors are in uniform
  // registers.
  const unsigned warp = __shfl_sync(~0u, thread / 32, 0);
  const int split = blockIdx.y, splits = sizes.splits;
  const bool in_cluster = splits > 1 && workspace == nullptr;
  // Which tile of its cluster's filters this block has, and which of its pixels. Blocks of one part
  // of a split are neighbours.
  const unsigned of_all = TOGETHER > 1 ? cluster_rank() : 0, rank = of_all % TOGETHER;
  const int filter = int(copies.filters > 1 ? rank % 2 : 0);
  const int row = int(copies.filters > 1 ? rank / 2 : rank);
  const bool halves_x = TOGETHER > 1 && copies.filters > 1;
  const bool halves_weights = TOGETHER == 4 || (TOGETHER == 2 && copies.filters == 1);
  unsigned cluster = blockIdx.x / TOGETHER;
  const int filter_cluster = int(peel(cluster, copies.filter_clusters));
  const int first_filter = (filter_cluster * copies.filters + filter) * BN;
  const int first_pixel = (int(cluster) * copies.pixels + row) * BM;
  const int first_chunk = int(quotient(copies.chunks * split, sizes.splits));
  const int count = int(quotient(copies.chunks * (split + 1), sizes.splits)) - first_chunk;

  if (thread == 0) {
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(full + stage, 1);
      mbarrier_init(empty + stage, READERS * (MULTIPLYING / 32));
    }
    if constexpr (TOGETHER > 1) fence_mbarrier_init();
    fence_proxy_async();
  }
  if constexpr (TOGETHER > 1) {
    cluster_arrive_relaxed();
    cluster_wait();
  } else {
    __syncthreads();
  }

  if (warp == MULTIPLYING / 32) {
    if (!elected()) return;
    // By rank, the blocks that have the same filters, and those that have the same pixels.
    const unsigned of_part = of_all - rank;
    const unsigned short of_filters = (TOGETHER == 4 ? 5u << filter : 3u) << of_part;
    const unsigned short of_pixels = (TOGETHER == 4 ? 3u << 2 * row : 3u) << of_part;
    const int half_x = halves_x ? filter * (BM / 2) : 0;
    const int half_weights = halves_weights ? row * (BN / 2) : 0;
    unsigned char* const to_x = kept(shared + half_x * ROW);
    unsigned char* const to_weights = kept(shared + (BM + half_weights) * ROW);
    unsigned long long* const arrived = kept(full);
    unsigned long long* const released = kept(empty);

    // Chunks follow one another tap by tap, without a division for each; those of what is projected
    // as if of one more tap, which does not end.
    constexpr int ENDLESS = 0x7fffffff;
    const auto chunks_of_tap = [&](int i) {
      return first_chunk + i < copies.of_x ? int(copies.tap_chunks) : ENDLESS;
    };
    unsigned tap = min(first_chunk, copies.of_x);
    const int projected_chunks = first_chunk - int(tap);  // those that other parts have
    const int of_tap = int(peel(tap, copies.tap_chunks)) + projected_chunks;

    const int last_of_tap = sizes.padded_channels - (copies.tap_chunks - 1) * BK;  // columns
    int column = int(tap) * sizes.padded_channels + of_tap * BK;
    int weights_left = chunks_of_tap(0) - of_tap;
    const auto copy_weights = [&](int i, int stage) {
      unsigned char* const to = to_weights + stage * STAGE;
      mbarrier_expect(arrived + stage, STAGE);
      if (halves_weights)
        multicast_tile(to, weight, column, first_filter + half_weights, arrived + stage,
                       of_filters);
      else
        copy_tile(to, weight, column, first_filter, arrived + stage);
      if (--weights_left > 0)
        column += BK;
      else
        column += last_of_tap, weights_left = chunks_of_tap(i + 1);
    };
    wait_before_weights();
#pragma unroll 1
    for (int i = 0; i < STAGES && i < count; ++i) copy_weights(i, i);

    // The first of the windows that this block copies pixels of, and what its tap meets.
    unsigned image = first_pixel + half_x;
    const int w = int(peel(image, window.output[2])), h = int(peel(image, window.output[1]));
    int at_w = w * window.stride[2] - window.pad_begin[2];
    int at_h = h * window.stride[1] - window.pad_begin[1];
    int s = int(peel(tap, window.kernel[2])) * window.dilation[2];
    int r = int(peel(tap, window.kernel[1])) * window.dilation[1];
    int channel = of_tap * BK, x_left = chunks_of_tap(0) - of_tap;
    const TensorMap* map = &x;
    bool as_matrix = copies.pointwise;
    const auto project = [&] {  // from the next chunk on
      map = &projected, as_matrix = false, s = r = 0;
      at_w = w * projection.stride[2], at_h = h * projection.stride[1];
    };
    if (first_chunk >= copies.of_x) project();
    const auto copy_x = [&](int i, int stage) {
      unsigned char* const to = to_x + stage * STAGE;
      if (as_matrix) {
        if (halves_x)
          multicast_tile(to, *map, channel, first_pixel + half_x, arrived + stage, of_pixels);
        else
          copy_tile(to, *map, channel, first_pixel, arrived + stage);
      } else if (halves_x) {
        multicast_pixels(to, *map, channel, at_w, at_h, image, s, r, arrived + stage, of_pixels);
      } else {
        copy_pixels(to, *map, channel, at_w, at_h, image, s, r, arrived + stage);
      }
      channel += BK;
      if (--x_left > 0) return;
      channel = 0, x_left = chunks_of_tap(i + 1), s += window.dilation[2];
      if (s == window.kernel[2] * window.dilation[2]) s = 0, r += window.dilation[1];
      if (x_left == ENDLESS) project();
    };
    wait_for_previous();
    int stage = 0, parity = 1;  // of the round before
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      if (i >= STAGES) {
        mbarrier_wait(released + stage, parity);
        copy_weights(i, stage);
      }
      copy_x(i, stage);
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    return;
  }

  // A chunk whose place no other takes is released to no one: for all other arrivals the copying
  // thread waits, so that the block has not ended when the last one comes from its neighbour.
  const auto release = [&](int i, int stage) {
    if (lane != 0 || i + STAGES >= count) return;
    // This block, the one with the same pixels, and the one with the same filters.
#pragma unroll
    for (int reader = 0; reader < READERS; ++reader) {
      if constexpr (TOGETHER > 1)
        mbarrier_arrive_at(empty + stage, of_all ^ reader);
      else
        mbarrier_arrive(empty + stage);
    }
  };
  // Products of fp16 are under way while those of the next chunk begin; TF32's pixels lie in
  // registers, which the next chunk's take.
  constexpr int PENDING = PRECISION == Precision::FP16 ? 1 : 0;
  unsigned char* const tiles = kept(shared);
  unsigned long long* const arrived = kept(full);
  const int x_lane = kept((warp * 16 + lane % 16) * ROW + (lane / 16 ^ lane % 8) * 16);
  Sums<1, COLUMNS / 8> sums;
  wait_for_previous();
  int stage = 0, parity = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    mbarrier_wait(arrived + stage, parity);
    begin_products<PRECISION>(sums, tiles + stage * STAGE,
                              warp / 4 * (64 * ROW) + (FILTER_ROWS ? BM * ROW : 0),
                              FILTER_ROWS ? 0 : BM * ROW, x_lane, i > 0);
    wgmma_wait<PENDING>();
    if (i >= PENDING)
      release(i - PENDING, PENDING == 0 ? stage : (stage == 0 ? STAGES : stage) - 1);
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  wgmma_wait<0>();
  // All that this block waited for has arrived. It stays until that holds for the others too: of
  // the copies that it began their halves may be on the way.
  if (TOGETHER > 1 && !in_cluster) cluster_arrive_relaxed();
  if (count <= 0) clear(sums);  // no product has stored any

  const unsigned tile = blockIdx.x;
  float* const all_sums = reinterpret_cast<float*>(shared);
  const int row_lane = warp * 16 + lane / 4, column_lane = lane % 4 * 2;
  float* const to =
      all_sums + (FILTER_ROWS ? column_lane * PITCH + row_lane : row_lane * PITCH + column_lane);
  __syncthreads();  // all have multiplied the last chunk
  let_next_begin_late();
#pragma unroll
  for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      if constexpr (FILTER_ROWS) {
        to[n * 8 * PITCH + i * 4] = sums[0][n][i];
        to[(n * 8 + 1) * PITCH + i * 4] = sums[0][n][i + 1];
      } else {
        store<2>(to + i * 4 * PITCH + n * 8, Vec<2>{sums[0][n][i], sums[0][n][i + 1]});
      }
    }
  __syncthreads();
  // Of a cluster, each block finishes some rows; all have whole tiles otherwise.
  int first_row = 0, end = sizes.pixels;
  if (in_cluster) {
    const int exist = min(max(end - first_pixel, 0), BM);
    const int each = int(quotient(exist + splits - 1, sizes.splits));
    first_row = min(split * each, exist);
    const int count = min(each, exist - first_row);
    end = first_pixel + first_row + count;
    add_up_rows<BN, PITCH, MULTIPLYING>(all_sums + first_row * PITCH, count, splits, TOGETHER,
                                        rank);
  }
  // The threads that added a row up are those that finish it.
  write_tile<BM, BN, PITCH, MULTIPLYING>(
      all_sums + first_row * PITCH, workspace + size_t(tile) * splits * (BM * PITCH), split,
      in_cluster ? 1 : splits, counters + tile, end, first_pixel + first_row, first_filter,
      epilogue_of<FINISH>(sizes, bias, projection.channels > 0 ? nullptr : residual, y, activation,
                          a, b));
  // Until then the others may read this block's part, or be due to get what it copies.
  if (TOGETHER > 1 || in_cluster) cluster_wait();
}
