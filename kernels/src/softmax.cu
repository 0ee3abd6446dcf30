// Softmax, or its logarithm, along one axis.
//
//   y = exp(x - m) / sum of exp(x - m), or x - m - log(sum of exp(x - m)), m the largest x
//
// Algorithm: a block of THREADS computes one row in three passes: largest, sum, result. The second
//   and third pass read the row from the caches. The order of the sums is fixed: along each
//   thread's elements, then as in block.cuh.
// Layouts: any strides; along the channels of NHWC, a row's own stride is 1.
// Launch: one block per row.
#include "block.cuh"
#include "common.cuh"
#include "half.cuh"

template <class X, class Y, bool LOG, int RANK, int THREADS>
__global__ void __launch_bounds__(THREADS)
    softmax(const X* x, Y* y, Walk<RANK, 2> rows, int length, int x_stride, int y_stride) {
  follow_previous();
  const auto at = places(rows, blockIdx.x);
  const X* const from = x + at.of[1];
  Y* const to = y + at.of[0];

  const auto [largest, sum] = exponentials<THREADS>(from, length, x_stride);
  const float log_sum = LOG ? logf(sum) : 0.0f;
  for (int i = threadIdx.x; i < length; i += THREADS) {
    const float shifted = from[i * x_stride] - largest;
    to[i * y_stride] = Y(LOG ? shifted - log_sum : expf(shifted) / sum);
  }
}
