// The end of a kernel, before it writes its sums: y = activation(sum + bias + residual).
//
// The activation is a kernel argument, not a template argument: there are many. A thread branches
// once for all that it writes. The common cases have code of their own, two vectors at once; all
// others share code that takes one vector after another.
#pragma once

#include "common.cuh"
#include "half.cuh"

// Where 4 neighbouring channels of a pixel go. Channels beyond the last may belong to a neighbour:
// they are neither used nor written. T is what y and the residual consist of.
template <class T>
struct EpilogueOf {
  const float* bias;  // null where there is none; from here on each by channel
  const T* residual;  // null where there is none; may be y
  T* y;
  int residual_pitch, y_pitch;
  int channels;
  bool vectors;  // whether every pixel's first channel lies at a vector, in y and in the residual
  Activation activation;
  float a, b;

  // Finishes and writes COUNT times the sums of `channel`, which exists, and of the three after it:
  // sum_of(i) at pixel_of(i), which is negative where there is nothing to write.
  template <int COUNT, class PixelOf, class SumOf>
  __device__ __forceinline__ void write(int channel, const PixelOf& pixel_of,
                                        const SumOf& sum_of) const {
    const Vec<4> bias = bias_of(channel);
    if (vectors && channel + 4 <= channels) {
      // Networks add a residual before a ReLU or nothing, hardly before other activations.
      if (residual == nullptr) {
        switch (activation) {
          case Activation::NONE:
            return write_whole<Activation::NONE, false, COUNT>(channel, bias, pixel_of, sum_of);
          case Activation::RELU:
            return write_whole<Activation::RELU, false, COUNT>(channel, bias, pixel_of, sum_of);
          case Activation::CLIP:
            return write_whole<Activation::CLIP, false, COUNT>(channel, bias, pixel_of, sum_of);
          case Activation::SILU:
            return write_whole<Activation::SILU, false, COUNT>(channel, bias, pixel_of, sum_of);
          default:
            break;
        }
      } else if (activation == Activation::NONE) {
        return write_whole<Activation::NONE, true, COUNT>(channel, bias, pixel_of, sum_of);
      } else if (activation == Activation::RELU) {
        return write_whole<Activation::RELU, true, COUNT>(channel, bias, pixel_of, sum_of);
      }
    }
#pragma unroll 1
    for (int i = 0; i < COUNT; ++i) {
      const int pixel = pixel_of(i);
      if (pixel >= 0) write_any(pixel, channel, sum_of(i), bias);
    }
  }

 private:
  __device__ __forceinline__ Vec<4> bias_of(int channel) const {
    Vec<4> result = splat<4>(0.0f);
    if (bias == nullptr) return result;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (channel + i < channels) result.at[i] = bias[channel + i];
    return result;
  }

  template <Activation KIND, bool RESIDUAL, int COUNT, class PixelOf, class SumOf>
  __device__ __forceinline__ void write_whole(int channel, const Vec<4>& bias,
                                              const PixelOf& pixel_of, const SumOf& sum_of) const {
    T* const to = y + channel;
    const T* const before = residual + channel;
    constexpr int AT_ONCE = KIND == Activation::SILU ? 1 : 2;  // an exponential is long enough
#pragma unroll(AT_ONCE)
    for (int i = 0; i < COUNT; ++i) {
      const int pixel = pixel_of(i);
      if (pixel < 0) continue;
      Vec<4> sum = plus(sum_of(i), bias);
      if constexpr (RESIDUAL) sum = plus(sum, load<4>(before + pixel * residual_pitch));
      store<4>(to + pixel * y_pitch, activate<KIND>(sum, a, b));
    }
  }

  __device__ __forceinline__ void write_any(int pixel, int channel, Vec<4> sum,
                                            const Vec<4>& bias) const {
    T* const to = y + (pixel * y_pitch + channel);
    const bool whole = vectors && channel + 4 <= channels;
    sum = plus(sum, bias);
    if (residual != nullptr) {
      const T* const before = residual + (pixel * residual_pitch + channel);
      if (whole) {
        sum = plus(sum, load<4>(before));
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (channel + i < channels) sum.at[i] += float(before[i]);
      }
    }
    sum = activated(sum);
    if (whole) {
      store<4>(to, sum);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (channel + i < channels) to[i] = T(sum.at[i]);
    }
  }

  static __device__ __forceinline__ Vec<4> plus(Vec<4> left, const Vec<4>& right) {
#pragma unroll
    for (int i = 0; i < 4; ++i) left.at[i] += right.at[i];
    return left;
  }

  __device__ __forceinline__ Vec<4> activated(Vec<4> x) const {
    switch (activation) {
      case Activation::NONE:
        return x;
      case Activation::RELU:
        return activate<Activation::RELU>(x, a, b);
      case Activation::CLIP:
        return activate<Activation::CLIP>(x, a, b);
      case Activation::LEAKY_RELU:
        return activate<Activation::LEAKY_RELU>(x, a, b);
      case Activation::SIGMOID:
        return activate_in_turn<Activation::SIGMOID>(x, a, b);
      case Activation::HARD_SIGMOID:
        return activate<Activation::HARD_SIGMOID>(x, a, b);
      case Activation::HARD_SWISH:
        return activate<Activation::HARD_SWISH>(x, a, b);
      case Activation::SILU:
        return activate_in_turn<Activation::SILU>(x, a, b);
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

// Of a launch, whose `Sizes` every kernel has in its own form; in groups, from the group's first
// filter on.
template <class Sizes, class T>
__device__ __forceinline__ EpilogueOf<T> epilogue_of(const Sizes& sizes, const float* bias,
                                                     const T* residual, T* y, int activation,
                                                     float a, float b, int first_filter = 0) {
  return {bias == nullptr ? nullptr : bias + first_filter,
          residual == nullptr ? nullptr : residual + first_filter,
          y + first_filter,
          sizes.residual_pitch,
          sizes.y_pitch,
          sizes.filters,
          sizes.y_vectors != 0,
          Activation(activation),
          a,
          b};
}

using Epilogue = EpilogueOf<float>;
