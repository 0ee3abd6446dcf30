// Attention over few keys in one launch: y = softmax(scale * q · kᵀ + bias) · v.
//
// Algorithm: a block of 128 threads computes QUERIES rows of one head of one image for all keys, at
//   most MOST_KEYS. It multiplies queries by keys, which gives the scores. It subtracts each row's
//   largest score and takes exponentials, the shares of the keys. It multiplies the shares by v and
//   divides by their sum. Scores are floats at every precision, and the order of all sums is fixed.
//   Blocks are small, so that one image has enough of them to fill a GPU.
//
//   attention, in strict float32: the scores lie in shared memory. A step of the first product has
//   KEYS keys and DEPTH channels, and a step of the second has FEW keys and WIDTH channels. A warp
//   computes 4 rows, and each of its threads 2 keys or 2 channels of these rows. So a thread loads
//   3 times from shared memory for 8 multiplications.
//
//   attention_tensor, on tensor cores, at the precisions of tensor_gemm.cu: k and then v are copied
//   in chunks of KEYS keys x 128 bytes of channels; shared memory holds STAGES chunks. A warp
//   multiplies 16 keys of each chunk of k by all queries, and keeps the scores in registers. Warps
//   exchange each row's largest score and sum through shared memory. The shares then overwrite the
//   queries. A warp multiplies all shares by a quarter of the channels in each chunk of v. Rows in
//   shared memory have 128 bytes and are swizzled as in tensor_gemm.cu.
// Layouts: any strides, so heads, slices and transposed factors need no copies. Reads are fastest
//   where a token's channels are contiguous, and on tensor cores where they also begin at multiples
//   of 16 bytes (`vectors`). `heads` is the walk (common.cuh) over the heads in all operands.
// Launch: (heads of all images, ceil(queries / QUERIES)) blocks.
#include "fragments.cuh"

constexpr int QUERIES = 16, MOST_KEYS = 256, MOST_DEPTH = 128;
constexpr int KEYS = 64, DEPTH = 32, FEW = 32, WIDTH = 64, THREADS = 128;
constexpr int PITCH = QUERIES + 4;  // vectors stay aligned, and fall on different banks

// How far apart rows (tokens) and columns (channels; keys of the bias) of each operand lie.
struct AttentionStrides {
  int row[5];  // of y, q, k, v, bias
  int column[5];
};

