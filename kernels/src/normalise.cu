// Normalisation over any axes: of layers, of groups of channels, of instances.
//
//   y = activation((x - mean) / sqrt(variance + epsilon) * scale + shift)
//
// Algorithm: a block of THREADS computes one row, which is the elements along the normalised axes,
//   in three passes: mean, variance, result. The second and third pass read the row from the
//   caches. The variance is computed from the differences to the mean, so it stays precise if the
//   mean is large. The order of the sums is fixed, as in block.cuh.
// Layouts: any strides. `rows` walks over the rows' first elements, and `along` over the elements
//   of a row. scale and shift repeat along the axes that they lack.
// Launch: one block per row.
#include "block.cuh"
#include "common.cuh"
#include "half.cuh"

template <class T, Activation ACTIVATION, int RANK, int ALONG, int THREADS>
__global__ void __launch_bounds__(THREADS)
    normalise(const T* x, const float* __restrict__ scale, const float* __restrict__ shift, T* y,
              Walk<RANK, 4> rows, Walk<ALONG, 4> along, float epsilon, float a, float b) {
  follow_previous();
  const auto row = places(rows, blockIdx.x);
  const T* const from = x + row.of[1];
  const float length = float(along.steps);

  float sum = 0.0f;
  for (unsigned i = threadIdx.x; i < along.steps; i += THREADS) sum += from[places(along, i).of[1]];
  const float mean = over_block<Sum, THREADS>(sum) / length;

  float squares = 0.0f;
  for (unsigned i = threadIdx.x; i < along.steps; i += THREADS) {
    const float apart = from[places(along, i).of[1]] - mean;
    squares = fmaf(apart, apart, squares);
  }
  const float variance = over_block<Sum, THREADS>(squares) / length;

  const float by = 1.0f / sqrtf(variance + epsilon);
  for (unsigned i = threadIdx.x; i < along.steps; i += THREADS) {
    const auto at = places(along, i);
    const float times = scale[row.of[2] + at.of[2]], plus = shift[row.of[3] + at.of[3]];
    const float result = fmaf((from[at.of[1]] - mean) * by, times, plus);
    y[row.of[0] + at.of[0]] = T(activate<ACTIVATION>(result, a, b));
  }
}
