// Direct convolution on tensor cores, of halves or of bytes:
// y = activation(conv(x, weight) + bias + residual).
//
// Algorithm: a block computes BM output pixels x BN filters, with sums as in conv_tensor
//   (tensor_gemm.cu). conv_tensor reads an input pixel from the L2 cache once per tap. Here a block
//   copies its patch, all input pixels that its outputs read, to shared memory once, and every tap
//   reads it there. The channels are divided into slices of at most 128 bytes; the patch of the
//   next slice is copied while this slice is multiplied. Weights are copied in chunks of 128 bytes.
//   ldmatrix takes 8 rows of 16 bytes from any 8 places. So a fragment of x is 16 output pixels at
//   one tap or at two. A row's address is the place of its pixel in the patch plus an offset, which
//   depends on the tap and the 16 bytes of channels. The offsets are the same for all pixels, and
//   lie in a table.
//
//   Halves of few channels: a vector of 16 bytes may hold a pair of pixels, and so two taps. If the
//   window's width is odd, the last vector's second pixel is masked, because a weight of 0 would
//   not cancel a NaN.
//
//   Bytes: outside an image x is its zero point, copied from memory. Sums are whole numbers, which
//   requantize.cuh converts to bytes.
//
// Versions: when each block computed the table, and the loops before the first copy of x were
//   unrolled, the kernel of 64 x 32 had 639 instructions between that copy and its main loop. Now
//   it has 257.
// Layouts: x, residual, y are N·H·W pixels with any pitch. weight is K x slices x chunks x 128
//   bytes (kernels/convolution/tensor_patch.py, prepare_filter). In shared memory, filters lie an
//   odd number of vectors apart, so that 8 neighbours are in different banks. So do the patch's
//   places, each of which holds one pixel or pair. Two neighbouring outputs in a row read pixels
//   that are a stride apart; these pixels have neighbouring places (kernels/layout/patches.py,
//   Patch). From one row of outputs to the next, the place advances by the number of outputs in a
//   row, modulo 8, because the 8 rows of a matrix may belong to several rows of outputs. If a slice
//   does not fill its last chunk, each place ends with a vector of zeros, to which the table's last
//   offsets point.
// Launch: (tiles, splits) blocks; tiles along filters vary fastest, and a split has some of the
//   slices. Dynamic shared memory: STAGES chunks of weights and the patches, or a tile's sums; then
//   the tables. For a small tile at least 4 blocks per multiprocessor: without this bound ptxas
//   spilled on sm_90.
#include "channels.cuh"
#include "epilogue.cuh"
#include "requantize.cuh"
#include "split.cuh"
#include "window.cuh"

// kernels/convolution/tensor_patch.py: sizes of one launch. A region is a tile's output pixels.
struct Sizes : ConvSizes {
  int images;
  Divisor regions[3];  // along images, rows and columns
  Divisor region[3];   // images, rows and columns of one
  Divisor read[2];     // rows and columns of pixels that one reads of an image
  Divisor apart[2];    // places between neighbouring outputs, before they are brought together
  int phase[2];        // rows and columns of places, of those that lie next to each other
  int row_places;      // from one row of places to the next
  int image_places;    // from one image to the next
  int place_bytes;     // from one place to the next
  int patch_bytes;     // from this patch to the next slice's
  int tables;          // where they begin in shared memory
  int tap_vectors;     // of a place that have channels
  int copied_vectors;  // of a place: one more where the last has zeros
  Divisor slices;      // of channels
  int slice_chunks;    // of a slice
  Divisor splits;      // gridDim.y
  // For each half of a warp, of each chunk, the bytes from where a window begins to its 4 vectors
  // of a step. The lowest bits are set where the step's first or second is a pair whose second
  // pixel is beyond the row of taps.
  int offsets[256];
};

// What is multiplied by elements of x, and how.
template <class T>
struct Factor {
  using Weight = Half;
  using Sum = float;

