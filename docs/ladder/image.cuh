// What all steps of the ladder share: where pixels lie, and F(2×2, 3×3)'s transforms.
// x is H·W·C and y is H·W·K, both of floats, H = W = size; a 3×3 filter, padded by 1, stride 1.
#pragma once

// A pixel's channel, 0 outside the image.
__device__ __forceinline__ float pixel(const float* x, int row, int column, int channel, int size,
                                       int channels) {
  const bool inside = row >= 0 && row < size && column >= 0 && column < size;
  return inside ? x[(row * size + column) * channels + channel] : 0.0f;
}

// Transforms 4 numbers, `apart` from each other, by Bᵀ: Lavin & Gray, equation 7.
__device__ __forceinline__ void data_row(float* d, int apart) {
  const float a = d[0], b = d[apart], c = d[2 * apart], e = d[3 * apart];
  d[0] = a - c;
  d[apart] = b + c;
  d[2 * apart] = c - b;
  d[3 * apart] = b - e;
}

// v = Bᵀ d B of the 4×4 pixels of a tile, in place: equation 8.
__device__ __forceinline__ void data_transform(float (&d)[16]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) data_row(d + i, 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) data_row(d + 4 * i, 1);
}

// Reads a tile's pixels of one channel and transforms them. Tiles are 2 apart, row by row.
__device__ __forceinline__ void load_tile(const float* x, int tile, int channel, int size,
                                          int channels, float (&d)[16]) {
  const int across = (size + 1) / 2, row = tile / across * 2 - 1, column = tile % across * 2 - 1;
#pragma unroll
  for (int i = 0; i < 16; ++i)
    d[i] = pixel(x, row + i / 4, column + i % 4, channel, size, channels);
  data_transform(d);
}

// Writes the 2×2 outputs Aᵀ m A of a tile and filter.
__device__ __forceinline__ void store_tile(const float (&m)[16], float* y, int tile, int filter,
                                           int size, int filters) {
  float half[2][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    half[0][i] = m[i] + m[4 + i] + m[8 + i];
    half[1][i] = m[4 + i] - m[8 + i] - m[12 + i];
  }
  const int across = (size + 1) / 2, row = tile / across * 2, column = tile % across * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float* const to = y + ((row + i) * size + column) * filters + filter;
    if (row + i < size) to[0] = half[i][0] + half[i][1] + half[i][2];
    if (row + i < size && column + 1 < size) to[filters] = half[i][1] - half[i][2] - half[i][3];
  }
}
