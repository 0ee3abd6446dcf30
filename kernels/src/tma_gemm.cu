// Convolution by wgmma as conv_tensor's (tensor_gemm.cu), on sm_90a alone, at two precisions, its
// factors copied by the tensor memory accelerator: y = activation(conv(x, weight) + bias +
// residual).
//
// Algorithm: a block multiplies BM pixels x BN filters in chunks of 128 bytes of the inner
//   dimension, BK elements. One thread of the last warp copies both factors, a whole tile at once,
//   where tensor maps say they lie: pixels window by window at one tap (im2col), where windows are
//   single pixels and the weights as matrices. All else has zeros: what is outside an image, or
//   beyond the last channel, pixel or filter. The other warps multiply.
//   Barriers in shared memory (mbarrier), two for each of STAGES chunks: `full` counts the bytes of
//   a chunk as they arrive, `empty` the warps that have multiplied it.
//   TOGETHER blocks, 2 or 4, may be a cluster, of which two have the same pixels or the same
//   filters; of 4 blocks each shares its pixels with one neighbour and its filters with another.
//   Both copy half of the rows that they share, to both, and a chunk is empty when all blocks that
//   get a part of it from this one have multiplied it. The parts of a split may be of that cluster
//   too: then there is no workspace, and each block finishes some rows of its tile.
//   wgmma has 64 rows and any multiple of 8 columns: rows are pixels, or, with FILTER_ROWS,
//   filters, so that a tile has as few pixels as a small image.
// Layouts: x, residual, y are N·H·W pixels, those of x at multiples of 16 bytes, which a projected
//   residual's are too. A chunk is of one tap: the inner dimension is T·R·S taps x channels, then
//   the projected channels, each filled up to BK. The weights are conv_tensor's, where rows of
//   a tap end in those of the next: there pixels are zeros. Shared memory has tiles as wgmma reads
//   them; sums and the workspace are conv_tensor's, with FILTER_ROWS in rows of BN + 4 floats, so
//   that the 4 pixels and 8 filters that a warp stores at once lie in different banks.
// Launch: (tiles, splits) blocks of a warpgroup for 64 rows and one warp more, in clusters of
//   (TOGETHER, 1), or of (TOGETHER, splits) without a workspace.
//   Clusters of 1, 2 or 4 tiles are in the order of their filters, then of their pixels, and so are
//   the tiles of one. Dynamic shared memory: STAGES chunks of both factors, or a tile's sums.
#include "bulk.cuh"
#include "cluster_sum.cuh"
#include "implicit_gemm.cuh"
#include "tensor_gemm.cuh"

// kernels/convolution/tma_gemm.py: how the factors of one launch are copied.
struct Copies {
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

