// The end of a convolution of bytes: converts sums, which are whole numbers, to bytes.
//
//   v = (sum + offset[k]) · scale[k]    offset includes the zero point of x and the bias
//   v = round(v), within bounds, · step   if the sum is rounded before a residual is added
//   v = v + (residual - its zero point) · its step
//   y = round(v), within bounds, + zero point of y
//
// Steps are in units of y's scale, so y needs no division. Products and sums are rounded one by
// one, as NumPy rounds them. Rounding is to the nearest, ties to even.
// Layouts: offset is 16 bytes that repeat x's zero point, then one int per filter. A tile's sums
//   lie in rows of PITCH ints; the workspace is tiles x splits of such tiles.
#pragma once

#include "bytes.cuh"
#include "split.cuh"

// kernels/convolution/integer.py, rounding_struct: what is the same for all filters.
struct Rounding {
  float sum_least;
  float sum_most;
  float sum_step;  // 0 where a sum is not rounded ahead of the residual
  float residual_zero;
  float residual_step;
  float least;
  float most;
  int y_zero;
};

// What follows a sum of bytes, and where it goes; residual may be null, or y.
struct Requantization {
  const int* offset;
  const float* scale;
  const Byte* residual;
  Byte* y;
  int* workspace;
  unsigned* counters;
  Rounding rounding;
};

// The sums of neighbouring filters.
template <int V>
struct alignas(16) WholeSums {
  int at[V];
};
using Sums8 = WholeSums<8>;

__device__ __forceinline__ Sums8 load_sums(const int* from) {
  return *reinterpret_cast<const Sums8*>(from);
}

__device__ __forceinline__ void store_sums(int* to, const Sums8& sums) {
  *reinterpret_cast<Sums8*>(to) = sums;
}

// With those of another block: loaded past the L1 cache, as in split.cuh.
__device__ __forceinline__ Sums8 plus_part(Sums8 sum, const int* part) {
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const int4 four = __ldcg(reinterpret_cast<const int4*>(part + i));
    sum.at[i] += four.x;
    sum.at[i + 1] += four.y;
    sum.at[i + 2] += four.z;
    sum.at[i + 3] += four.w;
  }
  return sum;
}

// Adds this block's sums, in `tile`, to those of the other blocks of the tile. Returns whether this
// is the block that has them all: the last one. `at(i)`, i < count, as in split.cuh.
template <int FLOATS, class At>
__device__ __forceinline__ bool add_up_sums(int* tile, int* parts, int split, int splits,
                                            unsigned* counter, int count, const At& at) {
#pragma unroll 1
  for (int i = 0; i < count; ++i)
    store_sums(parts + split * FLOATS + at(i), load_sums(tile + at(i)));
  if (!last_of_split(counter, splits)) return false;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    Sums8 sum = load_sums(tile + at(i));
#pragma unroll 1
    for (int other = 0; other < splits; ++other)
      if (other != split) sum = plus_part(sum, parts + other * FLOATS + at(i));
    store_sums(tile + at(i), sum);
  }
  return true;
}

// The bytes of V sums: `plus` and `times` are the filters' offsets and scales. No sum is NaN.
template <bool RESIDUAL, int V>
__device__ __forceinline__ Bytes<V> requantized(const WholeSums<V>& sum, const WholeSums<V>& plus,
                                                const Vec<V>& times, const Bytes<V>& added,
                                                const Rounding& by) {
  Bytes<V> result;
#pragma unroll
  for (int c = 0; c < V; ++c) {
    float value = __fmul_rn(float(sum.at[c] + plus.at[c]), times.at[c]);
    if constexpr (RESIDUAL) {
      if (by.sum_step != 0.0f)
        value = __fmul_rn(whole_within(value, by.sum_least, by.sum_most), by.sum_step);
      const float steps =
          __uint_as_float(__float_as_uint(WHOLE) | added.at[c].bits) - (WHOLE + by.residual_zero);
      value = __fadd_rn(value, __fmul_rn(steps, by.residual_step));
    }
    // Of this sum the lowest byte is the whole number's, as it is modulo 256.
    value = fminf(fmaxf(value, by.least), by.most) + 1.5f * WHOLE;
    result.at[c].bits = __float_as_uint(value) + by.y_zero;
  }
  return result;
}

