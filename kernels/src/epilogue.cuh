// The end of a kernel, before it writes its sums: y = activation(sum + bias + residual).
//
// The activation is a kernel argument, not a template argument: a branch that all threads take
// alike costs little beside the sums, and there are many activations.
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

  __device__ __forceinline__ Vec<4> bias_of(int channel) const {
    Vec<4> result = splat<4>(0.0f);
    if (bias == nullptr) return result;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (channel + i < channels) result.at[i] = bias[channel + i];
    return result;
  }

  // Finishes and writes the sums of `channel` and the three after it; `channel` is one that exists.
  __device__ __forceinline__ void write(int pixel, int channel, Vec<4> sum, Vec<4> bias) const {
    T* const to = y + (pixel * y_pitch + channel);
    const bool whole = vectors && channel + 4 <= channels;
    Vec<4> addend = splat<4>(0.0f);
    if (residual != nullptr) {
      const T* const before = residual + (pixel * residual_pitch + channel);
      if (whole) {
        addend = load<4>(before);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (channel + i < channels) addend.at[i] = before[i];
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.at[i] = sum.at[i] + bias.at[i] + addend.at[i];
    sum = activated(sum);
    if (whole) {
      store<4>(to, sum);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (channel + i < channels) to[i] = T(sum.at[i]);
    }
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
        return activate<Activation::SIGMOID>(x, a, b);
      case Activation::HARD_SIGMOID:
        return activate<Activation::HARD_SIGMOID>(x, a, b);
      case Activation::HARD_SWISH:
        return activate<Activation::HARD_SWISH>(x, a, b);
      case Activation::SILU:
        return activate<Activation::SILU>(x, a, b);
      case Activation::TANH:
        return activate<Activation::TANH>(x, a, b);
      case Activation::ERF:
        return activate<Activation::ERF>(x, a, b);
      case Activation::GELU:
        return activate<Activation::GELU>(x, a, b);
      case Activation::GELU_TANH:
        return activate<Activation::GELU_TANH>(x, a, b);
      case Activation::ELU:
        return activate<Activation::ELU>(x, a, b);
      case Activation::SOFTPLUS:
        return activate_in_turn<Activation::SOFTPLUS>(x, a, b);
      case Activation::MISH:
        return activate_in_turn<Activation::MISH>(x, a, b);
      case Activation::SQRT:
        return activate<Activation::SQRT>(x, a, b);
    }
    return x;
  }
};

using Epilogue = EpilogueOf<float>;
