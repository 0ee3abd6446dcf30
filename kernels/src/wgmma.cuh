// Hopper's matrix products (sm_90a): a warpgroup multiplies 64 rows of A by N columns of B, and
// does not wait for the product. A warpgroup is 4 warps; the number of its first warp is a multiple
// of 4.
//
// Outside CUDA the simulator defines the same names, as it does for ptx.cuh. A kernel for any
// architecture may name these functions, but a kernel that calls one compiles only for sm_90a. Sums
// have the layout of mma.m16n8's: warp w of the warpgroup has the 16 rows from 16w on.
#pragma once
#include "ptx.cuh"

#ifdef __CUDACC__

// As DYNAMIC_SHARED, aligned to 1024 bytes: where tiles with a swizzle of 128 bytes may begin.
#define SWIZZLED_SHARED(type, name)                                         \
  extern __shared__ __align__(1024) unsigned char swizzled_shared_memory[]; \
  type* const name = reinterpret_cast<type*>(swizzled_shared_memory)

// Makes this thread's ordinary stores to shared memory, cp.async among them, visible to wgmma and
// to bulk copies; a barrier between it and them is still needed.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Orders what the warp did to registers before the next wgmma that uses them.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Ends the group of products that this warp began since the last one it ended.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most the PENDING newest groups are under way. Until then the sums must not be
// touched, nor the factors overwritten.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#define WGMMA_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define WGMMA_16 WGMMA_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_32 WGMMA_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_56                                                          \
  WGMMA_32                                                                \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48," \
  "%49,%50,%51,%52,%53,%54,%55"
#define WGMMA_64                                                          \
  WGMMA_32                                                                \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48," \
  "%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_IO4(c, i) "+" c(d[i]), "+" c(d[i + 1]), "+" c(d[i + 2]), "+" c(d[i + 3])
#define WGMMA_IO8(c, i) WGMMA_IO4(c, i), WGMMA_IO4(c, i + 4)
#define WGMMA_IO16(c, i) WGMMA_IO8(c, i), WGMMA_IO8(c, i + 8)
#define WGMMA_IO32(c, i) WGMMA_IO16(c, i), WGMMA_IO16(c, i + 16)
#define WGMMA_IO56(c, i) WGMMA_IO32(c, i), WGMMA_IO16(c, i + 32), WGMMA_IO8(c, i + 48)
#define WGMMA_IO64(c, i) WGMMA_IO32(c, i), WGMMA_IO32(c, i + 32)

// Both factors in shared memory, then A in registers; operands behind the sums are numbered.
#define WGMMA_SHARED(name, type, c, n, count, shape, end, p0, p1, p2)                              \
  __device__ __forceinline__ void name(type(&d)[count], unsigned long long a,                      \
                                       unsigned long long b, bool add) {                           \
    asm volatile("{ .reg .pred add; setp.ne.b32 add, " p2                                          \
                 ", 0;\n"                                                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #n shape " {" WGMMA_##count "}, " p0 ", " p1  \
                                                                                 ", add" end "; }" \
                 : WGMMA_IO##count(c, 0)                                                           \
                 : "l"(a), "l"(b), "r"(int(add)));                                                 \
  }
#define WGMMA_REGISTERS(name, type, c, n, count, shape, end, p0, p1, p2, p3, p4, p5)   \
  __device__ __forceinline__ void name(type(&d)[count], const unsigned (&a)[4],        \
                                       unsigned long long b, bool add) {               \
    asm volatile("{ .reg .pred add; setp.ne.b32 add, " p5                              \
                 ", 0;\n"                                                              \
                 "wgmma.mma_async.sync.aligned.m64n" #n shape " {" WGMMA_##count       \
                 "}, {" p0 "," p1 "," p2 "," p3 "}, " p4 ", add" end "; }"             \
                 : WGMMA_IO##count(c, 0)                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add))); \
  }
#define WGMMA(name, type, c, shape, end, end_registers)                                            \
  WGMMA_SHARED(name, type, c, 32, 16, shape, end, "%16", "%17", "%18")                             \
  WGMMA_SHARED(name, type, c, 64, 32, shape, end, "%32", "%33", "%34")                             \
  WGMMA_SHARED(name, type, c, 128, 64, shape, end, "%64", "%65", "%66")                            \
  WGMMA_REGISTERS(name, type, c, 32, 16, shape, end_registers, "%16", "%17", "%18", "%19", "%20",  \
                  "%21")                                                                           \
  WGMMA_REGISTERS(name, type, c, 64, 32, shape, end_registers, "%32", "%33", "%34", "%35", "%36",  \
                  "%37")                                                                           \
  WGMMA_REGISTERS(name, type, c, 128, 64, shape, end_registers, "%64", "%65", "%66", "%67", "%68", \
                  "%69")

// d (64xN) = a (64xK) * b (KxN), to which d is added where `add`: N is twice the number of sums a
// thread has, 32, 64 or 128, of halves also 16 or 112; K has 32 bytes. `a` and `b` are descriptors
// (of rows of K both), `a` also registers, as mma's. TF32 factors are truncated; bytes are unsigned
// by signed.
WGMMA(wgmma_f16, float, "f", "k16.f32.f16.f16", ", 1, 1, 0, 0", ", 1, 1, 0")
WGMMA_SHARED(wgmma_f16, float, "f", 16, 8, "k16.f32.f16.f16", ", 1, 1, 0, 0", "%8", "%9", "%10")
WGMMA_SHARED(wgmma_f16, float, "f", 112, 56, "k16.f32.f16.f16", ", 1, 1, 0, 0", "%56", "%57", "%58")
WGMMA(wgmma_tf32, float, "f", "k8.f32.tf32.tf32", ", 1, 1", ", 1, 1")
WGMMA(wgmma_u8s8, int, "r", "k32.s32.u8.s8", "", "")

#undef WGMMA
#undef WGMMA_REGISTERS
#undef WGMMA_SHARED
#undef WGMMA_IO64
#undef WGMMA_IO56
#undef WGMMA_IO32
#undef WGMMA_IO16
#undef WGMMA_IO8
#undef WGMMA_IO4
#undef WGMMA_64
#undef WGMMA_56
#undef WGMMA_32
#undef WGMMA_16
#undef WGMMA_8

#endif  // __CUDACC__

// Describes a tile to wgmma: rows of 128 bytes of K, 16-byte vector v of row r at v ^ r % 8, the
// first row at a multiple of 1024 bytes of shared memory. The next 32 bytes of K are 2 more.
__device__ __forceinline__ unsigned long long wgmma_tile(unsigned shared) {
  return (shared & 0x3ffff) >> 4 | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}

// A warp's sums, in fragments of 16 x 8, as wgmma has them.
template <class Number, int M, int N>
__device__ __forceinline__ auto in_a_row(Number (&sums)[M][N][4]) -> Number (&)[M * N * 4] {
  return reinterpret_cast<Number(&)[M * N * 4]>(sums);
}

template <class Number, int M, int N>
__device__ __forceinline__ void clear(Number (&sums)[M][N][4]) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
}
