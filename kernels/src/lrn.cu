// Local response normalisation across channels.
//
//   y[c] = x[c] / (bias + scale * sum of x[i]^2)^beta,  c - before <= i <= c + after
//   scale = alpha / size
//
// Algorithm: one thread per element, which also reads the neighbouring channels. Neighbouring
//   threads read them too, so they come from the L1 cache. Windows of channels are not aligned to
//   vectors, and the power of each element costs more than wider loads would save.
// Layouts: x and y are pixels with any pitch.
// Launch: one dimension, one thread per element, the last block partial.
#include "common.cuh"
#include "half.cuh"

template <class T>
__global__ void __launch_bounds__(256)
    lrn(const T* x, T* y, int elements, Divisor channels, int x_pitch, int y_pitch, int before,
        int after, float scale, float beta, float bias) {
  follow_previous();
  unsigned pixel = thread_index();
  if (pixel >= unsigned(elements)) return;
  const int channel = int(peel(pixel, channels));
  const T* const from = x + pixel * x_pitch;
  const int first = channel > before ? channel - before : 0;
  const int last = channel + after < channels ? channel + after : channels - 1;
  float sum = 0.0f;
  for (int i = first; i <= last; ++i) {
    const float seen = from[i];
    sum = fmaf(seen, seen, sum);
  }
  y[pixel * y_pitch + channel] = T(float(from[channel]) / powf(fmaf(scale, sum, bias), beta));
}