template <bool VALUE>
struct Flag {
  static constexpr bool value = VALUE;
};

// Finishes a tile of BM pixels x BN filters, whose sums lie in `tile`, in shared memory. All
// threads call it, behind a barrier. pixel_of(row) is negative where nothing is to be written; the
// filters of a group end at `end`.
template <int BM, int BN, int PITCH, int THREADS, class Sizes, class PixelOf>
__device__ __forceinline__ void write_bytes(int* tile, const Requantization& to, int split,
                                            int splits, unsigned number, const Sizes& sizes,
                                            int first_filter, int end, const PixelOf& pixel_of) {
  constexpr int ROWS = THREADS / (BN / 8);  // at once, of which a thread finishes 8 filters
  static_assert(BM % ROWS == 0, "each thread finishes as many");
  constexpr int COUNT = BM / ROWS;
  // Kept: computed here, instead of before the products, which leave no register for it.
  const unsigned thread = kept(threadIdx.x);
  const int first_row = thread / (BN / 8), column = thread % (BN / 8) * 8;
  const int filter = first_filter + column, exist = min(end - filter, 8);
  const auto at = [&](int i) { return (first_row + i * ROWS) * PITCH + column; };
  if (splits > 1) {
    int* const parts = to.workspace + size_t(number) * splits * (BM * PITCH);
    const int count = exist > 0 ? COUNT : 0;
    if (!add_up_sums<BM * PITCH>(tile, parts, split, splits, to.counters + number, count, at))
      return;
  }
  if (exist <= 0) return;

  const bool whole = sizes.y_vectors != 0 && exist == 8;
  Sums8 plus;
  Vec<8> times;
  if (exist == 8 && filter % 4 == 0) {
    plus = load_sums(to.offset + 4 + filter);
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const Vec<4> four = load<4>(to.scale + filter + i);
#pragma unroll
      for (int c = 0; c < 4; ++c) times.at[i + c] = four.at[c];
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      plus.at[i] = i < exist ? to.offset[4 + filter + i] : 0;
      times.at[i] = i < exist ? to.scale[filter + i] : 0.0f;
    }
  }
  // Several pixels at once, whose loads are all ahead of the first store: y may be the residual.
  constexpr int AT_ONCE = COUNT % 4 == 0 ? 4 : COUNT % 2 == 0 ? 2 : 1;
  const auto finish = [&](auto with_residual, int i) {
    constexpr bool RESIDUAL = decltype(with_residual)::value;
    int pixel[AT_ONCE];
    Bytes<8> added[AT_ONCE] = {};
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      pixel[j] = pixel_of(first_row + (i + j) * ROWS);
      if (!RESIDUAL || pixel[j] < 0) continue;
      const Byte* const before = to.residual + (pixel[j] * sizes.residual_pitch + filter);
      if (whole) {
        added[j] = *reinterpret_cast<const Bytes<8>*>(before);
      } else {
#pragma unroll
        for (int c = 0; c < 8; ++c)
          if (c < exist) added[j].at[c] = before[c];
      }
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      const Bytes<8> value =
          requantized<RESIDUAL>(load_sums(tile + at(i + j)), plus, times, added[j], to.rounding);
      if (pixel[j] < 0) continue;
      Byte* const y = to.y + (pixel[j] * sizes.y_pitch + filter);
      if (whole) {
        *reinterpret_cast<Bytes<8>*>(y) = value;
      } else {
#pragma unroll
        for (int c = 0; c < 8; ++c)
          if (c < exist) y[c] = value.at[c];
      }
    }
  };
  if (to.residual == nullptr) {
#pragma unroll 1
    for (int i = 0; i < COUNT; i += AT_ONCE) finish(Flag<false>{}, i);
  } else {
#pragma unroll 1
    for (int i = 0; i < COUNT; i += AT_ONCE) finish(Flag<true>{}, i);
  }
}
