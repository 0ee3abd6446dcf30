// Reductions along any axes: sum, mean, maximum, minimum, L2 norm.
//
// Algorithm: LANES threads reduce one row, which is the elements along the reduced axes. A short
//   row has one thread, so that neighbouring threads read neighbouring rows. A long row has a warp
//   or a block, whose threads divide the fastest of the reduced axes. The order of the sums is
//   fixed: along each thread's elements, then as in block.cuh.
// Layouts: any strides. `rows` walks over the output and the rows' first elements, and `along` over
//   the elements of a row.
// Launch: one block of LANES threads per row. If LANES is 1, a block has 256 threads and 256 rows.
#include "block.cuh"
#include "common.cuh"
#include "half.cuh"

enum class ReduceKind { SUM, MEAN, MAX, MIN, L2 };

template <ReduceKind KIND>
struct Reduction {
  static __device__ __forceinline__ float none() {
    if constexpr (KIND == ReduceKind::MAX) return -infinity();
    if constexpr (KIND == ReduceKind::MIN) return infinity();
    return 0.0f;
  }

  static __device__ __forceinline__ float seen(float x) {
    return KIND == ReduceKind::L2 ? x * x : x;
  }

  // NaN stays NaN.
  static __device__ __forceinline__ float of(float a, float b) {
    if constexpr (KIND == ReduceKind::MAX) return a > b || a != a ? a : b;
    if constexpr (KIND == ReduceKind::MIN) return a < b || a != a ? a : b;
    return a + b;
  }

  static __device__ __forceinline__ float result(float total, unsigned length) {
    if constexpr (KIND == ReduceKind::MEAN) return total / float(length);
    if constexpr (KIND == ReduceKind::L2) return sqrtf(total);
    return total;
  }
};

template <class T, ReduceKind KIND, int RANK, int ALONG, int LANES>
__global__ void __launch_bounds__(LANES == 1 ? 256 : LANES)
    reduce(const T* x, T* y, Walk<RANK, 2> rows, Walk<ALONG, 1> along) {
  follow_previous();
  using Both = Reduction<KIND>;
  const unsigned row = LANES == 1 ? thread_index() : blockIdx.x;
  if (row >= rows.steps) return;
  const auto at = places(rows, row);
  const T* const from = x + at.of[1];
  float total = Both::none();
  for (unsigned i = LANES == 1 ? 0 : threadIdx.x; i < along.steps; i += LANES)
    total = Both::of(total, Both::seen(from[places(along, i).of[0]]));
  if constexpr (LANES > 1) total = over_block<Both, LANES>(total);
  if (LANES == 1 || threadIdx.x == 0) y[at.of[0]] = T(Both::result(total, along.steps));
}
