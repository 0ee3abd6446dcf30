// Bytes that stand for numbers: scale * (byte - zero point). In registers, a byte is held as a
// float, and a sum of thousands of products of bytes as an int.
//
// The PTX that multiplies bytes is here and not in ptx.cuh, because all kernels include ptx.cuh.
#pragma once

#include "common.cuh"

// Of numbers from 2^23 on floats have the whole ones, of which the lowest byte is the float's.
// Conversions by instructions of their own take longer to wait for than a sum with it.
constexpr float WHOLE = 8388608.0f;  // 2^23

struct Byte {
  unsigned char bits;

  Byte() = default;
  // Of a whole number: at least 0 and at most 255.
  __device__ __forceinline__ explicit Byte(float whole)
      : bits(__float_as_uint(clamp(whole, 0.0f, 255.0f) + WHOLE)) {}
  __device__ __forceinline__ operator float() const {
    return __uint_as_float(__float_as_uint(WHOLE) | bits) - WHOLE;
  }
};

template <int V>
using Bytes = Packed<Byte, V>;

// Within bounds that are whole numbers below 2^22, to the nearest, ties to even. x is not NaN.
__device__ __forceinline__ float whole_within(float x, float least, float most) {
  return fminf(fmaxf(x, least), most) + 1.5f * WHOLE - 1.5f * WHOLE;
}

#ifdef __CUDACC__

// c (16x8) += a (16x32, rows) * b (32x8, columns), a of unsigned and b of signed bytes, c of int,
// by the whole warp: exact, modulo 2^32. sm_75 does quarters of it, 8 rows by 16 columns of a.
__device__ __forceinline__ void mma_m16n8k32_u8s8(int (&c)[4], const unsigned (&a)[4],
                                                  const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
  for (int i = 0; i < 4; ++i)
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(c[i % 2 * 2]), "+r"(c[i % 2 * 2 + 1])
                 : "r"(a[i]), "r"(b[i / 2]));
#endif
}

#endif  // __CUDACC__
