// Computes the results that the host reads, one row per image: its scores, the indices of the k
// largest, their probabilities, and last a 1 plus the image's flags, which says that all is
// written.
//
//   PROBABILITIES  score = x, probability = score
//   LOGITS         score = x, probability = exp(x - m) / sum of exp(x - m), m the largest x
//   SOFTMAX        score = exp(x - m) / sum of exp(x - m), probability = score
//
// A network's last softmax is computed here, which saves its launch.
//
// Algorithm: each warp sorts 32 scores at a time with a bitonic network (Batcher 1968, "Sorting
//   networks and their applications"), and keeps the 32 largest so far, one per lane. A tree over
//   the warps merges their lists. A key is a score's bits, mapped so that integers order them like
//   floats, and then the inverted index, so that among equal scores the lower index is first. For
//   1000 classes, 1024 threads have 32 scores per warp: sorting takes 15 exchanges, and the tree
//   takes 5 merges of 5 exchanges. Every probability of a row is NaN if one of its scores is NaN or
//   infinite.
// Layouts: x has rows with a pitch, of floats, halves, or bytes that stand for numbers. y is in
//   pinned host memory, with contiguous rows. The 1 is written after a fence for the whole system,
//   so the host may wait until it reads the 1.
// Launch: one block per image, with a warp per 32 classes; the number of warps is a power of two,
//   at most 32.
#include "block.cuh"
#include "bytes.cuh"
#include "common.cuh"
#include "half.cuh"

enum class ScoreKind { PROBABILITIES, LOGITS, SOFTMAX };

using Key = unsigned long long;

// Greater keys are greater scores; -0 is 0.
__device__ __forceinline__ Key key_of(float score, int index) {
  const unsigned bits = __float_as_uint(score + 0.0f);
  const unsigned in_order = bits >> 31 ? ~bits : bits | 0x80000000u;
  return Key(in_order) << 32 | ~unsigned(index);
}

__device__ __forceinline__ int index_of(Key key) { return int(~unsigned(key)); }

__device__ __forceinline__ float score_of(Key key) {
  const unsigned in_order = unsigned(key >> 32);
  return __uint_as_float(in_order >> 31 ? in_order & 0x7fffffffu : ~in_order);
}

// A bitonic sequence in each run of SIZE lanes, sorted.
template <int SIZE>
__device__ __forceinline__ Key merged(Key key, int lane, bool descending) {
#pragma unroll
  for (int apart = SIZE / 2; apart > 0; apart /= 2) {
    const Key other = __shfl_xor_sync(0xffffffffu, key, apart);
    const bool keeps_larger = ((lane & apart) == 0) == descending;
    key = (key > other) == keeps_larger ? key : other;
  }
  return key;
}

// The warp's keys, ascending by lane. Runs that double alternate in direction.
template <int SIZE = 2>
__device__ __forceinline__ Key sorted(Key key, int lane) {
  key = merged<SIZE>(key, lane, (lane & SIZE) != 0);
  if constexpr (SIZE < 32) return sorted<SIZE * 2>(key, lane);
  return key;
}

// Of keys in descending and keys in ascending order, a lane each: the 32 largest, descending.
__device__ __forceinline__ Key largest(Key descending, Key ascending, int lane) {
  return merged<32>(descending > ascending ? descending : ascending, lane, true);
}

// An image's scores, as numbers.
template <class X>
struct Scores {
  const X* row;
  float scale, zero;

  __device__ __forceinline__ float operator[](int i) const {
    const float score = row[i];
    if constexpr (sizeof(X) == 1) return (score - zero) * scale;
    return score;
  }
};

template <class X, ScoreKind KIND, int THREADS>
__global__ void __launch_bounds__(THREADS)
    top_k(const X* x, const int* flags, float* y, int classes, int x_pitch, int k, float scale,
          int zero) {
  follow_previous();
  constexpr int WARPS = THREADS / 32;
  __shared__ Key of_warp[WARPS][32];
  __shared__ float most;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Scores<X> row{x + blockIdx.x * x_pitch, scale, float(zero)};
  float* const to = y + blockIdx.x * (classes + 2 * k + 1);

  Exponentials of_row{};
  if constexpr (KIND == ScoreKind::SOFTMAX) of_row = exponentials<THREADS>(row, classes, 1);

  Key best = 0;
  float sum = 0.0f;  // NaN once a score is not finite
  for (int first = warp * 32; first < classes; first += THREADS) {
    const int index = first + lane;
    Key key = 0;
    if (index < classes) {
      float score = row[index];
      if (KIND == ScoreKind::SOFTMAX) score = expf(score - of_row.largest) / of_row.sum;
      to[index] = score;
      key = key_of(score, index);
      sum += 0.0f * score;
    }
    best = largest(best, sorted(key, lane), lane);
  }
#pragma unroll
  for (int apart = WARPS / 2; apart > 0; apart /= 2) {
    if (warp >= apart && warp < 2 * apart) of_warp[warp][31 - lane] = best;
    __syncthreads();
    if (warp < apart) best = largest(best, of_warp[warp + apart][lane], lane);
  }

  if (KIND == ScoreKind::LOGITS) {
    if (threadIdx.x == 0) most = score_of(best);
    __syncthreads();
    for (int i = threadIdx.x; i < classes; i += THREADS) sum += expf(row[i] - most);
  }
  // One score of a softmax is NaN only where all are.
  if (KIND != ScoreKind::SOFTMAX) sum = over_block<Sum, THREADS>(sum);
  if (threadIdx.x < k) {
    const float score = score_of(best);
    to[classes + threadIdx.x] = float(index_of(best));
    to[classes + k + threadIdx.x] =
        KIND == ScoreKind::LOGITS ? expf(score - most) / sum : score + sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();  // what the block wrote, which the barrier showed this thread
    const float flag = flags == nullptr ? 0.0f : float(flags[blockIdx.x]);
    *const_cast<volatile float*>(to + classes + 2 * k) = 1.0f + flag;
  }
}