template <bool BIAS, int RANK>
__global__ void __launch_bounds__(128)
    attention(const float* q, const float* k, const float* v, const float* __restrict__ bias,
              float* y, Walk<RANK, 5> heads, AttentionStrides strides, int queries, int keys,
              int depth, int width, float scale) {
  follow_previous();
  __shared__ __align__(16) float scores[MOST_KEYS][PITCH];
  __shared__ __align__(16) float of_queries[MOST_DEPTH][PITCH];
  __shared__ float tile[KEYS * (DEPTH + 1)];
  __shared__ float sums[QUERIES];
  static_assert(FEW * WIDTH <= KEYS * (DEPTH + 1), "a tile of v lies where one of k does");

  const auto at = places(heads, blockIdx.x);
  const int first_query = blockIdx.y * QUERIES, exist = queries - first_query;
  const int lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 4;

  const float* const from = q + at.of[1] + first_query * strides.row[1];
  for (int i = threadIdx.x; i < QUERIES * depth; i += THREADS) {
    const int row = i / depth, channel = i % depth;
    of_queries[channel][row] =
        row < exist ? from[row * strides.row[1] + channel * strides.column[1]] : 0.0f;
  }

  for (int first = 0; first < keys; first += KEYS) {
    float products[2][4] = {};
    for (int channel = 0; channel < depth; channel += DEPTH) {
      __syncthreads();  // the tile before may still be read
      const float* const of_keys =
          k + at.of[2] + first * strides.row[2] + channel * strides.column[2];
      for (int i = threadIdx.x; i < KEYS * DEPTH; i += THREADS) {
        const int key = i / DEPTH, c = i % DEPTH;
        const bool inside = first + key < keys && channel + c < depth;
        tile[key * (DEPTH + 1) + c] =
            inside ? of_keys[key * strides.row[2] + c * strides.column[2]] : 0.0f;
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
      const float* const of_values =
          v + at.of[3] + first * strides.row[3] + channel * strides.column[3];
      for (int i = threadIdx.x; i < FEW * WIDTH; i += THREADS) {
        const int key = i / WIDTH, c = i % WIDTH;
        const bool inside = first + key < keys && channel + c < width;
        tile[i] = inside ? of_values[key * strides.row[3] + c * strides.column[3]] : 0.0f;
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
    float* const to = y + at.of[0] + first_query * strides.row[0];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int c = channel + lane + 32 * j;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + i;
        if (row < exist && c < width)
          to[row * strides.row[0] + c * strides.column[0]] = products[j][i] / sums[row];
      }
    }
  }
}

constexpr int ROW = 128;  // bytes of a row in shared memory
constexpr int STAGES = 3, WARPS = THREADS / 32;

// Bytes to a vector of 16 bytes: the 8 rows of a matrix, and the 8 vectors of a row, lie in
// different banks.
__device__ __forceinline__ int vector_at(int row, int vector) {
  return row * ROW + (vector ^ row % 8) * 16;
}

// Copies ROWS tokens, of which `tokens` exist, with `channels` channels: zeros for the others.
template <int ROWS, class T>
__device__ __forceinline__ void copy_tokens(unsigned char* to, const T* from, int tokens,
                                            int channels, int token_stride, int channel_stride,
                                            bool vectors) {
  constexpr int VECTOR = 16 / int(sizeof(T));
  const int vector = threadIdx.x % 8, channel = vector * VECTOR;
#pragma unroll
  for (int row = threadIdx.x / 8; row < ROWS; row += THREADS / 8) {
    T* const at = reinterpret_cast<T*>(to + vector_at(row, vector));
    const T* const token = from + min(row, tokens - 1) * token_stride;
    const int exist = row < tokens ? min(max(channels - channel, 0), VECTOR) : 0;
    if (vectors) {
      cp_async_part<16>(at, token + channel, exist * int(sizeof(T)));
    } else {
#pragma unroll
      for (int i = 0; i < VECTOR; ++i)
        at[i] = i < exist ? token[(channel + i) * channel_stride] : T(0.0f);
    }
  }
}

template <Precision PRECISION, bool BIAS, int RANK>
__global__ void __launch_bounds__(128)
    attention_tensor(const Element<PRECISION>* q, const Element<PRECISION>* k,
                     const Element<PRECISION>* v, const float* __restrict__ bias,
                     Element<PRECISION>* y, Walk<RANK, 5> heads, AttentionStrides strides,
                     int queries, int keys, int depth, int width, float scale, int vectors) {
  follow_previous();
  using T = Element<PRECISION>;
  constexpr int SIZE = int(sizeof(T)), CHANNELS = ROW / SIZE;  // of a row
  constexpr int STEP = 32 / SIZE;                              // channels, or keys, of an mma
  constexpr int TILES = MOST_KEYS / KEYS, N = CHANNELS / WARPS / 8;
  static_assert(MOST_DEPTH <= MOST_KEYS, "shares lie where the queries did");
  // Of each query first the channels, then the shares: 128 bytes after another, of all queries.
  __shared__ __align__(128) unsigned char rows[MOST_KEYS / CHANNELS][QUERIES * ROW];
  __shared__ __align__(128) unsigned char chunks[STAGES][KEYS * ROW];
  __shared__ float largest_of[WARPS][QUERIES], sum_of[WARPS][QUERIES];

  const auto at = places(heads, blockIdx.x);
  const int first_query = blockIdx.y * QUERIES, exist = queries - first_query;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // The chunk to be copied next: those of k, then those of v, all keys before other channels.
  bool of_v = false;
  int next_key = 0, next_channel = 0;
  const auto copy_next = [&](int stage) {
    const int row = of_v ? strides.row[3] : strides.row[2];
    const int column = of_v ? strides.column[3] : strides.column[2];
    const T* const from = of_v ? v + at.of[3] : k + at.of[2];
    const int left = (of_v ? width : depth) - next_channel;
    if (left > 0)
      copy_tokens<KEYS>(chunks[stage], from + next_key * row + next_channel * column,
                        keys - next_key, left, row, column, vectors != 0);
    cp_async_commit();
    next_key += KEYS;
    if (next_key < keys) return;
    next_key = 0;
    next_channel += CHANNELS;
    if (of_v || next_channel < depth) return;
    next_channel = 0;
    of_v = true;
  };
  int reading = 0;
  const auto next_chunk = [&] {
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // this chunk is there for all, and the one before it read by all
    copy_next(reading == 0 ? STAGES - 1 : reading - 1);
    const unsigned char* const chunk = chunks[reading];
    reading = reading + 1 == STAGES ? 0 : reading + 1;
    return chunk;
  };

  const T* const from = q + at.of[1] + first_query * strides.row[1];
  for (int channel = 0; channel < depth; channel += CHANNELS)
    copy_tokens<QUERIES>(rows[channel / CHANNELS], from + channel * strides.column[1], exist,
                         depth - channel, strides.row[1], strides.column[1], vectors != 0);
  for (int stage = 0; stage < STAGES - 1; ++stage) copy_next(stage);  // the queries with the first

  // Where this lane has ldmatrix's rows: 4 matrices are 16 queries x 2 vectors, the queries first,
  // or 16 keys x 2 vectors, the vectors first. The next step is at `^ 32`.
  const int query_lane = vector_at(lane % 16, lane / 16);
  const int key_lane = vector_at(warp * 16 + lane / 16 * 8 + lane % 8, lane / 8 % 2);

  Sums<1, 2> scores[TILES];  // with 16 keys of each tile
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) clear(scores[tile]);
  for (int channel = 0; channel < depth; channel += CHANNELS) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      if (tile * KEYS >= keys) break;
      const unsigned char* const chunk = next_chunk();
#pragma unroll
      for (int step = 0; step < CHANNELS / STEP; ++step) {
        if (channel + step * STEP >= depth) break;
        Fragments<1, 2> factors;
        ldmatrix_x4(factors.a[0], rows[channel / CHANNELS] + (query_lane ^ step * 32));
        unsigned two[4];
        ldmatrix_x4(two, chunk + (key_lane ^ step * 32));
#pragma unroll
        for (int i = 0; i < 4; ++i) factors.b[i / 2][i % 2] = two[i];
        multiply_step<PRECISION, false>(scores[tile], factors);
      }
    }
  }

  // Of each tile and 8 keys this lane has the scores of two neighbours, with the queries lane / 4
  // and 8 later (`later`).
  const auto for_each_pair = [&](const auto& each) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      if (tile * KEYS >= keys) break;
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int later = 0; later < 2; ++later)
          each(scores[tile][0][n] + later * 2, tile * KEYS + warp * 16 + n * 8, later);
    }
  };
  const auto over_row = [&](float (&of)[WARPS][QUERIES], int later, const auto& both) {
    float result = of[0][lane / 4 + later * 8];
#pragma unroll
    for (int i = 1; i < WARPS; ++i) result = both(result, of[i][lane / 4 + later * 8]);
    return result;
  };

  float largest[2] = {-infinity(), -infinity()}, sum[2] = {};
  for_each_pair([&](float* pair, int first, int later) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = first + lane % 4 * 2 + i;
      pair[i] = key < keys ? pair[i] * scale : -infinity();
      if constexpr (BIAS) {
        const int row = first_query + min(lane / 4 + later * 8, exist - 1);
        if (key < keys) pair[i] += bias[at.of[4] + row * strides.row[4] + key * strides.column[4]];
      }
      largest[later] = fmaxf(largest[later], pair[i]);
    }
  });
