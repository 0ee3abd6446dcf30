// The simulator's implementation of kernels/src/ptx.cuh and dependent.cuh: the same names, which
// call the runtime.
#pragma once
#include <cusim/narrow.h>
#include <cusim/warp.h>

#define DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(cusim::dynamic_shared(alignof(type)))

template <class T>
inline T held(T value) {
  return value;
}

// One place, whatever the call's.
template <class T>
T kept(T number) {
  return number;
}

inline unsigned count_up(unsigned* counter) {
  __threadfence();  // release
  const unsigned before = atomicAdd(counter, 1u);
  __threadfence();  // acquire
  return before;
}

inline void barrier_of_roles() { cusim::barrier(0, cusim::Site::current()); }

// As kernels/src/dependent.cuh has them, which is included behind this.
#ifndef TRIGGER
#define TRIGGER 0
#endif
inline void let_next_begin() {
  if (TRIGGER == 0) cusim::let_next_begin();
}
inline void let_next_begin_late() {
  if (TRIGGER == 1) cusim::let_next_begin();
}
inline void wait_for_previous() { cusim::wait_for_previous(); }

// Reads a byte, so that a line beyond the weights, or one that is not the kernel's to read early,
// is found.
inline void prefetch_line(const void* line) {
  static_cast<void>(*static_cast<const volatile char*>(line));
}

template <int BYTES>
inline void cp_async(void* shared, const void* global, bool valid = true, CUSIM_SITE) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  cusim::copy_async(shared, global, BYTES, valid ? BYTES : 0, site);
}
template <int BYTES>
inline void cp_async_part(void* shared, const void* global, int read, CUSIM_SITE) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  cusim::copy_async(shared, global, BYTES, read, site);
}
inline void cp_async_where(unsigned bits, void* shared, const void* global, CUSIM_SITE) {
  cusim::copy_async(shared, global, 16, bits ? 16 : 0, site);
}
inline void cp_async_commit() { cusim::copy_commit(); }
template <int PENDING>
inline void cp_async_wait() {
  cusim::copy_wait(PENDING);
}

inline void ldmatrix_x1(unsigned (&matrix)[1], const void* row, CUSIM_SITE) {
  cusim::load_matrix(matrix, 1, false, row, site);
}
inline void ldmatrix_x2(unsigned (&matrix)[2], const void* row, CUSIM_SITE) {
  cusim::load_matrix(matrix, 2, false, row, site);
}
inline void ldmatrix_x4(unsigned (&matrix)[4], const void* row, CUSIM_SITE) {
  cusim::load_matrix(matrix, 4, false, row, site);
}
inline void ldmatrix_x1_trans(unsigned (&matrix)[1], const void* row, CUSIM_SITE) {
  cusim::load_matrix(matrix, 1, true, row, site);
}
inline void ldmatrix_x2_trans(unsigned (&matrix)[2], const void* row, CUSIM_SITE) {
  cusim::load_matrix(matrix, 2, true, row, site);
}
inline void ldmatrix_x4_trans(unsigned (&matrix)[4], const void* row, CUSIM_SITE) {
  cusim::load_matrix(matrix, 4, true, row, site);
}

inline float float_of_half(unsigned short x) { return cusim::HalfFormat::widen(x); }
inline unsigned short half_of_float(float x) { return cusim::HalfFormat::round(x); }

// cvt.rna: 13 bits go, the nearest stays, ties away from zero. Infinity and NaN stay what they are.
inline unsigned to_tf32(float x) {
  const unsigned word = cusim::bits<unsigned>(x);
  return (word & 0x7f800000u) == 0x7f800000u ? word : (word + 0x1000u) & ~0x1fffu;
}

inline void mma_m16n8k8_tf32(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                             CUSIM_SITE) {
  cusim::mma(cusim::Operands::Tf32, c, a, b, site);
}
inline void mma_m16n8k16_f16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                             CUSIM_SITE) {
  cusim::mma(cusim::Operands::Half, c, a, b, site);
}
inline void mma_m16n8k32_u8s8(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                              CUSIM_SITE) {
  cusim::mma(cusim::Operands::Byte, c, a, b, site);
}
inline void mma_m16n8k16_bf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                              CUSIM_SITE) {
  cusim::mma(cusim::Operands::Bfloat16, c, a, b, site);
}
