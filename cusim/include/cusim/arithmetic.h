// CUDA's arithmetic that C++ lacks. The fast functions compute the same as the exact functions;
// only a GPU can show how much its fast functions differ.
#pragma once
#include <cusim/runtime.h>
#include <math.h>

#include <cstring>

// glibc declares these names itself, and defines none.
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf

namespace cusim {

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace cusim

inline unsigned __float_as_uint(float x) { return cusim::bits<unsigned>(x); }
inline int __float_as_int(float x) { return cusim::bits<int>(x); }
inline float __uint_as_float(unsigned x) { return cusim::bits<float>(x); }
inline float __int_as_float(int x) { return cusim::bits<float>(x); }
inline long long __double_as_longlong(double x) { return cusim::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return cusim::bits<double>(x); }

namespace cusim {

// A result that the compiler does not look through: it would fuse a product with the sum it is for.
inline float rounded(float x) {
  asm("" : "+x"(x));
  return x;
}

}  // namespace cusim

inline float __fadd_rn(float a, float b) { return cusim::rounded(a + b); }
inline float __fsub_rn(float a, float b) { return cusim::rounded(a - b); }
inline float __fmul_rn(float a, float b) { return cusim::rounded(a * b); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x > 1.0f ? 1.0f : x > 0.0f ? x : 0.0f; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float normcdff(float x) { return 0.5f * erfcf(-0.70710678118654752f * x); }

// Conversions saturate on the device, and NaN becomes 0, where C++ leaves both undefined.
inline int __float2int_rn(float x) {
  return x != x ? 0 : x >= 0x1p31f ? 0x7fffffff : x < -0x1p31f ? -0x7fffffff - 1 : int(rintf(x));
}
inline int __float2int_rd(float x) { return __float2int_rn(floorf(x)); }
inline int __float2int_ru(float x) { return __float2int_rn(ceilf(x)); }
inline int __float2int_rz(float x) { return __float2int_rn(truncf(x)); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }

inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((uint64_t(high) << 32 | low) << (shift & 31)) >> 32);
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
inline int __mulhi(int a, int b) { return int((int64_t(a) * b) >> 32); }

#define CUSIM_MIN_MAX(type)                                 \
  inline type min(type a, type b) { return b < a ? b : a; } \
  inline type max(type a, type b) { return a < b ? b : a; }
CUSIM_MIN_MAX(int)
CUSIM_MIN_MAX(unsigned)
CUSIM_MIN_MAX(long)
CUSIM_MIN_MAX(unsigned long)
CUSIM_MIN_MAX(long long)
CUSIM_MIN_MAX(unsigned long long)
#undef CUSIM_MIN_MAX
inline unsigned min(int a, unsigned b) { return min(unsigned(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, unsigned(b)); }
inline unsigned max(int a, unsigned b) { return max(unsigned(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, unsigned(b)); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline void __nanosleep(unsigned) {}  // time does not pass

// Cache hints. Only __ldcg's matters to what is loaded: the L1 cache may hold what has changed.
#define CUSIM_LOAD(name)         \
  template <class T>             \
  inline T name(const T* from) { \
    return *from;                \
  }
CUSIM_LOAD(__ldg)
CUSIM_LOAD(__ldca)
CUSIM_LOAD(__ldcs)
CUSIM_LOAD(__ldlu)
#undef CUSIM_LOAD
template <class T>
inline T __ldcg(const T* from) {
  cusim::refresh(from, sizeof(T));
  return *from;
}
#define CUSIM_STORE(name)            \
  template <class T>                 \
  inline void name(T* to, T value) { \
    *to = value;                     \
  }
CUSIM_STORE(__stwb)
CUSIM_STORE(__stcg)
CUSIM_STORE(__stcs)
CUSIM_STORE(__stwt)
#undef CUSIM_STORE
