// A network's input as NHWC floats with padded channels.
//
// `pixels_to_floats`: uint8 N·H·W·C images, y = pixel * multiplier[c] + offset[c].
// `planes_to_pixels`: float N·C·H·W tensors, transposed.
// Channels from C up to those of the output are written as 0.
//
// Layouts: contiguous in; N·H·W pixels with any pitch out.
// Launch: one dimension, the last block partial. One thread per pixel of an image; or per pixel and
//   V channels of a tensor, with consecutive threads on consecutive pixels, so that reads of each
//   plane are contiguous. Where there are at most V channels, as in an image, the writes are
//   contiguous too.
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
