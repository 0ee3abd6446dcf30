// Computes the pixels of JPEG files from their coefficients, with the same bits as libjpeg-turbo.
//
// Algorithm: an inverse DCT in integers, along columns and then along rows, gives blocks of 8, 4, 2
//   or 1 samples a side (Loeffler, Ligtenberg & Moschytz 1989, "Practical fast 1-D DCT algorithms
//   with 11 multiplications"; the smaller transforms skip some coefficients). If a component has
//   fewer samples than the image has pixels, they are interpolated: 3/4 of the nearer sample and
//   1/4 of the further one. Then YCbCr becomes RGB. libjpeg-turbo keeps 16 bits between its passes;
//   numbers that would not fit set a flag.
// Layouts: see kernels/src/jpeg.cuh; a component's samples are in row order. The pixels overwrite
//   the scan in the entry. kernels/src/resize.cu then treats them like any other decoded image.
// Launch: the grid's y is the place in the batch; places without a JPEG file are left alone.
//   `inverse_dct`: 8 threads per block of samples; each has a column and then a row.
//   `jpeg_pixels`: each thread computes one pixel after another of the part that is resized.
#include "jpeg.cuh"

// Numbers of 32 bits that wrap, as those of vector instructions do.
struct Wrapping {
  unsigned bits;

  Wrapping() = default;
  __device__ __forceinline__ Wrapping(int number) : bits(number) {}
  __device__ __forceinline__ explicit operator int() const { return int(bits); }
};
__device__ __forceinline__ Wrapping operator+(Wrapping a, Wrapping b) {
  return int(a.bits + b.bits);
}
__device__ __forceinline__ Wrapping operator-(Wrapping a, Wrapping b) {
  return int(a.bits - b.bits);
}
__device__ __forceinline__ Wrapping operator*(Wrapping a, Wrapping b) {
  return int(a.bits * b.bits);
}

constexpr int CONSTANT_BITS = 13;

__device__ __forceinline__ constexpr int fixed(double number) {
  return int(number * (1 << CONSTANT_BITS) + 0.5);
}

// Rounded to `shift` bits less.
__device__ __forceinline__ int descaled(Wrapping number, int shift) {
  return int(number + Wrapping(1 << (shift - 1))) >> shift;
}

__device__ __forceinline__ bool fits(int number) { return number == short(number); }

__device__ __forceinline__ bool all_fit(const int (&x)[8]) {
  bool fit = true;
#pragma unroll
  for (int i = 0; i < 8; ++i) fit = fit && fits(x[i]);
  return fit;
}

// One pass: 8 numbers become `SIDE`. Returns whether libjpeg-turbo would have computed the same.
template <int SIDE>
__device__ __forceinline__ bool transformed(int (&x)[8], int shift);

template <>
__device__ __forceinline__ bool transformed<8>(int (&x)[8], int shift) {
  const bool same = all_fit(x) && fits(x[0] + x[4]) && fits(x[0] - x[4]) && fits(x[7] + x[3]) &&
                    fits(x[5] + x[1]);
  const Wrapping w[8] = {x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]};
  const Wrapping shared = (w[2] + w[6]) * fixed(0.541196100);
  const Wrapping t2 = shared - w[6] * fixed(1.847759065), t3 = shared + w[2] * fixed(0.765366865);
  const Wrapping t0 = (w[0] + w[4]) * (1 << CONSTANT_BITS);
  const Wrapping t1 = (w[0] - w[4]) * (1 << CONSTANT_BITS);
  const Wrapping even[4] = {t0 + t3, t1 + t2, t1 - t2, t0 - t3};
  const Wrapping z5 = (w[7] + w[3] + w[5] + w[1]) * fixed(1.175875602);
  const Wrapping z1 = (w[7] + w[1]) * fixed(0.899976223), z2 = (w[5] + w[3]) * fixed(2.562915447);
  const Wrapping z3 = z5 - (w[7] + w[3]) * fixed(1.961570560);
  const Wrapping z4 = z5 - (w[5] + w[1]) * fixed(0.390180644);
  const Wrapping odd[4] = {w[1] * fixed(1.501321110) - z1 + z4, w[3] * fixed(3.072711026) - z2 + z3,
                           w[5] * fixed(2.053119869) - z2 + z4,
                           w[7] * fixed(0.298631336) - z1 + z3};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[i] = descaled(even[i] + odd[i], shift);
    x[7 - i] = descaled(even[i] - odd[i], shift);
  }
  return same;
}

