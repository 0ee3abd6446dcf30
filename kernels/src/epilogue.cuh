// The end of a kernel, before it writes its sums: y = activation(sum + bias + residual).
//
// One instantiation serves ReLU, Clip and no activation: all three are min(max(x, a), b), where a
// and b may be infinite. It has no code for other activations and computes two vectors at once. A
// second instantiation serves all other activations: it chooses one at run time, vector by vector.
//   Rejected: an instantiation for each of the three. Of about 34 instructions for 4 outputs it
//   saves 16 without an activation and 8 with ReLU, and 2% to 6% of conv_direct's code. But it
//   doubles the kernels to compile, or more.
#pragma once

#include "common.cuh"
#include "half.cuh"
#include "ptx.cuh"

// kernels/operations/epilogue.py: the activations that a kernel has code for.
enum class Finish { CLAMP, ANY };

// Where 4 neighbouring channels of a pixel go. Channels from the end on may belong to a neighbour:
// they are neither used nor written. T is what y and the residual consist of.
template <class T, Finish FINISH>
struct EpilogueOf {
  const float* bias;  // null where there is none; from here on each by channel
  const T* residual;  // null where there is none; may be y
  T* y;
  int residual_pitch, y_pitch;
  int end;
  bool vectors;  // whether every pixel's first channel lies at a vector, in y and in the residual
  Activation activation;
  float a, b;

  // Finishes and writes COUNT times the sums of `channel`, which exists, and of the three after it:
  // sum_of(i) at pixel_of(i), which is negative where there is nothing to write.
  template <int COUNT, class PixelOf, class SumOf>
  __device__ __forceinline__ void write(int channel, const PixelOf& pixel_of,
                                        const SumOf& sum_of) const {
    const Vec<4> bias = bias_of(channel);
    const bool whole = vectors && channel + 4 <= end;
    if (FINISH == Finish::CLAMP && whole) {
      if (residual == nullptr)
        write_whole<false, COUNT>(channel, bias, pixel_of, sum_of);
      else
        write_whole<true, COUNT>(channel, bias, pixel_of, sum_of);
      return;
    }
#pragma unroll 1
    for (int i = 0; i < COUNT; ++i) {
      const int pixel = pixel_of(i);
      if (pixel >= 0) write_any(pixel, channel, sum_of(i), bias, FINISH == Finish::ANY && whole);
    }
  }

 private:
  __device__ __forceinline__ Vec<4> bias_of(int channel) const {
    Vec<4> result = splat<4>(0.0f);
    if (bias == nullptr) return result;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (channel + i < end) result.at[i] = bias[channel + i];
    return result;
  }

  template <bool RESIDUAL, int COUNT, class PixelOf, class SumOf>
  __device__ __forceinline__ void write_whole(int channel, const Vec<4>& bias,
                                              const PixelOf& pixel_of, const SumOf& sum_of) const {
    // With a residual one by one: each waits for its own load, behind a branch, even in pairs.
#pragma unroll(RESIDUAL ? 1 : 2)
    for (int i = 0; i < COUNT; ++i) {
      const int pixel = pixel_of(i);
      if (pixel < 0) continue;
      Vec<4> sum = plus(sum_of(i), bias);
      if constexpr (RESIDUAL)
        sum = plus(sum, load<4>(residual + (pixel * residual_pitch + channel)));
      store<4>(y + (pixel * y_pitch + channel), activated(sum));
    }
  }

  __device__ __forceinline__ void write_any(int pixel, int channel, Vec<4> sum, const Vec<4>& bias,
                                            bool whole) const {
    T* const to = y + (pixel * y_pitch + channel);
    sum = plus(sum, bias);
    if (kept(int(residual != nullptr))) {  // one loop for both cases
      const T* const before = residual + (pixel * residual_pitch + channel);
      if (whole) {
        sum = plus(sum, load<4>(before));
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (channel + i < end) sum.at[i] += float(before[i]);
      }
    }
    sum = activated(sum);
    if (whole) {
      store<4>(to, sum);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (channel + i < end) to[i] = T(sum.at[i]);
    }
  }

  static __device__ __forceinline__ Vec<4> plus(Vec<4> left, const Vec<4>& right) {
#pragma unroll
    for (int i = 0; i < 4; ++i) left.at[i] += right.at[i];
    return left;
  }

  __device__ __forceinline__ Vec<4> activated(Vec<4> x) const {
    if constexpr (FINISH == Finish::CLAMP) return activate<Activation::CLIP>(x, a, b);
    switch (activation) {
      case Activation::NONE:
      case Activation::RELU:
      case Activation::CLIP:
        break;  // Finish::CLAMP has them
      case Activation::LEAKY_RELU:
        return activate<Activation::LEAKY_RELU>(x, a, b);
      case Activation::SIGMOID:
        return activate_in_turn<Activation::SIGMOID>(x, a, b);
      case Activation::HARD_SIGMOID:
        return activate<Activation::HARD_SIGMOID>(x, a, b);
      case Activation::HARD_SWISH:
        return activate<Activation::HARD_SWISH>(x, a, b);
      case Activation::SILU:
        return activate<Activation::SILU>(x, a, b);
      case Activation::TANH:
        return activate_in_turn<Activation::TANH>(x, a, b);
      case Activation::ERF:
        return activate_in_turn<Activation::ERF>(x, a, b);
      case Activation::GELU:
        return activate_in_turn<Activation::GELU>(x, a, b);
      case Activation::GELU_TANH:
        return activate_in_turn<Activation::GELU_TANH>(x, a, b);
      case Activation::ELU:
        return activate_in_turn<Activation::ELU>(x, a, b);
      case Activation::SOFTPLUS:
        return activate_in_turn<Activation::SOFTPLUS>(x, a, b);
      case Activation::MISH:
        return activate_in_turn<Activation::MISH>(x, a, b);
      case Activation::SQRT:
        return activate_in_turn<Activation::SQRT>(x, a, b);
    }
    return x;
  }
};

// Of a launch, whose `Sizes` every kernel has in its own form. Channels are counted over all
// groups; this one's end where those of the next begin.
template <Finish FINISH, class Sizes, class T>
__device__ __forceinline__ EpilogueOf<T, FINISH> epilogue_of(const Sizes& sizes, const float* bias,
                                                             const T* residual, T* y,
                                                             int activation, float a, float b,
                                                             int group = 0) {
  return {bias,
          residual,
          y,
          sizes.residual_pitch,
          sizes.y_pitch,
          (group + 1) * sizes.filters,
          sizes.y_vectors != 0,
          Activation(activation),
          a,
          b};
}
