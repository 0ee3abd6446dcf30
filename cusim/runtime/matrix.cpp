// ldmatrix and mma.sync, operations of a whole warp. The last lane to arrive computes the result
// for all lanes, directly in their variables; the other lanes wait, so their stacks do not change.
//
// PTX ISA, 9.7.15.5 "Matrix multiply-accumulate operation using mma instruction": in lane l of the
// warp g = l / 4 and t = l % 4.
#include <cusim/runtime.h>

#include "accesses.h"
#include "block.h"
#include "fault.h"
#include "launch.h"
#include "sanitizers.h"
#include "tiles.h"

namespace cusim {

namespace {

struct Load {
  unsigned* matrices;
  int count;
  bool transposed;
  const void* row;
};

void load_together(const uint64_t (&values)[32]) {
  const auto of = [&](int lane) { return reinterpret_cast<const Load*>(values[lane]); };
  for (int lane = 0; lane < 32; lane++) {
    const Load& load = *of(lane);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < load.count; i++) {
      const auto row = [&](int r) { return static_cast<const uint16_t*>(of(8 * i + r)->row); };
      const unsigned low = load.transposed ? row(2 * t)[g] : row(g)[2 * t];
      const unsigned high = load.transposed ? row(2 * t + 1)[g] : row(g)[2 * t + 1];
      load.matrices[i] = low | high << 16;
    }
  }
}

struct Product {
  void* c;
  const unsigned* a;
  const unsigned* b;
};

// c0 c1: row g, columns 2t and 2t + 1; c2 c3: row g + 8.
template <int K, class Fill>
void multiply_together(const uint64_t (&values)[32], Fill fill_operands) {
  Tiles<K> tiles;
  for (int lane = 0; lane < 32; lane++) {
    const Product& product = *reinterpret_cast<const Product*>(values[lane]);
    const int g = lane / 4, t = lane % 4;
    fill_operands(tiles, product, g, t);
    const auto* c = static_cast<const float*>(product.c);
    for (int i = 0; i < 4; i++) tiles.c[t / 2][g + i / 2 * 8][2 * t % 4 + i % 2] = c[i];
  }
  {
    const Truncating sums;
    tiles.multiply();
  }
  for (int lane = 0; lane < 32; lane++) {
    const Product& product = *reinterpret_cast<const Product*>(values[lane]);
    const int g = lane / 4, t = lane % 4;
    auto* c = static_cast<float*>(product.c);
    for (int i = 0; i < 4; i++) c[i] = tiles.c[t / 2][g + i / 2 * 8][2 * t % 4 + i % 2];
  }
}

// a0: row g, column t; a1: row g + 8; a2 a3: column t + 4. b0: row t, column g; b1: row t + 4.
// The multiplier ignores the 13 bits that TF32 lacks.
void mma_tf32(const uint64_t (&values)[32]) {
  multiply_together<8>(values, [](Tiles<8>& tiles, const Product& product, int g, int t) {
    for (int i = 0; i < 4; i++) {
      tiles.a[g + i % 2 * 8][t + i / 2 * 4] = from_bits(product.a[i] & ~0x1fffu);
    }
    for (int i = 0; i < 2; i++) tiles.set_b(t + i * 4, g, from_bits(product.b[i] & ~0x1fffu));
  });
}

// Each register holds two elements, the lower first. a0: row g, columns 2t and 2t + 1; a1: row
// g + 8; a2 a3: columns 2t + 8 and 2t + 9. b0: rows 2t and 2t + 1, column g; b1: rows 2t + 8 and
// on.
template <float (*to_float)(unsigned)>
void mma_16bit(const uint64_t (&values)[32]) {
  multiply_together<16>(values, [](Tiles<16>& tiles, const Product& product, int g, int t) {
    for (int half = 0; half < 2; half++) {
      for (int i = 0; i < 4; i++) {
        tiles.a[g + i % 2 * 8][2 * t + half + i / 2 * 8] = to_float(product.a[i] >> 16 * half);
      }
      for (int i = 0; i < 2; i++) {
        tiles.set_b(2 * t + half + i * 8, g, to_float(product.b[i] >> 16 * half));
      }
    }
  });
}

// Each register holds four elements, the lowest first. a0: row g, columns 4t to 4t + 3; a1: row
// g + 8; a2 a3: columns 4t + 16 and on. b0: rows 4t to 4t + 3, column g; b1: rows 4t + 16 and on.
void mma_byte(const uint64_t (&values)[32]) {
  using Row = unsigned __attribute__((vector_size(8 * sizeof(unsigned))));  // which wraps around
  unsigned a[16][32];
  Row b[32], c[16];
  for (int lane = 0; lane < 32; lane++) {
    const Product& product = *reinterpret_cast<const Product*>(values[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int byte = 0; byte < 4; byte++) {
      for (int i = 0; i < 4; i++) {
        a[g + i % 2 * 8][4 * t + byte + i / 2 * 16] = uint8_t(product.a[i] >> 8 * byte);
      }
      for (int i = 0; i < 2; i++) {
        b[4 * t + byte + i * 16][g] = unsigned(int8_t(product.b[i] >> 8 * byte));
      }
    }
    const auto* sums = static_cast<const unsigned*>(product.c);
    for (int i = 0; i < 4; i++) c[g + i / 2 * 8][2 * t + i % 2] = sums[i];
  }
  for (int row = 0; row < 16; row++) {
    for (int k = 0; k < 32; k++) c[row] += a[row][k] * b[k];
  }
  for (int lane = 0; lane < 32; lane++) {
    const Product& product = *reinterpret_cast<const Product*>(values[lane]);
    const int g = lane / 4, t = lane % 4;
    auto* sums = static_cast<unsigned*>(product.c);
    for (int i = 0; i < 4; i++) sums[i] = c[g + i / 2 * 8][2 * t + i % 2];
  }
}

}  // namespace

void load_matrix(unsigned* matrices, int count, bool transposed, const void* row, Site site) {
  if (int(lane()) < 8 * count) {
    if (uintptr_t(row) % 16 != 0) fault(&site, "misaligned ldmatrix: %p is no multiple of 16", row);
    if (!in_shared_memory(row, 16)) {
      fault(&site, "ldmatrix from %p, outside the block's shared memory", row);
    }
    reads(row, 16);
    record(Access::Matrix, row, 16, __builtin_return_address(0));
  }
  const Load load = {matrices, count, transposed, row};
  block->meet(WarpOp::LoadMatrix, ~0u, reinterpret_cast<uint64_t>(&load), site, load_together);
}

void mma(Operands operands, void* c, const unsigned* a, const unsigned* b, Site site) {
  static constexpr Together multiply[] = {mma_tf32, mma_16bit<half_to_float>,
                                          mma_16bit<bfloat16_to_float>, mma_byte};
  const Product product = {c, a, b};
  block->meet(WarpOp::Mma, ~0u, reinterpret_cast<uint64_t>(&product), site,
              multiply[int(operands)]);
}

}  // namespace cusim
