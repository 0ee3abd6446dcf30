// A block's part of a matrix product, through shared memory: 32 rows × 32 columns, 64 threads.
#pragma once

// Adds to a thread's 4×4 sums the products of 8 numbers of each row and column. `row(i, c)` and
// `column(c, j)` read them; the block reads each once and multiplies it 32 times.
template <class Row, class Column>
__device__ __forceinline__ void multiply(float (&sums)[4][4], const Row& row,
                                         const Column& column) {
  __shared__ float rows[8][32], columns[8][32];
  __syncthreads();  // the last product's numbers are read
  for (int i = threadIdx.x; i < 256; i += 64) {
    rows[i % 8][i / 8] = row(i / 8, i % 8);
    columns[i / 32][i % 32] = column(i / 32, i % 32);
  }
  __syncthreads();
  const int first = threadIdx.x / 8 * 4, left = threadIdx.x % 8 * 4;
#pragma unroll
  for (int c = 0; c < 8; ++c)
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i][j] += rows[c][first + i] * columns[c][left + j];
}
