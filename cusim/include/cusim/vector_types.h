// CUDA's vector types, aligned as on the device, so that a misaligned access is a fault.
#pragma once

#define CUSIM_VECTOR_TYPES(name, type, two, four)                             \
  struct alignas(two) name##2 { type x, y; };                                 \
  struct name##3 { type x, y, z; };                                           \
  struct alignas(four) name##4 { type x, y, z, w; };                          \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }            \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

CUSIM_VECTOR_TYPES(char, signed char, 2, 4)
CUSIM_VECTOR_TYPES(uchar, unsigned char, 2, 4)
CUSIM_VECTOR_TYPES(short, short, 4, 8)
CUSIM_VECTOR_TYPES(ushort, unsigned short, 4, 8)
CUSIM_VECTOR_TYPES(int, int, 8, 16)
CUSIM_VECTOR_TYPES(uint, unsigned, 8, 16)
CUSIM_VECTOR_TYPES(longlong, long long, 16, 16)
CUSIM_VECTOR_TYPES(ulonglong, unsigned long long, 16, 16)
CUSIM_VECTOR_TYPES(float, float, 8, 16)
CUSIM_VECTOR_TYPES(double, double, 16, 16)
#undef CUSIM_VECTOR_TYPES
