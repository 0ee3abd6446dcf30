// Products of two computed matrices, many at once: y = a · b.
//
// Algorithm: a block of 64 threads computes TILE × TILE numbers of one product, 4 × 4 a thread, in
//   steps of TERMS products: it copies a tile of either factor to shared memory, and every thread
//   reads 4 numbers of each for 16 products. Beyond the factors' ends it multiplies zeros. The
//   order of the sums is fixed: along the terms. Sums are floats, whatever the factors are.
// Layouts: any strides, so that transposed factors, heads and slices need no copies. Neighbouring
//   threads copy neighbours along the terms, or along the rows of a and the columns of b: along
//   whichever axis is contiguous (A_TERMS, B_COLUMNS). `matrices` walks over the products.
// Launch: (products, ceil(rows / TILE), ceil(columns / TILE)) blocks.
#include "common.cuh"
#include "half.cuh"

constexpr int TILE = 32, TERMS = 32, THREADS = 64;
constexpr int PITCH = TILE + 4;  // vectors stay aligned, and a column's numbers spread over banks

// Copies `size` × `terms` numbers to `to`[term][place], 0 beyond them.
template <bool ALONG_TERMS, class T>
__device__ __forceinline__ void copy_tile(float (*to)[PITCH], const T* from, int size, int terms,
                                          int place_stride, int term_stride) {
#pragma unroll 4
  for (int i = threadIdx.x; i < TILE * TERMS; i += THREADS) {
    const int place = ALONG_TERMS ? i / TERMS : i % TILE;
    const int term = ALONG_TERMS ? i % TERMS : i / TILE;
    const bool exists = place < size && term < terms;
    to[term][place] = exists ? float(from[place * place_stride + term * term_stride]) : 0.0f;
  }
}

template <class T, bool A_TERMS, bool B_COLUMNS, int RANK>
__global__ void __launch_bounds__(64)
    product(const T* a, const T* b, T* y, Walk<RANK, 3> matrices, int rows, int columns, int terms,
            int a_row, int a_term, int b_term, int b_column, int y_row, int y_column) {
  follow_previous();
  __shared__ __align__(16) float of_a[TERMS][PITCH], of_b[TERMS][PITCH];
  const auto at = places(matrices, blockIdx.x);
  const int first_row = blockIdx.y * TILE, first_column = blockIdx.z * TILE;
  const T* const left = a + at.of[1] + first_row * a_row;
  const T* const right = b + at.of[2] + first_column * b_column;
  const int row = threadIdx.x / 8 * 4, column = threadIdx.x % 8 * 4;
  float sums[4][4] = {};

  for (int first = 0; first < terms; first += TERMS) {
    copy_tile<A_TERMS>(of_a, left + first * a_term, rows - first_row, terms - first, a_row, a_term);
    copy_tile<!B_COLUMNS>(of_b, right + first * b_term, columns - first_column, terms - first,
                          b_column, b_term);
    __syncthreads();
#pragma unroll 4
    for (int term = 0; term < TERMS; ++term) {
      const Vec<4> of_row = load<4>(&of_a[term][row]), of_column = load<4>(&of_b[term][column]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(of_row.at[i], of_column.at[j], sums[i][j]);
    }
    __syncthreads();  // the tiles may still be read
  }

  T* const to = y + at.of[0];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int p = first_row + row + i, q = first_column + column + j;
      if (p < rows && q < columns) to[p * y_row + q * y_column] = T(sums[i][j]);
    }
}
