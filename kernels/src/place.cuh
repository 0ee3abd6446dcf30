// The places of a batch, each with one image of any kind: kernels/image/place.py.
//
// A place begins with its entry, which holds every parameter that differs from image to image. So
// one captured graph, whose grids fit the largest image, serves images of all kinds and sizes.
#pragma once
#include "common.cuh"

enum Kind {
  PIXELS,   // bytes of the network's size, H x W x C
  TENSOR,   // floats as the network takes them
  DECODED,  // bytes of another size, of which resize.cu makes pixels
  JPEG,     // a file, of which jpeg.cu makes such bytes
};

// What comes after `jpeg` is of decoded images and files. Tables have a row an output: the first
// input, and a weight a tap.
struct Entry {
  int kind;
  int bytes;         // of it all: a multiple of 16
  int data;          // where the image begins, in bytes from the entry's begin; or a JPEG's scan
  int jpeg;          // where what describes a JPEG file begins (jpeg.cuh); 0: it is none
  int middle_bytes;  // what the first pass makes; 0 of other kinds
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

// Of the block's place, which is y of the grid.
__device__ __forceinline__ const Entry& entry_at(const unsigned char* entries, int pitch) {
  return *reinterpret_cast<const Entry*>(entries + size_t(blockIdx.y) * unsigned(pitch));
}

__device__ __forceinline__ const unsigned char* begin_of(const Entry& entry) {
  return reinterpret_cast<const unsigned char*>(&entry);
}

__device__ __forceinline__ const unsigned char* data_of(const Entry& entry) {
  return begin_of(entry) + entry.data;
}
