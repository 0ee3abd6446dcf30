// A network's input as NHWC floats with padded channels.
//
// `pixels_to_floats`: uint8 N·H·W·C images, y = pixel * multiplier[c] + offset[c].
// `pixels_to_bytes`: the same, quantised as by quantise.cu; block x block pixels of 4 channels each
//   are one pixel of y.
// `planes_to_pixels`: float N·C·H·W tensors, transposed.
// Channels from C up to those of the output are written as 0.
//
// Layouts: contiguous in; N·H·W pixels with any pitch out.
// Launch: one dimension, the last block partial. One thread per pixel of an image; or per pixel and
//   V channels of a tensor, with consecutive threads on consecutive pixels, so that reads of each
//   plane are contiguous. Where there are at most V channels, as in an image, the writes are
//   contiguous too.
#include "bytes.cuh"
#include "common.cuh"
#include "half.cuh"

// REVERSED: the output's first channel is the image's last (RGB to BGR).
template <class T, int CHANNELS, int PADDED, bool REVERSED, int V>
__global__ void __launch_bounds__(256)
    pixels_to_floats(const unsigned char* images, const float* __restrict__ multiplier,
                     const float* __restrict__ offset, T* y, int pixels, int y_pitch) {
  follow_previous();
  const unsigned pixel = thread_index();
  if (pixel >= unsigned(pixels)) return;
#pragma unroll
  for (int first = 0; first < PADDED; first += V) {
    Vec<V> result = splat<V>(0.0f);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int c = first + i;
      if (c < CHANNELS) {
        const float value = images[pixel * CHANNELS + (REVERSED ? CHANNELS - 1 - c : c)];
        result.at[i] = fmaf(value, multiplier[c], offset[c]);
      }
    }
    store<V>(y + pixel * y_pitch + first, result);
  }
}

template <int CHANNELS>
__global__ void __launch_bounds__(256)
    pixels_to_bytes(const unsigned char* images, const float* __restrict__ multiplier,
                    const float* __restrict__ offset, Byte* y, int pixels, Divisor columns,
                    Divisor block, int y_pitch, float scale, int zero) {
  follow_previous();
  const unsigned pixel = thread_index();
  if (pixel >= unsigned(pixels)) return;
  unsigned index = pixel;
  // The pixel's column in its block, the block's in its row of blocks, and likewise of rows.
  const unsigned right = peel(index, block), column = peel(index, columns);
  const unsigned down = peel(index, block), place = index * unsigned(columns) + column;
  Vec<4> result = splat<4>(0.0f);
#pragma unroll
  for (int c = 0; c < CHANNELS; ++c) {
    const float value = images[pixel * CHANNELS + c];
    result.at[c] = fmaf(value, multiplier[c], offset[c]);
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) result.at[c] = rintf(result.at[c] / scale) + float(zero);
  store<4>(y + (place * y_pitch + (down * unsigned(block) + right) * 4), result);
}

template <class T, int V>
__global__ void __launch_bounds__(256)
    planes_to_pixels(const float* x, T* y, int steps, Divisor pixels, Divisor plane, int channels,
                     int y_pitch) {
  follow_previous();
  unsigned index = thread_index();
  if (index >= unsigned(steps)) return;
  const unsigned pixel = peel(index, pixels);
  const unsigned first = index * V;
  unsigned image = pixel;
  const unsigned place = peel(image, plane);
  Vec<V> result = splat<V>(0.0f);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const unsigned c = first + i;
    if (c < unsigned(channels)) result.at[i] = x[(image * channels + c) * plane + place];
  }
  store<V>(y + pixel * y_pitch + first, result);
}
