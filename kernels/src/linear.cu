// Fully connected layers for few rows: y = activation(x · weightᵀ + bias).
//
// Algorithm: a block multiplies OUTPUTS rows of the weights by ROWS rows of x. Its threads divide
//   the channels: each loads 4 neighbouring channels at a time. The weights, which are most of the
//   data, are read once for ROWS rows, with OUTPUTS loads per thread in flight. Every thread sums
//   ROWS × OUTPUTS products in registers. The lanes of a warp then exchange halves of their sums
//   until each lane has a share of the warp's sums. One thread per 4 outputs adds the warps' sums.
//   The order of all sums is fixed. Every block reads x again, from the caches; with ROWS = OUTPUTS
//   it reads as much of x as of the weights.
//   For 8 rows, two blocks of 256 threads per multiprocessor spilled 160 bytes per thread on sm_80;
//   three blocks of 128 threads spill none.
// Layouts: x and y are rows with any pitch. weight is K × C in x's type, with rows padded with
//   zeros to a multiple of 4 channels.
// Launch: (ceil(K / OUTPUTS), ceil(rows / ROWS)) blocks of one to MAX_WARPS warps; where many sums
//   need many registers, there are fewer warps.
#include "channels.cuh"
#include "epilogue.cuh"

// The lanes of a warp add their sums, COUNT each. In each step a lane keeps one half of its sums,
// adds its partner's half to it, and leaves the other half to the partner; a single sum both keep.
// At the end lane l has the sums from l * COUNT / 32 on.
template <int COUNT, int APART>
__device__ __forceinline__ void exchange(float* sums, int lane) {
  constexpr int KEPT = COUNT > 1 ? COUNT / 2 : 1;
  const bool upper = COUNT > 1 && lane & APART;
#pragma unroll
  for (int i = 0; i < KEPT; ++i) {
    const float low = sums[i], high = sums[COUNT > 1 ? i + KEPT : i];
    sums[i] = (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, APART);
  }
  if constexpr (APART > 1) exchange<KEPT, APART / 2>(sums, lane);
}

template <class X, class Y, int ROWS, int OUTPUTS, int MAX_WARPS, Finish FINISH>
__global__ void __launch_bounds__(32 * MAX_WARPS)
    linear(const X* x, const X* __restrict__ weight, const float* bias, Y* y, int rows,
           int channels, int outputs, int x_pitch, int y_pitch, int x_vectors, int y_vectors,
           int activation, float a, float b) {
  let_next_begin();
  constexpr int SUMS = ROWS * OUTPUTS;
  static_assert(OUTPUTS % 4 == 0, "outputs are written 4 at a time");
  __shared__ __align__(16) float of_warp[MAX_WARPS][SUMS];

  const int first_output = blockIdx.x * OUTPUTS, first_row = blockIdx.y * ROWS;
  const int padded = (channels + 3) / 4 * 4;
  prefetch_weights(weight, size_t(outputs) * padded);
  wait_for_previous();
  float sums[SUMS] = {};
#pragma unroll(SUMS >= 16 ? 1 : 2)
  for (int channel = threadIdx.x * 4; channel < channels; channel += blockDim.x * 4) {
    Vec<4> weights[OUTPUTS];
#pragma unroll
    for (int output = 0; output < OUTPUTS; ++output)  // those beyond the last repeat it, unused
      weights[output] =
          load<4>(weight + size_t(min(first_output + output, outputs - 1)) * padded + channel);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      const X* const from = x + min(first_row + row, rows - 1) * x_pitch + channel;
      const Vec<4> numbers = load_channels(from, channels - channel, x_vectors);
#pragma unroll
      for (int output = 0; output < OUTPUTS; ++output)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sums[row * OUTPUTS + output] =
              fmaf(numbers.at[i], weights[output].at[i], sums[row * OUTPUTS + output]);
    }
  }

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  exchange<SUMS, 16>(sums, lane);
  constexpr int KEPT = SUMS > 32 ? SUMS / 32 : 1;
  constexpr int ALIKE = SUMS > 32 ? 1 : 32 / SUMS;  // lanes that have the same
  if (lane % ALIKE == 0) {
#pragma unroll
    for (int i = 0; i < KEPT; ++i) of_warp[warp][lane / ALIKE * KEPT + i] = sums[i];
  }
  __syncthreads();

  const int first = threadIdx.x * 4;
  const int row = first_row + first / OUTPUTS, output = first_output + first % OUTPUTS;
  if (first >= SUMS || row >= rows || output >= outputs) return;
  Vec<4> sum = load<4>(&of_warp[0][first]);
  for (int other = 1; other < warps; ++other) {
    const Vec<4> part = load<4>(&of_warp[other][first]);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.at[i] += part.at[i];
  }
  const EpilogueOf<Y, FINISH> epilogue{
      bias, nullptr, y, 0, y_pitch, outputs, y_vectors != 0, Activation(activation), a, b};
  epilogue.template write<1>(output, [&](int) { return row; }, [&](int) { return sum; });
}