#pragma unroll
  for (int later = 0; later < 2; ++later) {
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2)
      largest[later] = fmaxf(largest[later], __shfl_xor_sync(0xffffffffu, largest[later], apart));
    if (lane % 4 == 0) largest_of[warp][lane / 4 + later * 8] = largest[later];
  }
  __syncthreads();  // the largest of all warps are there, and the queries read by all
#pragma unroll
  for (int later = 0; later < 2; ++later)
    largest[later] = over_row(largest_of, later, [](float a, float b) { return fmaxf(a, b); });

  for_each_pair([&](float* pair, int first, int later) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      pair[i] = expf(pair[i] - largest[later]);
      sum[later] += pair[i];
    }
    const int query = lane / 4 + later * 8, vector = first % CHANNELS * SIZE / 16;
    unsigned char* const chunk = rows[first / CHANNELS] + lane % 4 * 4;
    if constexpr (PRECISION == Precision::FP16) {
      store<2>(reinterpret_cast<T*>(chunk + vector_at(query, vector)), Vec<2>{pair[0], pair[1]});
    } else {  // even keys, then odd ones: so lanes read rows of v from different banks
#pragma unroll
      for (int i = 0; i < 2; ++i)
        *reinterpret_cast<float*>(chunk + vector_at(query, vector + i)) = pair[i];
    }
  });
#pragma unroll
  for (int later = 0; later < 2; ++later) {
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2)
      sum[later] += __shfl_xor_sync(0xffffffffu, sum[later], apart);
    if (lane % 4 == 0) sum_of[warp][lane / 4 + later * 8] = sum[later];
  }

  for (int channel = 0; channel < width; channel += CHANNELS) {
    Sums<1, N> products = {};
    for (int tile = 0; tile < keys; tile += KEYS) {
      const unsigned char* const chunk = next_chunk();  // at first the shares are there, too
#pragma unroll
      for (int key = 0; key < KEYS; key += STEP) {
        Fragments<1, N> factors;
        ldmatrix_x4(factors.a[0],
                    rows[(tile + key) / CHANNELS] + (query_lane ^ key % CHANNELS / STEP * 32));
        if constexpr (PRECISION == Precision::FP16) {
          unsigned two[4];  // 16 keys x 2 vectors, the keys first
          ldmatrix_x4_trans(two, chunk + vector_at(key + lane % 16, warp * 2 + lane / 16));
#pragma unroll
          for (int i = 0; i < 4; ++i) factors.b[i / 2][i % 2] = two[i];
        } else {
          const int vector = warp * 2 + lane / 16, byte = lane / 4 % 4 * 4;
#pragma unroll
          for (int i = 0; i < 2; ++i)
            factors.b[0][i] = *reinterpret_cast<const unsigned*>(
                chunk + vector_at(key + lane % 4 * 2 + i, vector) + byte);
        }
        multiply_step<PRECISION, false>(products, factors);
      }
    }
    T* const to = y + at.of[0] + first_query * strides.row[0];
#pragma unroll
    for (int later = 0; later < 2; ++later) {
      const int row = lane / 4 + later * 8;
      const float divisor = over_row(sum_of, later, [](float a, float b) { return a + b; });
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int c = channel + (warp * N + n) * 8 + lane % 4 * 2 + i;
          if (row < exist && c < width)
            to[row * strides.row[0] + c * strides.column[0]] =
                T(products[0][n][later * 2 + i] / divisor);
        }
    }
  }
}
