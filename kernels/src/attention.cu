// Attention over few keys in one launch: y = softmax(scale * q · kᵀ + bias) · v.
//
// Algorithm: a block of 128 threads computes QUERIES rows of one head of one image. The scores of
// all
//   its queries for all keys, at most MOST_KEYS, stay in shared memory, as floats whatever q, k and
//   v are: products of queries and keys first, in tiles of KEYS keys and DEPTH channels; then each
//   row's largest score is subtracted and the exponentials are summed, by a warp for 4 rows; then
//   their products with v, in tiles of FEW keys and WIDTH channels, divided by the sum. A thread
//   has 4 queries, and 2 keys or 2 channels: 3 loads from shared memory for 8 products. The order
//   of all sums is fixed. Small blocks, so that one image fills a GPU with them.
// Layouts: any strides, so that heads, slices and transposed factors need no copies; fastest where
//   the channels of a token lie side by side. `heads` walks over y, q, k, v and bias.
// Launch: (heads of all images, ceil(queries / QUERIES)) blocks.
#include "common.cuh"
#include "half.cuh"

constexpr int QUERIES = 16, MOST_KEYS = 256, MOST_DEPTH = 128;
constexpr int KEYS = 64, DEPTH = 32, FEW = 32, WIDTH = 64, THREADS = 128;
constexpr int PITCH = QUERIES + 4;  // vectors stay aligned, and fall on different banks

// How far apart rows (tokens) and columns (channels; keys of the bias) of each operand lie.
struct AttentionStrides {
  int row[5];  // of y, q, k, v, bias
  int column[5];
};

template <class T, bool BIAS, int RANK>
__global__ void __launch_bounds__(128)
    attention(const T* q, const T* k, const T* v, const float* __restrict__ bias, T* y,
              Walk<RANK, 5> heads, AttentionStrides strides, int queries, int keys, int depth,
              int width, float scale) {
  follow_previous();
  __shared__ __align__(16) float scores[MOST_KEYS][PITCH];
  __shared__ __align__(16) float of_queries[MOST_DEPTH][PITCH];
  __shared__ float tile[KEYS * (DEPTH + 1)];
  __shared__ float sums[QUERIES];
  static_assert(FEW * WIDTH <= KEYS * (DEPTH + 1), "a tile of v lies where one of k does");

  const auto at = places(heads, blockIdx.x);
  const int first_query = blockIdx.y * QUERIES, exist = queries - first_query;
  const int lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 4;

  const T* const from = q + at.of[1] + first_query * strides.row[1];
  for (int i = threadIdx.x; i < QUERIES * depth; i += THREADS) {
    const int row = i / depth, channel = i % depth;
    of_queries[channel][row] =
        row < exist ? float(from[row * strides.row[1] + channel * strides.column[1]]) : 0.0f;
  }

  for (int first = 0; first < keys; first += KEYS) {
    float products[2][4] = {};
    for (int channel = 0; channel < depth; channel += DEPTH) {
      __syncthreads();  // the tile before may still be read
      const T* const of_keys = k + at.of[2] + first * strides.row[2] + channel * strides.column[2];
      for (int i = threadIdx.x; i < KEYS * DEPTH; i += THREADS) {
        const int key = i / DEPTH, c = i % DEPTH;
        const bool inside = first + key < keys && channel + c < depth;
        tile[key * (DEPTH + 1) + c] =
            inside ? float(of_keys[key * strides.row[2] + c * strides.column[2]]) : 0.0f;
      }
      __syncthreads();  // the tile, and at first the queries, are there
      const int deep = min(DEPTH, depth - channel);
#pragma unroll 4
      for (int c = 0; c < deep; ++c) {
        const Vec<4> query = load<4>(&of_queries[channel + c][first_row]);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float key = tile[(lane + 32 * j) * (DEPTH + 1) + c];
#pragma unroll
          for (int i = 0; i < 4; ++i) products[j][i] = fmaf(query.at[i], key, products[j][i]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int key = first + lane + 32 * j;
      if (key >= keys) continue;
      Vec<4> score;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score.at[i] = products[j][i] * scale;
        if constexpr (BIAS) {
          const int row = min(first_row + i, exist - 1);
          score.at[i] +=
              bias[at.of[4] + (first_query + row) * strides.row[4] + key * strides.column[4]];
        }
      }
      store<4>(&scores[key][first_row], score);
    }
  }
  // No barrier: of its 4 rows a thread reads the scores that it wrote itself.
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + i;
    float largest = -infinity();
    for (int key = lane; key < keys; key += 32) largest = fmaxf(largest, scores[key][row]);
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, apart));
    float sum = 0.0f;
    for (int key = lane; key < keys; key += 32) {
      const float share = expf(scores[key][row] - largest);
      scores[key][row] = share;
      sum += share;
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    if (lane == 0) sums[row] = sum;
  }

  for (int channel = 0; channel < width; channel += WIDTH) {
    float products[2][4] = {};
    for (int first = 0; first < keys; first += FEW) {
      __syncthreads();  // the tile before may still be read; at first the shares are there
      const T* const of_values =
          v + at.of[3] + first * strides.row[3] + channel * strides.column[3];
      for (int i = threadIdx.x; i < FEW * WIDTH; i += THREADS) {
        const int key = i / WIDTH, c = i % WIDTH;
        const bool inside = first + key < keys && channel + c < width;
        tile[i] = inside ? float(of_values[key * strides.row[3] + c * strides.column[3]]) : 0.0f;
      }
      __syncthreads();
      const int few = min(FEW, keys - first);
#pragma unroll 4
      for (int key = 0; key < few; ++key) {
        const Vec<4> share = load<4>(&scores[first + key][first_row]);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float value = tile[key * WIDTH + lane + 32 * j];
#pragma unroll
          for (int i = 0; i < 4; ++i) products[j][i] = fmaf(share.at[i], value, products[j][i]);
        }
      }
    }
    T* const to = y + at.of[0] + first_query * strides.row[0];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int c = channel + lane + 32 * j;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + i;
        if (row < exist && c < width)
          to[row * strides.row[0] + c * strides.column[0]] = T(products[j][i] / sums[row]);
      }
    }
  }
}
