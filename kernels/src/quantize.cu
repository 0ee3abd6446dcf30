// The operations between convolutions of bytes: quantization, its inverse, sums, averages.
//
// `quantize`, `requantize`, `dequantize`, `add`: each thread computes one step of a walk
//   (common.cuh), as in elementwise.cu. A byte stands for scale * (byte - zero). Products and sums
//   are rounded one by one, as NumPy rounds them. `add` computes the same as integer_gemm.cu with a
//   residual, and `requantize` the same bits as `dequantize` followed by `quantize`.
//   Launch: one dimension, one thread per step, the last block partial.
// `global_average`: a block computes 32 channels of one image. Each of its ROWS warps sums every
//   ROWS-th pixel; the sums are whole numbers, which are exact in any order.
//   Launch: (ceil(C / 32), N) blocks of 32 x ROWS threads.
#include "bytes.cuh"
#include "half.cuh"

template <class X, int RANK, int V>
__global__ void __launch_bounds__(256)
    quantize(const X* x, Byte* y, Walk<RANK, 2> walk, float scale, int zero) {
  follow_previous();
  const unsigned step = thread_index();
  if (step >= walk.steps) return;
  const auto at = places(walk, step);
  Vec<V> value = load_step<V>(x, walk, at, 1);
#pragma unroll
  for (int i = 0; i < V; ++i) value.at[i] = rintf(value.at[i] / scale) + float(zero);
  store<V>(y + at.of[0], value);
}

template <int RANK, int V>
__global__ void __launch_bounds__(256)
    requantize(const Byte* x, Byte* y, Walk<RANK, 2> walk, float x_scale, int x_zero, float scale,
               int zero) {
  follow_previous();
  const unsigned step = thread_index();
  if (step >= walk.steps) return;
  const auto at = places(walk, step);
  Vec<V> value = load_step<V>(x, walk, at, 1);
#pragma unroll
  for (int i = 0; i < V; ++i)
    value.at[i] = rintf(__fmul_rn(value.at[i] - float(x_zero), x_scale) / scale) + float(zero);
  store<V>(y + at.of[0], value);
}

template <class Y, int RANK, int V>
__global__ void __launch_bounds__(256)
    dequantize(const Byte* x, Y* y, Walk<RANK, 2> walk, float scale, int zero) {
  follow_previous();
  const unsigned step = thread_index();
  if (step >= walk.steps) return;
  const auto at = places(walk, step);
  Vec<V> value = load_step<V>(x, walk, at, 1);
#pragma unroll
  for (int i = 0; i < V; ++i) value.at[i] = (value.at[i] - float(zero)) * scale;
  store<V>(y + at.of[0], value);
}

// y = left + right, within bounds; steps are in units of y's scale.
template <int RANK, int V>
__global__ void __launch_bounds__(256)
    add(const Byte* left, const Byte* right, Byte* y, Walk<RANK, 3> walk, int left_zero,
        float left_step, int right_zero, float right_step, int least, int most, int y_zero) {
  follow_previous();
  const unsigned step = thread_index();
  if (step >= walk.steps) return;
  const auto at = places(walk, step);
  Vec<V> value = load_step<V>(left, walk, at, 1);
  const Vec<V> other = load_step<V>(right, walk, at, 2);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float sum = __fadd_rn(__fmul_rn(value.at[i] - float(left_zero), left_step),
                                __fmul_rn(other.at[i] - float(right_zero), right_step));
    value.at[i] = whole_within(sum, least, most) + float(y_zero);
  }
  store<V>(y + at.of[0], value);
}

template <int ROWS>
__global__ void __launch_bounds__(32 * ROWS)
    global_average(const Byte* x, Byte* y, int channels, int pixels, int x_pitch, int y_pitch,
                   int x_zero, float step, int y_zero) {
  follow_previous();
  __shared__ int partial[ROWS][32];
  const int channel = blockIdx.x * 32 + threadIdx.x;
  const int row = threadIdx.y;
  const Byte* const image = x + blockIdx.y * pixels * x_pitch;
  int sum = 0;
  if (channel < channels) {
    for (int pixel = row; pixel < pixels; pixel += ROWS)
      sum += image[pixel * x_pitch + channel].bits - x_zero;
  }
  partial[row][threadIdx.x] = sum;
  __syncthreads();
  if (row == 0 && channel < channels) {
#pragma unroll
    for (int other = 1; other < ROWS; ++other) sum += partial[other][threadIdx.x];
    y[blockIdx.y * y_pitch + channel] = Byte(rintf(__fmul_rn(float(sum), step)) + float(y_zero));
  }
}