  static __device__ __forceinline__ void multiply(float (&sums)[4], const unsigned (&x)[4],
                                                  const unsigned (&weight)[2]) {
    mma_m16n8k16_f16(sums, x, weight);
  }
};
template <>
struct Factor<Byte> {
  using Weight = signed char;
  using Sum = int;

  static __device__ __forceinline__ void multiply(int (&sums)[4], const unsigned (&x)[4],
                                                  const unsigned (&weight)[2]) {
    mma_m16n8k32_u8s8(sums, x, weight);
  }
};

template <class T>
using Sum = typename Factor<T>::Sum;

__device__ __forceinline__ void store_two(float* to, float first, float second) {
  store<2>(to, Vec<2>{first, second});
}

__device__ __forceinline__ void store_two(int* to, int first, int second) {
  *reinterpret_cast<int2*>(to) = make_int2(first, second);
}

// Computes a tile's sums, or this block's part of them, and passes them to `finish`: where they lie
// in shared memory, the tile's first filter, and a function from its rows to the pixels of y, less
// than 0 where there is none. What lies outside an image is 0, or of bytes 16 from `padding`.
template <class T, int UNIT, int BM, int BN, int WM, int WN, int STAGES, class Finishing>
__device__ __forceinline__ void multiply_patches(const T* x,
                                                 const typename Factor<T>::Weight* weight,
                                                 const T* padding, const Sizes& sizes,
                                                 const Window& window, const Finishing& finish) {
  let_next_begin();
  constexpr int THREADS = BM / WM * (BN / WN) * 32;
  constexpr int VECTOR = 16 / int(sizeof(T)), CHUNK = 8 * VECTOR;
  constexpr int ROW = 128 + 16, STAGE = BN * ROW, PITCH = BN + 8;
  constexpr bool PAIRS = UNIT != VECTOR;
  constexpr int WEIGHT_ROWS = THREADS / 8;  // at once
  constexpr int LANES = PAIRS ? 2 : 8;      // that copy a pixel
  constexpr int PIXELS_A_PLACE = VECTOR / UNIT;
  constexpr int M = WM / 16, N = WN / 8;
  constexpr bool ARE_BYTES = sizeof(T) == 1;
  static_assert(UNIT == VECTOR || (UNIT == 4 && !ARE_BYTES), "copies are of 16 or 8 bytes");
  static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0, "tiles must fit");
  DYNAMIC_SHARED(unsigned char, shared);
  unsigned char* const patches = shared + STAGES * STAGE;
  int* const offsets = reinterpret_cast<int*>(shared + sizes.tables);
  // Of each pixel that the region reads: elements to it in x, or less than 0; bytes in the patch.
  int2* const pixels = reinterpret_cast<int2*>(offsets + 8 * sizes.slice_chunks);
  const int read = sizes.region[0] * sizes.read[0] * sizes.read[1];
  // Of each output: its pixel in y, or -1; bytes in the patch to where its window begins.
  int2* const outputs = pixels + read;

  const unsigned thread = kept(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int split = blockIdx.y, splits = sizes.splits, slice_chunks = sizes.slice_chunks;
  unsigned number = blockIdx.x;
  const int first_filter = int(peel(number, sizes.filter_tiles)) * BN;
  const int first_slice = int(quotient(sizes.slices * split, sizes.splits));
  const int last_slice = int(quotient(sizes.slices * (split + 1), sizes.splits));
  const int chunks = (last_slice - first_slice) * slice_chunks;

  // What this thread copies of every chunk: a vector of every WEIGHT_ROWS-th filter.
  const int weight_row = thread / 8, weight_pitch = sizes.slices * slice_chunks * CHUNK;
  const int weight_place = held(weight_row * ROW + thread % 8 * 16);
  const int exist = sizes.filters - first_filter - weight_row;
  const typename Factor<T>::Weight* weight_from =
      weight + (size_t(first_filter + weight_row) * weight_pitch +
                first_slice * slice_chunks * CHUNK + thread % 8 * VECTOR);
  const auto copy_weights = [&](int stage) {
    unsigned char* const to = shared + stage * STAGE + weight_place;
#pragma unroll
    for (int i = 0; i < BN; i += WEIGHT_ROWS)
      if (BN % WEIGHT_ROWS == 0 || weight_row + i < BN)
        cp_async<16>(to + i * ROW, weight_from + size_t(i) * weight_pitch, i < exist);
    weight_from += CHUNK;
  };
  prefetch_weights(weight, size_t(sizes.filters) * weight_pitch);
  wait_before_weights();
#pragma unroll 1
  for (int stage = 0; stage < STAGES - 1; ++stage)
    if (stage < chunks) copy_weights(stage);

  int region[3];  // its first image, row and column
#pragma unroll
  for (int axis = 2; axis >= 0; --axis)
    region[axis] = int(peel(number, sizes.regions[axis])) * sizes.region[axis];
  // Kept in front of branches, in which each constant would be waited for.
  const int region_images = kept(int(sizes.region[0]));
  const int top = kept(region[1] * window.stride[1] - window.pad_begin[1]);
  const int left = kept(region[2] * window.stride[2] - window.pad_begin[2]);
  // The place in the patch of a row and a column of what the region reads.
  const auto place_of = [&](int image, int row, int column) {
    unsigned down = row, right = column;
    const int row_phase = int(peel(down, sizes.apart[0]));
    const int column_phase = int(peel(right, sizes.apart[1]));
    return image * sizes.image_places +
           (row_phase * sizes.phase[0] + int(down)) * sizes.row_places +
           column_phase * sizes.phase[1] + int(right);
  };

#pragma unroll 1
  for (int i = thread; i < 8 * slice_chunks; i += THREADS) offsets[i] = sizes.offsets[i];
#pragma unroll 1
  for (int i = thread; i < read; i += THREADS) {
    unsigned image = i;
    const int column = int(peel(image, sizes.read[1])), row = int(peel(image, sizes.read[0]));
    const int n = region[0] + int(image);
    const int h = top + row, w = left + column;
    const bool inside = n < sizes.images && unsigned(h) < unsigned(window.input[1]) &&
                        unsigned(w) < unsigned(window.input[2]);
    const int place = place_of(int(image), row, column / PIXELS_A_PLACE);
    const int to = place * sizes.place_bytes + column % PIXELS_A_PLACE * 8;
    pixels[i] = make_int2(
        inside ? ((n * window.input[1] + h) * window.input[2] + w) * sizes.x_pitch : -1, to);
  }
  static_assert(THREADS >= BM, "a thread for each output pixel");
  unsigned image = thread;
  const int column = int(peel(image, sizes.region[2])), row = int(peel(image, sizes.region[1]));
  const int n = region[0] + int(image), p = region[1] + row, q = region[2] + column;
  const bool of_region = int(image) < region_images;
  const bool exists = of_region && n < sizes.images && p < window.output[1] && q < window.output[2];
  const int place = int(image) * sizes.image_places + row * sizes.row_places + column;
  const int2 output = make_int2(exists ? (n * window.output[1] + p) * window.output[2] + q : -1,
                                of_region ? place * sizes.place_bytes : 0);
  if (thread < BM) outputs[thread] = output;

  // The row and the vector that this lane gives ldmatrix the address of: 4 matrices are 16 rows x 2
  // vectors, of x the rows first, of the weights the vectors first.
  const int warp_pixel = warp % (BM / WM) * WM, warp_filter = warp / (BM / WM) * WN;
  const int weight_lane = held((warp_filter + lane / 16 * 8 + lane % 8) * ROW + lane / 8 % 2 * 16);
  Sum<T> sums[M][N][4] = {};

  const int unit = thread % LANES;
  const auto copy_patch = [&](int slice, unsigned char* patch) {
    const int channel = kept((slice * sizes.tap_vectors + unit) * UNIT);
    const int rest = kept(unit < sizes.tap_vectors ? sizes.channels - channel : 0);
    const bool whole = sizes.x_vectors != 0 && (rest >= UNIT || rest <= 0);
    if (unit >= sizes.copied_vectors) return;
#pragma unroll 1
    for (int i = thread / LANES; i < read; i += THREADS / LANES) {
      const int2 pixel = pixels[i];
      const int exist = pixel.x < 0 ? 0 : rest;
      T* const to = reinterpret_cast<T*>(patch + pixel.y + unit * 16);
      if constexpr (ARE_BYTES) {
        const T* const from = exist > 0 ? x + (pixel.x + channel) : padding;
        if (whole)
          cp_async<16>(to, from);
        else if (sizes.x_vectors != 0)
          cp_async_part<16>(to, from, exist > 0 ? min(exist, 16) : 16);
        else
          copy_singly<16>(to, from, exist > 0 ? exist : 16);
      } else {
        const T* const from = x + (exist > 0 ? pixel.x + channel : 0);
        constexpr int BYTES = UNIT * int(sizeof(T));
        if (whole)
          cp_async<BYTES>(to, from, exist > 0);
        else if (sizes.x_vectors != 0)
          cp_async_part<BYTES>(to, from, min(max(exist, 0), UNIT) * int(sizeof(T)));
        else
          copy_singly<UNIT>(to, from, exist);
      }
    }
  };

  __syncthreads();
  int x_lane[M];
#pragma unroll
  for (int m = 0; m < M; ++m) x_lane[m] = outputs[warp_pixel + m * 16 + lane % 16].y;
  const auto multiply_chunk = [&](int stage, int4 steps, const unsigned char* patch) {
    const int offset[4] = {steps.x, steps.y, steps.z, steps.w};
    const unsigned char* const chunk = shared + stage * STAGE;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      unsigned factors[M][4], filters[N][2];
#pragma unroll
      for (int m = 0; m < M; ++m) {
        ldmatrix_x4(factors[m], patch + (x_lane[m] + (PAIRS ? offset[step] & ~15 : offset[step])));
        if constexpr (PAIRS)
          if (lane % 4 >= 2)  // of a pair's second pixel
#pragma unroll
            for (int i = 0; i < 4; ++i) factors[m][i] &= (offset[step] >> i / 2 & 1) - 1;
      }
#pragma unroll
      for (int n = 0; n < N; n += 2) {
        unsigned two[4];
        ldmatrix_x4(two, chunk + (weight_lane + n * 8 * ROW + step * 32));
#pragma unroll
        for (int i = 0; i < 4; ++i) filters[n + i / 2][i % 2] = two[i];
      }
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N; ++n) Factor<T>::multiply(sums[m][n], factors[m], filters[n]);
    }
  };

  wait_for_previous();
  unsigned char *patch = patches, *next = patches + sizes.patch_bytes;
  copy_patch(first_slice, patch);
