// Multiplies many pairs of computed matrices at once: y = a · b.
//
// Algorithm: a block of 64 threads computes TILE × TILE numbers of one product. In each step it
//   copies TERMS terms of both factors to shared memory, with zeros beyond the factors' ends. The
//   order of the sums is fixed: along the terms. Sums are floats at every precision.
//   product, in strict float32: a thread computes 4 × 4 numbers, and loads 4 numbers of each factor
//   for 16 multiplications. product_tensor, on tensor cores, at the precisions of tensor_gemm.cu: a
//   warp computes 16 rows. A lane reads two neighbouring terms, its part of a fragment of halves.
//   An mma of TF32 multiplies 8 terms in an order in which a lane reads the same two terms.
// Layouts: any strides, so transposed factors, heads and slices need no copies. Neighbouring
//   threads copy along the axis that is contiguous: the terms, or a's rows and b's columns
//   (A_TERMS, B_COLUMNS). `matrices` walks over the products.
// Launch: (products, ceil(rows / TILE), ceil(columns / TILE)) blocks.
#include "fragments.cuh"

constexpr int TILE = 32, TERMS = 32, THREADS = 64;
constexpr int PITCH = TILE + 4;  // vectors stay aligned, and a column's numbers spread over banks

// How far apart rows, terms and columns lie.
struct ProductStrides {
  int a_row;
  int a_term;
  int b_term;
  int b_column;
  int y_row;
  int y_column;
};

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

// Copies the tiles of a block's rows and columns, of which so many exist, and calls `multiply` with
// each pair of them.
template <bool A_TERMS, bool B_COLUMNS, class T, class Multiply>
__device__ __forceinline__ void for_each_tile(const T* a, const T* b, int rows, int columns,
                                              int terms, const ProductStrides& strides,
                                              const Multiply& multiply) {
  __shared__ __align__(16) float of_a[TERMS][PITCH], of_b[TERMS][PITCH];
  for (int first = 0; first < terms; first += TERMS) {
    copy_tile<A_TERMS>(of_a, a + first * strides.a_term, rows, terms - first, strides.a_row,
                       strides.a_term);
    copy_tile<!B_COLUMNS>(of_b, b + first * strides.b_term, columns, terms - first,
                          strides.b_column, strides.b_term);
    __syncthreads();
    multiply(of_a, of_b);
    __syncthreads();  // the tiles may still be read
  }
}

template <bool A_TERMS, bool B_COLUMNS, int RANK>
__global__ void __launch_bounds__(64)
    product(const float* a, const float* b, float* y, Walk<RANK, 3> matrices, int rows, int columns,
            int terms, ProductStrides strides) {
  follow_previous();
  const auto at = places(matrices, blockIdx.x);
  const int first_row = blockIdx.y * TILE, first_column = blockIdx.z * TILE;
  const int row = threadIdx.x / 8 * 4, column = threadIdx.x % 8 * 4;
  float sums[4][4] = {};
  for_each_tile<A_TERMS, B_COLUMNS>(
      a + at.of[1] + first_row * strides.a_row, b + at.of[2] + first_column * strides.b_column,
      rows - first_row, columns - first_column, terms, strides,
      [&](const float (&of_a)[TERMS][PITCH], const float (&of_b)[TERMS][PITCH]) {
#pragma unroll 4
        for (int term = 0; term < TERMS; ++term) {
          const Vec<4> of_row = load<4>(&of_a[term][row]), of_column = load<4>(&of_b[term][column]);
#pragma unroll
          for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j)
              sums[i][j] = fmaf(of_row.at[i], of_column.at[j], sums[i][j]);
        }
      });

  float* const to = y + at.of[0];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int p = first_row + row + i, q = first_column + column + j;
      if (p < rows && q < columns) to[p * strides.y_row + q * strides.y_column] = sums[i][j];
    }
}

template <Precision PRECISION, bool A_TERMS, bool B_COLUMNS, int RANK>
__global__ void __launch_bounds__(64)
    product_tensor(const Element<PRECISION>* a, const Element<PRECISION>* b, Element<PRECISION>* y,
                   Walk<RANK, 3> matrices, int rows, int columns, int terms,
                   ProductStrides strides) {
  follow_previous();
  using T = Element<PRECISION>;
  constexpr bool HALVES = PRECISION == Precision::FP16;
  constexpr int STEP = HALVES ? 16 : 8, N = TILE / 8;
  const auto at = places(matrices, blockIdx.x);
  const int first_row = blockIdx.y * TILE, first_column = blockIdx.z * TILE;
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;

  // Part `i` of a fragment: of 16 halves two neighbours in each half, of 8 floats one at a time.
  const auto part = [&](const float (&tile)[TERMS][PITCH], int term, int place, int i) {
    term += lane % 4 * 2;
    if constexpr (HALVES)
      return unsigned(half_of_float(tile[term + i * 8][place])) |
             unsigned(half_of_float(tile[term + i * 8 + 1][place])) << 16;
    else
      return __float_as_uint(tile[term + i][place]);
  };
  Sums<1, N> sums = {};
  for_each_tile<A_TERMS, B_COLUMNS>(
      a + at.of[1] + first_row * strides.a_row, b + at.of[2] + first_column * strides.b_column,
      rows - first_row, columns - first_column, terms, strides,
      [&](const float (&of_a)[TERMS][PITCH], const float (&of_b)[TERMS][PITCH]) {
#pragma unroll
        for (int term = 0; term < TERMS; term += STEP) {
          Fragments<1, N> factors;
#pragma unroll
          for (int i = 0; i < 4; ++i) factors.a[0][i] = part(of_a, term, row + i % 2 * 8, i / 2);
#pragma unroll
          for (int n = 0; n < N; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) factors.b[n][i] = part(of_b, term, n * 8 + lane / 4, i);
          multiply_step<PRECISION, false>(sums, factors);
        }
      });

  T* const to = y + at.of[0];
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int p = first_row + row + i / 2 * 8;
      const int q = first_column + n * 8 + lane % 4 * 2 + i % 2;
      if (p < rows && q < columns) to[p * strides.y_row + q * strides.y_column] = T(sums[0][n][i]);
    }
}
