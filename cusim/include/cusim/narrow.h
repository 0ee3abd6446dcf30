// Floats of 16 bits. Arithmetic is in float, rounded after every operation. The product of two such
// numbers fits a float exactly. A sum with it is rounded twice, to float and to 16 bits; except for
// ties this equals a device's single rounding.
#pragma once
#include <cusim/arithmetic.h>
#include <cusim/vector_types.h>

namespace cusim {

// 1 sign, 5 exponent, 10 mantissa bits.
struct HalfFormat {
  static uint16_t round(float x) { return bits<uint16_t>(_Float16(x)); }
  static float widen(uint16_t word) { return float(bits<_Float16>(word)); }
};

// The upper half of a float.
struct Bfloat16Format {
  static uint16_t round(float x) {
    const unsigned word = bits<unsigned>(x);
    if (x != x) return 0x7fff;
    return uint16_t((word + 0x7fffu + (word >> 16 & 1)) >> 16);  // to nearest, ties to even
  }
  static float widen(uint16_t word) { return bits<float>(unsigned(word) << 16); }
};

template <class Format>
struct Narrow {
  uint16_t word;

  Narrow() = default;
  Narrow(float x) : word(Format::round(x)) {}
  Narrow(double x) : Narrow(float(x)) {}
  Narrow(int x) : Narrow(float(x)) {}
  operator float() const { return Format::widen(word); }

  friend Narrow operator+(Narrow a, Narrow b) { return float(a) + float(b); }
  friend Narrow operator-(Narrow a, Narrow b) { return float(a) - float(b); }
  friend Narrow operator*(Narrow a, Narrow b) { return float(a) * float(b); }
  friend Narrow operator/(Narrow a, Narrow b) { return float(a) / float(b); }
  friend Narrow operator-(Narrow a) { return -float(a); }
  friend Narrow& operator+=(Narrow& a, Narrow b) { return a = a + b; }
  friend Narrow& operator-=(Narrow& a, Narrow b) { return a = a - b; }
  friend Narrow& operator*=(Narrow& a, Narrow b) { return a = a * b; }
  friend bool operator==(Narrow a, Narrow b) { return float(a) == float(b); }
  friend bool operator!=(Narrow a, Narrow b) { return float(a) != float(b); }
  friend bool operator<(Narrow a, Narrow b) { return float(a) < float(b); }
  friend bool operator<=(Narrow a, Narrow b) { return float(a) <= float(b); }
  friend bool operator>(Narrow a, Narrow b) { return float(a) > float(b); }
  friend bool operator>=(Narrow a, Narrow b) { return float(a) >= float(b); }
};

template <class Format>
struct alignas(4) Narrow2 {
  Narrow<Format> x, y;
};

template <class Format>
Narrow<Format> from_bits(unsigned short word) {
  Narrow<Format> number;
  number.word = word;
  return number;
}

}  // namespace cusim

#define CUSIM_ELEMENTWISE(name, result)                                 \
  template <class F>                                                    \
  cusim::Narrow<F> name(cusim::Narrow<F> a, cusim::Narrow<F> b) {       \
    return result;                                                      \
  }                                                                     \
  template <class F>                                                    \
  cusim::Narrow2<F> name##2(cusim::Narrow2<F> a, cusim::Narrow2<F> b) { \
    return {name(a.x, b.x), name(a.y, b.y)};                            \
  }
CUSIM_ELEMENTWISE(__hadd, a + b)
CUSIM_ELEMENTWISE(__hsub, a - b)
CUSIM_ELEMENTWISE(__hmul, a* b)
CUSIM_ELEMENTWISE(__hmax, fmaxf(a, b))
CUSIM_ELEMENTWISE(__hmin, fminf(a, b))
#undef CUSIM_ELEMENTWISE

template <class F>
cusim::Narrow<F> __hdiv(cusim::Narrow<F> a, cusim::Narrow<F> b) {
  return a / b;
}
template <class F>
cusim::Narrow<F> __hfma(cusim::Narrow<F> a, cusim::Narrow<F> b, cusim::Narrow<F> c) {
  return fmaf(a, b, c);
}
template <class F>
cusim::Narrow2<F> __hfma2(cusim::Narrow2<F> a, cusim::Narrow2<F> b, cusim::Narrow2<F> c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
template <class F>
float __low2float(cusim::Narrow2<F> pair) {
  return pair.x;
}
template <class F>
float __high2float(cusim::Narrow2<F> pair) {
  return pair.y;
}

// The functions whose names have the type in them.
#define CUSIM_NARROW(type, pair, name, Format)                                                    \
  using type = cusim::Narrow<cusim::Format>;                                                      \
  using pair = cusim::Narrow2<cusim::Format>;                                                     \
  inline type __float2##name(float x) { return x; }                                               \
  inline type __float2##name##_rn(float x) { return x; }                                          \
  inline float __##name##2float(type x) { return x; }                                             \
  inline unsigned short __##name##_as_ushort(type x) { return x.word; }                           \
  inline type __ushort_as_##name(unsigned short x) { return cusim::from_bits<cusim::Format>(x); } \
  inline pair __floats2##name##2_rn(float x, float y) { return {x, y}; }                          \
  inline pair __float22##name##2_rn(float2 a) { return {a.x, a.y}; }                              \
  inline float2 __##name##22float2(pair a) { return {a.x, a.y}; }                                 \
  inline pair __##name##2##name##2(type x) { return {x, x}; }                                     \
  inline pair __halves2##name##2(type x, type y) { return {x, y}; }                               \
  inline type __low2##name(pair a) { return a.x; }                                                \
  inline type __high2##name(pair a) { return a.y; }