#pragma unroll 1
  for (int stage = 0; stage < STAGES - 1; ++stage) cp_async_commit();
  int reading = 0, writing = STAGES - 1, ahead = chunks - (STAGES - 1);
  int slice = first_slice;
  do {
    if (!PAIRS && slice + 1 < last_slice) {
      if (slice > first_slice) __syncthreads();  // the patch before this one is read by all
      // There when needed: a slice has at least STAGES - 1 chunks, where there are several.
      copy_patch(slice + 1, next);
    }
    const int4* steps = reinterpret_cast<const int4*>(offsets) + lane / 16;
#pragma unroll 1
    for (int chunk = 0; chunk < slice_chunks; ++chunk) {
      cp_async_wait<STAGES - 2>();
      __syncthreads();  // this chunk is there for all, and the one before it read by all
      if (ahead-- > 0) copy_weights(writing);
      cp_async_commit();
      multiply_chunk(reading, *steps, patch);
      steps += 2;
      reading = reading + 1 == STAGES ? 0 : reading + 1;
      writing = writing + 1 == STAGES ? 0 : writing + 1;
    }
    unsigned char* const read_by_now = patch;
    patch = next;
    next = read_by_now;
  } while (!PAIRS && ++slice < last_slice);  // few channels are of one slice

  Sum<T>* const tile = reinterpret_cast<Sum<T>*>(shared);
  Sum<T>* const to = tile + ((warp_pixel + lane / 4) * PITCH + warp_filter + lane % 4 * 2);
  __syncthreads();  // all have read the last chunk
  let_next_begin_late();
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; i += 2)
        store_two(to + (m * 16 + i * 4) * PITCH + n * 8, sums[m][n][i], sums[m][n][i + 1]);
  __syncthreads();
  finish(tile, first_filter, [&](int row) { return outputs[row].x; });
}

