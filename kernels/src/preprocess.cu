// Writes a network's input as NHWC floats or bytes with padded channels.
//
// `pixels_to_floats`: uint8 N·H·W·C images, y = pixel * multiplier[c] + offset[c].
// `pixels_to_bytes`: the same, then quantized as in quantize.cu. A pixel of y holds block x block
//   pixels of the image, with 4 channels each.
// `places_to_floats`, `places_to_bytes`: the same for places (place.cuh) of all kinds. A tensor's
//   numbers are used unchanged. The pixels of decoded images are read from resize.cu's output.
// The channels of y from C on are 0.
//
// Layouts: contiguous in; N·H·W pixels with any pitch out. A tensor is C·H·W or H·W·C, by strides.
// Launch: one dimension, the last block partial, one thread per pixel of an image; for places, the
//   grid's y is the place.
#include "bytes.cuh"
#include "half.cuh"
#include "place.cuh"

template <int CHANNELS>
struct Pixel {
  float at[CHANNELS];
};

template <int CHANNELS>
__device__ __forceinline__ Pixel<CHANNELS> normalised(const unsigned char* bytes,
                                                      const float* multiplier,
                                                      const float* offset) {
  Pixel<CHANNELS> pixel;
#pragma unroll
  for (int c = 0; c < CHANNELS; ++c) pixel.at[c] = fmaf(bytes[c], multiplier[c], offset[c]);
  return pixel;
}

// Where a place's pixel comes from; `made` has the pixels of decoded images.
struct PlacedImages {
  const unsigned char* entries;
  const unsigned char* made;
  int pitch, area, channel_stride, pixel_stride;

  template <int CHANNELS>
  __device__ __forceinline__ Pixel<CHANNELS> pixel(unsigned index, const float* multiplier,
                                                   const float* offset) const {
    const Entry& entry = entry_at(entries, pitch);
    const unsigned char* const data = data_of(entry);
    if (entry.kind != TENSOR) {
      const size_t before = size_t(blockIdx.y) * unsigned(area * CHANNELS);
      const unsigned char* const image = entry.kind == PIXELS ? data : made + before;
      return normalised<CHANNELS>(image + index * CHANNELS, multiplier, offset);
    }
    Pixel<CHANNELS> pixel;
    const float* const from = reinterpret_cast<const float*>(data) + index * pixel_stride;
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) pixel.at[c] = from[c * channel_stride];
    return pixel;
  }
};

template <int PADDED, int V, int CHANNELS, class T>
__device__ __forceinline__ void write_floats(const Pixel<CHANNELS>& pixel, T* to) {
#pragma unroll
  for (int first = 0; first < PADDED; first += V) {
    Vec<V> result = splat<V>(0.0f);
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (first + i < CHANNELS) result.at[i] = pixel.at[first + i];
    store<V>(to + first, result);
  }
}

// How bytes are written: blocks of pixels are the output's pixels.
struct Blocks {
  Divisor columns, block;
  int y_pitch;
  float scale;
  int zero;

  template <int CHANNELS>
  __device__ __forceinline__ void write(unsigned index, const Pixel<CHANNELS>& pixel,
                                        Byte* y) const {
    // The pixel's column in its block, the block's in its row of blocks, and likewise of rows.
    const unsigned right = peel(index, block), column = peel(index, columns);
    const unsigned down = peel(index, block), place = index * unsigned(columns) + column;
    Vec<4> result = splat<4>(0.0f);
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) result.at[c] = pixel.at[c];
#pragma unroll
    for (int c = 0; c < 4; ++c) result.at[c] = rintf(result.at[c] / scale) + float(zero);
    store<4>(y + (place * y_pitch + (down * unsigned(block) + right) * 4), result);
  }
};

template <class T, int CHANNELS, int PADDED, int V>
__global__ void __launch_bounds__(256)
    pixels_to_floats(const unsigned char* images, const float* __restrict__ multiplier,
                     const float* __restrict__ offset, T* y, int pixels, int y_pitch) {
  follow_previous();
  const unsigned index = thread_index();
  if (index >= unsigned(pixels)) return;
  const auto pixel = normalised<CHANNELS>(images + index * CHANNELS, multiplier, offset);
  write_floats<PADDED, V>(pixel, y + index * y_pitch);
}

template <class T, int CHANNELS, int PADDED, int V>
__global__ void __launch_bounds__(256)
    places_to_floats(const unsigned char* entries, const unsigned char* made,
                     const float* __restrict__ multiplier, const float* __restrict__ offset, T* y,
                     int pitch, int area, int channel_stride, int pixel_stride, int y_pitch) {
  follow_previous();
  const unsigned index = thread_index();
  if (index >= unsigned(area)) return;
  const PlacedImages images{entries, made, pitch, area, channel_stride, pixel_stride};
  const auto pixel = images.pixel<CHANNELS>(index, multiplier, offset);
  write_floats<PADDED, V>(pixel, y + (blockIdx.y * unsigned(area) + index) * y_pitch);
}

template <int CHANNELS>
__global__ void __launch_bounds__(256)
    pixels_to_bytes(const unsigned char* images, const float* __restrict__ multiplier,
                    const float* __restrict__ offset, Byte* y, int pixels, Divisor columns,
                    Divisor block, int y_pitch, float scale, int zero) {
  follow_previous();
  const unsigned index = thread_index();
  if (index >= unsigned(pixels)) return;
  const auto pixel = normalised<CHANNELS>(images + index * CHANNELS, multiplier, offset);
  Blocks{columns, block, y_pitch, scale, zero}.write(index, pixel, y);
}

template <int CHANNELS>
__global__ void __launch_bounds__(256)
    places_to_bytes(const unsigned char* entries, const unsigned char* made,
                    const float* __restrict__ multiplier, const float* __restrict__ offset, Byte* y,
                    int pitch, int area, int channel_stride, int pixel_stride, Divisor columns,
                    Divisor block, int y_pitch, float scale, int zero) {
  follow_previous();
  const unsigned index = thread_index();
  if (index >= unsigned(area)) return;
  const PlacedImages images{entries, made, pitch, area, channel_stride, pixel_stride};
  const auto pixel = images.pixel<CHANNELS>(index, multiplier, offset);
  const Blocks blocks{columns, block, y_pitch, scale, zero};
  blocks.write(blockIdx.y * unsigned(area) + index, pixel, y);
}
