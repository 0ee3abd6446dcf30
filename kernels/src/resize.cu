// Resizes decoded images to the network's size, with the same bits as Pillow.
//
// Algorithm: an image is resampled along one axis and then along the other; its entry says which
//   axis is the first. In either pass an output byte is a sum of `taps` bytes along the axis,
//   multiplied by weights with 22 fractional bits, and rounded. The second pass computes only the
//   pixels in the crop, turns them upright, and fills the rest of the frame with the paper's
//   colour. The weights come from the host (kernels/image/taps.py). Places of other kinds are only
//   copied.
// Launch: the grid's y is the place in the batch.
//   `fetch`: copies each entry, by its own length, from the host's memory. A thread copies 16 bytes
//     at a time. The size of the grid keeps many bytes in flight and does not depend on the
//     longest entry.
//   `first_axis`: each thread computes one byte of the result after another; the entry says how
//     many.
//   `second_axis`: one thread per byte of the network's pixels, the last block partial.
#include "place.cuh"

constexpr int WEIGHT_BITS = 22;

// A byte of a pass: `from` is the axis's begin, `row` the output's in the table.
__device__ __forceinline__ unsigned char weighted(const unsigned char* from, int stride,
                                                  const int* row, int taps) {
  from += row[0] * stride;
  int sum = 1 << (WEIGHT_BITS - 1);
  for (int tap = 0; tap < taps; ++tap) sum += row[1 + tap] * from[tap * stride];
  return min(max(sum >> WEIGHT_BITS, 0), 255);
}

__global__ void __launch_bounds__(256)
    fetch(const unsigned char* images, unsigned char* entries, int pitch) {
  follow_previous();
  const size_t place = size_t(blockIdx.y) * unsigned(pitch);
  const int4* const from = reinterpret_cast<const int4*>(images + place);
  int4* const to = reinterpret_cast<int4*>(entries + place);
  const unsigned vectors = unsigned(entry_at(images, pitch).bytes) / 16;
  for (unsigned i = thread_index(); i < vectors; i += gridDim.x * blockDim.x) to[i] = from[i];
}

__global__ void __launch_bounds__(256)
    first_axis(const unsigned char* entries, unsigned char* middle, int pitch, int middle_pitch) {
  follow_previous();
  const Entry& entry = entry_at(entries, pitch);
  const unsigned char* const begin = begin_of(entry);
  const int* const table = reinterpret_cast<const int*>(begin + entry.table[0]);
  unsigned char* const to = middle + size_t(blockIdx.y) * unsigned(middle_pitch);
  for (unsigned i = thread_index(); i < unsigned(entry.middle_bytes); i += gridDim.x * blockDim.x) {
    unsigned line = i;
    const int byte = peel(line, entry.inner), output = peel(line, entry.outputs);
    const int start = int(line) * entry.inputs * int(entry.inner) + byte;
    to[i] = weighted(begin + entry.data + start, entry.inner, table + output * (entry.taps[0] + 1),
                     entry.taps[0]);
  }
}

__global__ void __launch_bounds__(256)
    second_axis(const unsigned char* entries, const unsigned char* middle, unsigned char* y,
                int pitch, int middle_pitch, int bytes, Divisor channels, Divisor width) {
  follow_previous();
  const unsigned index = thread_index();
  if (index >= unsigned(bytes)) return;
  const Entry& entry = entry_at(entries, pitch);
  if (entry.kind < DECODED) return;
  const unsigned char* const begin = begin_of(entry);
  unsigned char* const to = y + size_t(blockIdx.y) * unsigned(bytes) + index;
  unsigned row = index;
  const unsigned channel = peel(row, channels);
  const int right = int(peel(row, width)) - entry.corner[0], down = int(row) - entry.corner[1];
  if (unsigned(right) >= unsigned(entry.size[0]) || unsigned(down) >= unsigned(entry.size[1])) {
    *to = entry.paper[channel];
    return;
  }
  const int output = entry.second[0] + right * entry.second[1] + down * entry.second[2];
  const int kept = entry.kept[0] + right * entry.kept[1] + down * entry.kept[2];
  const int* const table = reinterpret_cast<const int*>(begin + entry.table[1]);
  const unsigned char* const from = middle + size_t(blockIdx.y) * unsigned(middle_pitch) +
                                    (kept * entry.kept_stride + entry.channel[channel]);
  *to = weighted(from, entry.tap_stride, table + output * (entry.taps[1] + 1), entry.taps[1]);
}