template <int UNIT, int BM, int BN, int WM, int WN, int STAGES, Finish FINISH>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32, BM* BN <= 1024 ? 4 : 0)
    conv_tensor_patch(const Half* x, const Half* __restrict__ weight, const float* bias,
                      const Half* residual, Half* y, float* workspace, unsigned* counters,
                      Sizes sizes, Window window, int activation, float a, float b) {
  constexpr int THREADS = BM / WM * (BN / WN) * 32, PITCH = BN + 8;
  const auto finish = [&](float* tile, int first_filter, const auto& pixel_of) {
    const int split = blockIdx.y, splits = sizes.splits;
    const int thread = int(kept(threadIdx.x));
    constexpr int ROWS = THREADS / (BN / 4);  // at once
    static_assert(BM % ROWS == 0, "each thread finishes as many");
    // Where 8 threads load two rows at once, those lie two apart: neighbours would share banks.
    const int nth = thread / (BN / 4), of_row = thread % (BN / 4) * 4;
    const int first_row = BN == 16 ? (nth & ~3) | (nth & 1) << 1 | (nth >> 1 & 1) : nth;
    const int filter = first_filter + of_row;
    const bool finishes = filter < sizes.filters;
    const auto at = [&](int i) { return (first_row + i * ROWS) * PITCH + of_row; };
    if (splits > 1) {
      const int count = finishes ? BM / ROWS : 0;
      float* const parts = workspace + size_t(blockIdx.x) * splits * (BM * PITCH);
      write_part(tile, parts + split * (BM * PITCH), count, at);
      if (!add_up_parts<BM * PITCH>(tile, parts, split, splits, counters + blockIdx.x, count, at))
        return;
    }
    if (!finishes) return;
    epilogue_of<FINISH>(sizes, bias, residual, y, activation, a, b)
        .template write<BM / ROWS>(
            filter, [&](int i) { return pixel_of(first_row + i * ROWS); },
            [&](int i) { return load<4>(tile + at(i)); });
  };
  multiply_patches<Half, UNIT, BM, BN, WM, WN, STAGES>(x, weight, nullptr, sizes, window, finish);
}

template <int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32, BM* BN <= 1024 ? 4 : 0)
    conv_integer_patch(const Byte* x, const signed char* __restrict__ weight,
                       const int* __restrict__ offset, const float* __restrict__ scale,
                       const Byte* residual, Byte* y, int* workspace, unsigned* counters,
                       Sizes sizes, Window window, Rounding rounding) {
  constexpr int THREADS = BM / WM * (BN / WN) * 32, PITCH = BN + 8;
  const auto finish = [&](int* tile, int first_filter, const auto& pixel_of) {
    write_bytes<BM, BN, PITCH, THREADS>(
        tile, {offset, scale, residual, y, workspace, counters, rounding}, blockIdx.y, sizes.splits,
        blockIdx.x, sizes, first_filter, sizes.filters, pixel_of);
  };
  multiply_patches<Byte, 16, BM, BN, WM, WN, STAGES>(
      x, weight, reinterpret_cast<const Byte*>(offset), sizes, window, finish);
}
