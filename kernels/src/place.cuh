// A place in a batch of images begins with an entry, which says what lies there.
#pragma once
#include "common.cuh"

// kernels/image/decoded.py. A table has a row an output: the first input, and a weight a tap.
struct Entry {
  int bytes;         // of it all: a multiple of 16
  int pixels;        // where they begin, in bytes from the entry's begin; or a JPEG file's scan
  int resized;       // 0: the pixels are of the network's size, and nothing below counts
  int jpeg;          // where what describes a JPEG file begins (jpeg.cuh); 0: it is none
  int middle_bytes;  // what the first pass makes
  Divisor inner;     // bytes between the first axis's inputs, and between its outputs
  Divisor outputs;   // of the first axis
  int inputs;        // of the first axis
  int taps[2];       // of an output of the first and of the second axis
  int table[2];      // where theirs begin
  int second[3];     // the place on the second axis: at the image's corner, and by x and y from it
  int kept[3];       // likewise on the first axis, of which the first pass made the outputs
  int kept_stride;   // bytes between places on the first axis, in what the first pass made
  int tap_stride;    // likewise on the second axis
  int corner[2];     // x and y of the image in the network's pixels
  int size[2];       // its width and height there
  int channel[4];    // by the network's channel, the image's
  int paper[4];      // the colour around it
};

// The entry of the place that a block's y is.
__device__ __forceinline__ const Entry& entry_at(const unsigned char* entries, int pitch) {
  return *reinterpret_cast<const Entry*>(entries + size_t(blockIdx.y) * unsigned(pitch));
}

// An image's pixels, or the scan of a JPEG file.
__device__ __forceinline__ const unsigned char* pixels_of(const Entry& entry) {
  return reinterpret_cast<const unsigned char*>(&entry) + entry.pixels;
}
