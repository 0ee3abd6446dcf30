// The arithmetic of tensor cores, for mma.sync and wgmma.
#pragma once
#include <cfenv>
#include <cstdint>
#include <cstring>

namespace cusim {

inline float from_bits(unsigned word) {
  float number;
  memcpy(&number, &word, sizeof number);
  return number;
}

inline float half_to_float(unsigned word) {
  const auto bits = uint16_t(word);
  _Float16 number;
  memcpy(&number, &bits, sizeof number);
  return float(number);
}

inline float bfloat16_to_float(unsigned word) { return from_bits(word << 16); }

// A device adds several products to c at once and truncates the sum (Fasi et al. 2021, "Numerical
// behavior of NVIDIA tensor cores"). Here 4 products, whose sum is exact before it is truncated; a
// device keeps a few bits more than a float has.
constexpr int at_once = 4;

class Truncating {
 public:
  Truncating() { fesetround(FE_TOWARDZERO); }
  ~Truncating() { fesetround(FE_TONEAREST); }
};

// As many as an AVX register has doubles: g++ makes scalar code of longer vectors.
using Floats = float __attribute__((vector_size(4 * sizeof(float))));
using Doubles = double __attribute__((vector_size(4 * sizeof(double))));

template <int K>
struct Tiles {
  float a[16][K];
  Floats b[2][K], c[2][16];  // by columns 0 to 3 and 4 to 7

  void set_b(int k, int column, float value) { b[column / 4][k][column % 4] = value; }

  // noipa: the compiler must not move arithmetic to where rounding is the host's.
  __attribute__((noipa)) void multiply() {
    for (int half = 0; half < 2; half++) {
      Doubles rows[K];
      for (int k = 0; k < K; k++) rows[k] = __builtin_convertvector(b[half][k], Doubles);
      for (int row = 0; row < 16; row++) {
        for (int first = 0; first < K; first += at_once) {
          Doubles sums = __builtin_convertvector(c[half][row], Doubles);
          for (int k = first; k < first + at_once; k++) sums += double(a[row][k]) * rows[k];
          c[half][row] = __builtin_convertvector(sums, Floats);
        }
      }
    }
  }
};

}  // namespace cusim
