// PTX without a name in CUDA C++: asynchronous copies, ldmatrix, mma, a barrier that warps with
// different roles share, an ordered counter, and dynamic shared memory.
//
// The only inline PTX of the project. Outside CUDA (`__CUDACC__` undefined) the simulator defines
// the same names, so kernels need no conditional compilation. Fragment layouts are those of the PTX
// ISA, "Matrix fragments for mma.m16n8k8" and "...m16n8k16".
#pragma once

#ifdef __CUDACC__

// Declares `name`, the block's dynamic shared memory as an array of `type`, aligned to 128 bytes.
#define DYNAMIC_SHARED(type, name)                                        \
  extern __shared__ __align__(128) unsigned char dynamic_shared_memory[]; \
  type* const name = reinterpret_cast<type*>(dynamic_shared_memory)

__device__ __forceinline__ unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// The number itself, in a register from here on: the compiler would otherwise compute again, in
// each turn of a loop, what depends on the thread's index alone. It costs no instruction, but ptxas
// sees through it where registers are scarce: then `held` is needed.
template <class T>
__device__ __forceinline__ T kept(T number) {
  asm volatile("" : "+r"(number));
  return number;
}

// The same, of a place in shared memory.
template <class T>
__device__ __forceinline__ T* kept(T* shared) {
  return static_cast<T*>(__cvta_shared_to_generic(kept(shared_address(shared))));
}

// The same, of a number or a place in shared memory, by a shuffle to the lane itself. All lanes of
// a warp call it together.
__device__ __forceinline__ int held(int number) {
  return __shfl_sync(~0u, number, threadIdx.x % 32);
}

template <class T>
__device__ __forceinline__ T* held(T* shared) {
  return static_cast<T*>(__cvta_shared_to_generic(unsigned(held(int(shared_address(shared))))));
}

// Waits for every thread of the block, whose warps may be at different calls of it: where they do
// different work, and __syncthreads would have to be one call. All lanes of a warp call it
// together.
__device__ __forceinline__ void barrier_of_roles() {
  asm volatile("barrier.sync.aligned 0;" ::: "memory");
}

// Adds 1 to a counter that blocks share, and returns what it was. The block that counts k sees what
// the k before it had written when they counted, and so do threads behind its next barrier. Two
// fences around an atomicAdd would say the same as sequential consistency, which takes longer.
__device__ __forceinline__ unsigned count_up(unsigned* counter) {
  unsigned before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(counter))
               : "memory");
  return before;
}

// Copies the first `read` of BYTES (4, 8 or 16, both ends aligned to it) from global to shared
// memory, and zeros for the others. There when waited for, and only for the thread that waited:
// others need a barrier after it. sm_75 has no such copies; there it is done at once.
template <int BYTES>
__device__ __forceinline__ void cp_async_part(void* shared, const void* global, int read) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
#if __CUDA_ARCH__ >= 800
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(read)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)),
                 "l"(global), "n"(BYTES), "r"(read)
                 : "memory");
  }
#else
  if (read == 0 || read == BYTES) {
    for (int i = 0; i < BYTES / 4; i++) {
      static_cast<unsigned*>(shared)[i] = read ? static_cast<const unsigned*>(global)[i] : 0u;
    }
  } else {
    for (int i = 0; i < BYTES / 2; i++) {
      static_cast<unsigned short*>(shared)[i] =
          2 * i < read ? static_cast<const unsigned short*>(global)[i] : 0;
    }
  }
#endif
}

// All of BYTES, or zeros where not `valid` (`global` is not read then).
template <int BYTES>
__device__ __forceinline__ void cp_async(void* shared, const void* global, bool valid = true) {
  cp_async_part<BYTES>(shared, global, valid ? BYTES : 0);
}

// 16 bytes, or zeros where `bits` are 0: a bit of a mask need not be brought to the lowest place.
__device__ __forceinline__ void cp_async_where(unsigned bits, void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "{ .reg .pred none; setp.eq.u32 none, %2, 0;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, none; }" ::"r"(shared_address(shared)),
      "l"(global), "r"(bits)
      : "memory");
#else
  cp_async<16>(shared, global, bits != 0);
#endif
}

// Ends the group of copies that this thread began since the last one it ended.
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most the PENDING newest groups of this thread are still under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Loads 1, 2 or 4 matrices of 8x8 16-bit elements from shared memory: lane 8i + j gives the address
// of row j of matrix i (16 bytes, aligned to 16), and receives in matrix[i] row lane/4, columns
// 2(lane%4) and the next. With `_trans` each matrix is transposed on the way.
__device__ __forceinline__ void ldmatrix_x1(unsigned (&matrix)[1], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(matrix[0])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x2(unsigned (&matrix)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(matrix[0]), "=r"(matrix[1])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(unsigned (&matrix)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x1_trans(unsigned (&matrix)[1], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(matrix[0])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x2_trans(unsigned (&matrix)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(matrix[0]), "=r"(matrix[1])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&matrix)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
               : "r"(shared_address(row))
               : "memory");
}

// Between float and half, a half being its 16 bits; rounded to the nearest, ties to even.
__device__ __forceinline__ float float_of_half(unsigned short x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x));
  return result;
}

__device__ __forceinline__ unsigned short half_of_float(float x) {
  unsigned short result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(x));
  return result;
}

// c (16x8) += a (16x16, rows) * b (16x8, columns), operands in pairs of half, by the whole warp.
// sm_75 does one half of the 16 after the other.
__device__ __forceinline__ void mma_m16n8k16_f16(float (&c)[4], const unsigned (&a)[4],
                                                 const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
  for (int i = 0; i < 2; ++i)
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
#endif
}

#if __CUDA_ARCH__ >= 800

// The float nearest to x with 10 bits of mantissa, ties away from zero: an operand of a TF32 mma.
__device__ __forceinline__ unsigned to_tf32(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

// c (16x8) += a (16x8, rows) * b (8x8, columns), operands in TF32, by the whole warp.
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&c)[4], const unsigned (&a)[4],
                                                 const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// As mma_m16n8k16_f16, operands in pairs of bfloat16.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&c)[4], const unsigned (&a)[4],
                                                  const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif  // __CUDA_ARCH__ >= 800
#endif  // __CUDACC__