template <>
__device__ __forceinline__ bool transformed<4>(int (&x)[8], int shift) {
  const bool same = all_fit(x);
  const Wrapping w[8] = {x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]};
  const Wrapping t0 = w[0] * (1 << (CONSTANT_BITS + 1));
  const Wrapping t2 = w[2] * fixed(1.847759065) - w[6] * fixed(0.765366865);
  const Wrapping inner = w[5] * fixed(1.451774981) - w[7] * fixed(0.211164243) -
                         w[3] * fixed(2.172734803) + w[1] * fixed(1.061594337);
  const Wrapping outer = w[3] * fixed(0.899976223) - w[7] * fixed(0.509795579) -
                         w[5] * fixed(0.601344887) + w[1] * fixed(2.562915447);
  x[0] = descaled(t0 + t2 + outer, shift + 1);
  x[1] = descaled(t0 - t2 + inner, shift + 1);
  x[2] = descaled(t0 - t2 - inner, shift + 1);
  x[3] = descaled(t0 + t2 - outer, shift + 1);
  return same;
}

template <>
__device__ __forceinline__ bool transformed<2>(int (&x)[8], int shift) {
  const bool same = all_fit(x);
  const Wrapping w[8] = {x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]};
  const Wrapping even = w[0] * (1 << (CONSTANT_BITS + 2));
  const Wrapping odd = w[5] * fixed(0.850430095) - w[7] * fixed(0.720959822) -
                       w[3] * fixed(1.272758580) + w[1] * fixed(3.624509785);
  x[0] = descaled(even + odd, shift + 2);
  x[1] = descaled(even - odd, shift + 2);
  return same;
}

constexpr int COLUMN_SHIFT = CONSTANT_BITS - 2, ROW_SHIFT = CONSTANT_BITS + 2 + 3;

__device__ __forceinline__ unsigned char sample(int number) {
  return min(max(number + 128, 0), 255);
}

constexpr int MOST_MEAN = 4080;  // of a block that becomes one sample

constexpr int PITCH = 9;  // numbers between rows in shared memory, where columns are read, too

// One block by 8 threads of a warp: from numbers in `rows`, each thread's column first.
template <int SIDE>
__device__ __forceinline__ bool inverse(int* rows, int lane, unsigned lanes, unsigned char* to,
                                        int stride) {
  int x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = rows[i * PITCH + lane];
  bool same = transformed<SIDE>(x, COLUMN_SHIFT);
  __syncwarp(lanes);
#pragma unroll
  for (int i = 0; i < SIDE; ++i) rows[i * PITCH + lane] = x[i];
  __syncwarp(lanes);
  if (lane >= SIDE) return same;
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = rows[lane * PITCH + i];
  same = transformed<SIDE>(x, ROW_SHIFT) && same;
#pragma unroll
  for (int i = 0; i < SIDE; ++i) to[lane * stride + i] = sample(x[i]);
  return same;
}

__global__ void __launch_bounds__(256)
    inverse_dct(const unsigned char* entries, unsigned char* scratch, int* flags, int pitch,
                int scratch_pitch) {
  __shared__ int numbers[256 / 8][8 * PITCH];
  follow_previous();
  const Entry& entry = entry_at(entries, pitch);
  if (entry.jpeg == 0) return;
  const Jpeg& jpeg = jpeg_of(entry);
  Scratch& own = scratch_at(scratch, scratch_pitch);
  if (own.whole == 0) return;
  const int lane = threadIdx.x % 8;
  const unsigned lanes = 0xffu << threadIdx.x % 32 / 8 * 8;
  int* const rows = numbers[threadIdx.x / 8];
  const unsigned char* const tables = tables_of(jpeg) + 8 * lane;
  bool same = true;
  for (unsigned block = thread_index() / 8; block < unsigned(jpeg.blocks);
       block += gridDim.x * (blockDim.x / 8)) {
    unsigned down = block;
    const int of_mcu = peel(down, jpeg.per_mcu), mcu = peel(down, jpeg.across);
    const int component = jpeg.component[of_mcu], side = jpeg.side[component];
    const int x = mcu * jpeg.h[component] + jpeg.column[of_mcu];
    const int y = int(down) * jpeg.v[component] + jpeg.row[of_mcu];
    const int stride = int(jpeg.across) * jpeg.h[component] * side;
    unsigned char* const to =
        part<unsigned char>(own, jpeg.plane[component]) + (y * stride + x) * side;

    const int4 eight = part<int4>(own, jpeg.coefficients)[block * 8 + lane];
    const int pairs[4] = {eight.x, eight.y, eight.z, eight.w};
    __syncwarp(lanes);  // the block before may still be read
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int coefficient = short(pairs[i / 2] >> i % 2 * 16);
      const int place = tables[QUANTIZATION_BYTES + i];
      rows[place / 8 * PITCH + place % 8] = coefficient * tables[component * 64 + i];
    }
    __syncwarp(lanes);
    switch (side) {
      case 8:
        same = inverse<8>(rows, lane, lanes, to, stride) && same;
        break;
      case 4:
        same = inverse<4>(rows, lane, lanes, to, stride) && same;
        break;
      case 2:
        same = inverse<2>(rows, lane, lanes, to, stride) && same;
        break;
      default:
        if (lane == 0) {
          same = same && abs(rows[0]) <= MOST_MEAN;
          *to = sample((rows[0] + 4) >> 3);
        }
    }
  }
  if (!same) atomicOr(flags + blockIdx.y, OVERFLOW);
}