  const unsigned thread = kept(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int split = blockIdx.y, splits = sizes.splits;
  const bool in_cluster = splits > 1 && workspace == nullptr;
  // Which tile of its cluster's filters this block has, and which of its pixels. Blocks of one part
  // of a split are neighbours.
  const int of_all = TOGETHER > 1 ? int(cluster_rank()) : 0, rank = of_all % TOGETHER;
  const int filter = copies.filters > 1 ? rank % 2 : 0;
  const int row = copies.filters > 1 ? rank / 2 : rank;
  const bool halves_x = TOGETHER > 1 && copies.filters > 1;
  const bool halves_weights = TOGETHER == 4 || (TOGETHER == 2 && copies.filters == 1);
  unsigned cluster = blockIdx.x / TOGETHER;
  const int filter_cluster = int(peel(cluster, copies.filter_clusters));
  const int first_filter = (filter_cluster * copies.filters + filter) * BN;
  const int first_pixel = (int(cluster) * copies.pixels + row) * BM;
  const int of_x = window.kernel[0] * window.kernel[1] * window.kernel[2] * copies.tap_chunks;
  const int chunks = of_x + (projection.channels + BK - 1) / BK;
  const int first_chunk = int(quotient(chunks * split, sizes.splits));
  const int count = int(quotient(chunks * (split + 1), sizes.splits)) - first_chunk;

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
    if (lane != 0) return;
    // By rank, the blocks that have the same filters, and those that have the same pixels.
    const int of_part = of_all - rank;
    const unsigned of_filters = (TOGETHER == 4 ? 5u << filter : 3u) << of_part;
    const unsigned of_pixels = (TOGETHER == 4 ? 3u << 2 * row : 3u) << of_part;
    const int taps = window.kernel[0] * window.kernel[1] * window.kernel[2];
    const auto copy_weights = [&](int i, int stage) {
      const int chunk = first_chunk + i;
      unsigned tap = chunk;
      int column = int(peel(tap, copies.tap_chunks)) * BK + int(tap) * sizes.padded_channels;
      if (chunk >= of_x) column = taps * sizes.padded_channels + (chunk - of_x) * BK;
      unsigned char* const to = shared + stage * STAGE + BM * ROW;
      mbarrier_expect(full + stage, STAGE);
      if (halves_weights) {
        constexpr int HALF = BN / 2;
        multicast_tile(to + row * HALF * ROW, weight, column, first_filter + row * HALF,
                       full + stage, static_cast<unsigned short>(of_filters));
      } else {
        copy_tile(to, weight, column, first_filter, full + stage);
      }
    };
    wait_before_weights();
#pragma unroll 1
    for (int i = 0; i < STAGES && i < count; ++i) copy_weights(i, i);

    // The first of the windows that this block copies pixels of.
    const int pixel = first_pixel + (halves_x ? filter * (BM / 2) : 0);
    unsigned image = pixel;
    const int w = int(peel(image, window.output[2])), h = int(peel(image, window.output[1]));
    const int from_w = w * window.stride[2] - window.pad_begin[2];
    const int from_h = h * window.stride[1] - window.pad_begin[1];
    const auto copy_x = [&](int i, int stage) {
      const int chunk = first_chunk + i;
      unsigned char* const to = shared + stage * STAGE + (halves_x ? filter * (BM / 2) * ROW : 0);
      const bool is_of_x = chunk < of_x;
      unsigned tap = is_of_x ? chunk : chunk - of_x;
      int channel = tap * BK, s = 0, r = 0, at_w = w * projection.stride[2],
          at_h = h * projection.stride[1];
      if (is_of_x) {
        channel = int(peel(tap, copies.tap_chunks)) * BK;
        s = int(peel(tap, window.kernel[2])) * window.dilation[2];
        r = int(peel(tap, window.kernel[1])) * window.dilation[1];
        at_w = from_w, at_h = from_h;
      }
      const TensorMap& map = is_of_x ? x : projected;
      if (is_of_x && copies.pointwise) {
        if (halves_x)
          multicast_tile(to, map, channel, pixel, full + stage,
                         static_cast<unsigned short>(of_pixels));
        else
          copy_tile(to, map, channel, pixel, full + stage);
      } else if (halves_x) {
        multicast_pixels(to, map, channel, at_w, at_h, image, s, r, full + stage,
                         static_cast<unsigned short>(of_pixels));
      } else {
        copy_pixels(to, map, channel, at_w, at_h, image, s, r, full + stage);
      }
    };
    wait_for_previous();
    int stage = 0, parity = 1;  // of the round before
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      if (i >= STAGES) {
        mbarrier_wait(empty + stage, parity);
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
  const int x_lane = kept((warp * 16 + lane % 16) * ROW + (lane / 16 ^ lane % 8) * 16);
  Sums<1, COLUMNS / 8> sums;
  wait_for_previous();
  int stage = 0, parity = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    mbarrier_wait(full + stage, parity);
    begin_products<PRECISION>(sums, shared + stage * STAGE,
                              warp / 4 * (64 * ROW) + (FILTER_ROWS ? BM * ROW : 0),
                              FILTER_ROWS ? 0 : BM * ROW, x_lane, i > 0);
    wgmma_wait<PENDING>();
    if (i >= PENDING)
      release(i - PENDING, PENDING == 0 ? stage : (stage == 0 ? STAGES : stage) - 1);
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  wgmma_wait<0>();
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
  if (in_cluster) cluster_wait();  // the others may read this block's part until then
}
