// Describes a JPEG file for kernels: the part of a place's entry that belongs to the file, and the
// layout of the scratch memory that the kernels share.
//
// The scan of each restart segment is decoded, without stuffing, in subsequences of SUBSEQUENCE
// bytes. The subsequences of segment s are numbered from slot start / SUBSEQUENCE + s on, where
// `start` is the segment's first byte. Thus no sum over the segments is needed, and at most one
// slot between two segments is empty.
#pragma once
#include "place.cuh"

constexpr int SUBSEQUENCE = 128;   // bytes
constexpr int CHUNK = 4096;        // bytes of the scan that a block looks for stuffing in
constexpr int MOST_CHUNKS = 256;   // kernels/image/jpeg.py, MOST_SCAN_BYTES
constexpr int MOST_SLOTS = 12288;  // of these and of MOST_SEGMENTS
constexpr int MOST_BLOCKS = 6;     // of an MCU, and so walkers of a subsequence
constexpr int ROUNDS = 8;          // of walkers, after the first
constexpr int QUICK_BITS = 9;      // codes as long as that take one look into a table

// kernels/image/jpeg.py. Arrays are by component, or by block of an MCU where they have 6.
// Behind it lie 64 steps of quantization a component, in zigzag order; the place in a block of each
// coefficient of that order; and each component's table of DC and of AC codes: how many there are
// of each length, and 256 values.
struct Jpeg {
  int scan_bytes;   // as in the file
  int segments;     // between restart markers
  int interval;     // blocks of a segment
  int blocks;       // of the scan
  Divisor per_mcu;  // blocks of an MCU
  Divisor across;   // MCUs in a row
  int component[6];
  int column[6];       // of a block among its component's in the MCU
  int row[6];          // likewise
  int h[3];            // blocks of the MCU
  int v[3];            // likewise
  int side[3];         // samples that a block becomes, across and down: 8, 4, 2 or 1
  int width[3];        // of a component in samples, without those that fill up its last blocks
  int height[3];       // likewise
  int up_x[3];         // pixels of the image a sample, across: 1 or 2
  int up_y[3];         // likewise, down
  int fancy;           // samples are interpolated, not repeated
  int transform;       // from YCbCr to RGB
  int components;      // 1 or 3
  Divisor crop_width;  // of the pixels that are wanted
  int crop_height;
  int left;  // of these in the image
  int top;
  int walkers;       // between two rounds' records: as many as there may be
  int starts;        // from here on: where in a place's scratch memory that begins
  int bytes;         // the scan without stuffing
  int links;         // of walkers
  int records;       // of walkers, by round
  int sources;       // of subsequences: the record that is true
  int sums;          // of subsequences
  int coefficients;  // 64 of each block, in zigzag order
  int plane[3];      // samples
};

constexpr int QUANTIZATION_BYTES = 3 * 64, ZIGZAG_BYTES = 64, HUFFMAN_BYTES = 16 + 256;

// A Huffman table. A number of `quick` is by the next 9 bits, and 0 where no code that short begins
// so: how many bits the symbol takes with the number behind its code, the number's bits << 5, and
// the coefficients that it is for << 9, which for an end of a block are 64.
struct alignas(16) Lookup {
  unsigned short quick[1 << QUICK_BITS];
  unsigned short limit[8];  // of 10 to 16 bits: no code that long begins with 16 bits from here on
  short value[8];           // of 10 to 16 bits: what to add to a code for its place in `values`
  unsigned char values[256];
};

// The begin of a place's scratch memory.
struct alignas(16) Scratch {
  int slots;  // of subsequences; 0 where the restart markers are not those expected
  int whole;  // every subsequence's record is known
  unsigned counts[MOST_CHUNKS];  // bytes and, << 16, restart markers of a chunk
  Lookup lookup[6];
};
static_assert(sizeof(Scratch) == 8912, "kernels/image/jpeg.py, _HEAD_BYTES");

// Why a device leaves an image to the host: kernels/image/jpeg.py, Flag.
enum Flag {
  BAD_CODE = 1,
  BITS_MISSING = 2,
  TOO_MANY_COEFFICIENTS = 4,
  NOT_SYNCHRONISED = 8,
  BITS_LEFT_OVER = 16,
  OVERFLOW = 32,
  MARKER = 64,
};

__device__ __forceinline__ const Jpeg& jpeg_of(const Entry& entry) {
  return *reinterpret_cast<const Jpeg*>(reinterpret_cast<const unsigned char*>(&entry) +
                                        entry.jpeg);
}

__device__ __forceinline__ const unsigned char* tables_of(const Jpeg& jpeg) {
  return reinterpret_cast<const unsigned char*>(&jpeg + 1);
}

// The scratch memory of the place that a block's y is.
__device__ __forceinline__ Scratch& scratch_at(unsigned char* scratch, int pitch) {
  return *reinterpret_cast<Scratch*>(scratch + size_t(blockIdx.y) * unsigned(pitch));
}

template <class T>
__device__ __forceinline__ T* part(Scratch& scratch, int begin) {
  return reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(&scratch) + begin);
}