// A component's sample at a pixel of the image.
__device__ __forceinline__ int sample_at(const Jpeg& jpeg, const unsigned char* plane,
                                         int component, int x, int y) {
  const bool wide = jpeg.up_x[component] == 2, high = jpeg.up_y[component] == 2;
  const int width = jpeg.width[component];
  const int stride = int(jpeg.across) * jpeg.h[component] * jpeg.side[component];
  const int near_x = wide ? x / 2 : x, near_y = high ? y / 2 : y;
  const unsigned char* const near = plane + near_y * stride;
  if (jpeg.fancy == 0 || (wide && width <= 2)) return near[near_x];
  const int far_y = min(max(near_y + (y % 2 ? 1 : -1), 0), jpeg.height[component] - 1);
  const int far_x = min(max(near_x + (x % 2 ? 1 : -1), 0), width - 1);
  const unsigned char* const far = plane + far_y * stride;
  const auto mixed = [&](int column) {
    return high ? 3 * near[column] + far[column] : int(near[column]);
  };
  if (!wide) return high ? (mixed(near_x) + 1 + y % 2) >> 2 : near[near_x];
  const int sum = 3 * mixed(near_x) + mixed(far_x);
  return high ? (sum + 8 - x % 2) >> 4 : (sum + 1 + x % 2) >> 2;
}

__device__ __forceinline__ unsigned char byte_of(int number) { return min(max(number, 0), 255); }

__global__ void __launch_bounds__(256) jpeg_pixels(unsigned char* entries, unsigned char* scratch,
                                                   const int* flags, int pitch, int scratch_pitch) {
  follow_previous();
  const Entry& entry = entry_at(entries, pitch);
  if (entry.jpeg == 0 || flags[blockIdx.y] != 0) return;
  const Jpeg& jpeg = jpeg_of(entry);
  Scratch& own = scratch_at(scratch, scratch_pitch);
  unsigned char* const pixels = entries + size_t(blockIdx.y) * unsigned(pitch) + entry.data;
  const int components = jpeg.components;
  const unsigned count = unsigned(jpeg.crop_width) * jpeg.crop_height;
  for (unsigned i = thread_index(); i < count; i += gridDim.x * blockDim.x) {
    unsigned row = i;
    const int x = int(peel(row, jpeg.crop_width)) + jpeg.left, y = int(row) + jpeg.top;
    const auto sample_of = [&](int component) {
      return sample_at(jpeg, part<unsigned char>(own, jpeg.plane[component]), component, x, y);
    };
    const int luma = sample_of(0);
    if (components == 1) {
      pixels[i] = luma;
      continue;
    }
    unsigned char* const to = pixels + i * 3;
    const int second = sample_of(1), third = sample_of(2);
    if (jpeg.transform == 0) {
      to[0] = luma;
      to[1] = second;
      to[2] = third;
      continue;
    }
    // By ITU-R BT.601, in 16 bits behind the point.
    const int blue = second - 128, red = third - 128;
    to[0] = byte_of(luma + ((91881 * red + 32768) >> 16));
    to[1] = byte_of(luma + ((-22554 * blue - 46802 * red + 32768) >> 16));
    to[2] = byte_of(luma + ((116130 * blue + 32768) >> 16));
  }
}
