// Products of two warpgroups' 128 rows by N columns, of chunks of 128 bytes of K, the next chunk
// copied while one is multiplied.
#include "wgmma.cuh"

enum class Defect {
  NONE,
  NO_PROXY_FENCE,
  PROXY_FENCE_BEFORE_COPIES_END,
  PLAIN_STORE,
  NO_FENCE,
  SUMS_WRITTEN_BEHIND_FENCE,
  A_WRITTEN_BEHIND_FENCE,
  A_WRITTEN_UNDER_WAY,
  SUMS_WRITTEN_UNDER_WAY,
  SUMS_READ_UNDER_WAY,
  NO_COMMIT,
  NO_WAIT,
  WAITS_FOR_TOO_FEW,
  REFILLED_UNDER_WAY,
  NOT_SWIZZLED,
  ALIGNED_TO_128,
  SECOND_ROW,
  PAST_THE_ROW,
  BASE_OFFSET,
  WRONG_STRIDE,
  UNKNOWN_BITS,
  OUTSIDE,
  LANES_DIFFER,
  WARPS_DIFFER,
  WARP_MISSING,
  WARPGROUP_CUT,
};

enum class Kind { F16, TF32, U8S8 };

template <Kind KIND>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<Kind::U8S8> {
  using Type = int;
};

template <Kind KIND, class T, int COUNT, class A>
__device__ __forceinline__ void multiply_rows(T (&sums)[COUNT], const A& a, unsigned long long b,
                                              bool add) {
  if constexpr (KIND == Kind::F16) wgmma_f16(sums, a, b, add);
  if constexpr (KIND == Kind::TF32) wgmma_tf32(sums, a, b, add);
  if constexpr (KIND == Kind::U8S8) wgmma_u8s8(sums, a, b, add);
}

// a: 128 rows, b: N rows of `chunks` x 128 bytes; y[row][column].
template <Kind KIND, int N, bool REGISTERS>
__device__ __forceinline__ void multiply_chunks(const unsigned char* a, const unsigned char* b,
                                                typename SumOf<KIND>::Type* y, int chunks,
                                                Defect defect) {
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using T = typename SumOf<KIND>::Type;
  constexpr int M = 128, ROW = 128, STAGE = (M + N) * ROW;
  unsigned char* shared;
  if (defect == Defect::ALIGNED_TO_128) {
    DYNAMIC_SHARED(unsigned char, less);
    shared = less;
  } else {
    SWIZZLED_SHARED(unsigned char, tiles);
    shared = tiles;
  }
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const auto copy = [&](int chunk) {
    if (chunk < chunks) {
      for (int i = thread; i < (M + N) * 8; i += int(blockDim.x)) {
        const int row = i / 8, vector = i % 8;
        const unsigned char* from = row < M ? a + row * chunks * ROW : b + (row - M) * chunks * ROW;
        const int place = defect == Defect::NOT_SWIZZLED ? vector : vector ^ row % 8;
        unsigned char* const to = shared + chunk % 2 * STAGE + row * ROW + place * 16;
        from += chunk * ROW + vector * 16;
        if (defect == Defect::PLAIN_STORE && chunk == chunks - 1)
          *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
        else
          cp_async<16>(to, from);
      }
    }
    cp_async_commit();
  };
  T sums[N / 2], early = 0;
  unsigned registers[4][4];
  if (defect == Defect::WARP_MISSING && warp == 3) return;
  copy(0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (defect == Defect::PROXY_FENCE_BEFORE_COPIES_END) fence_proxy_async();
    cp_async_wait<0>();
    if (defect != Defect::NO_PROXY_FENCE && defect != Defect::PROXY_FENCE_BEFORE_COPIES_END &&
        !(defect == Defect::PLAIN_STORE && chunk == chunks - 1))
      fence_proxy_async();
    __syncthreads();
    const unsigned begin = shared_address(shared) + unsigned(chunk % 2 * STAGE);
    unsigned long long left = wgmma_tile(begin + unsigned(warp / 4 * 64 * ROW));
    unsigned long long right = wgmma_tile(begin + M * ROW);
    if (defect == Defect::SECOND_ROW) right += ROW / 16;
    if (defect == Defect::PAST_THE_ROW) right += 7;
    if (defect == Defect::BASE_OFFSET) right |= 1ull << 49;
    if (defect == Defect::WRONG_STRIDE) right += 8ull << 32;
    if (defect == Defect::UNKNOWN_BITS) right |= 1ull << 46;
    if (defect == Defect::OUTSIDE) right += 2 * STAGE / 16;
    if (defect == Defect::LANES_DIFFER && lane == 5) right += 2;
    if (defect == Defect::WARPS_DIFFER && warp == 6) right += 2;
    const auto load = [&](int step) {
      const int row = warp * 16 + lane % 16;
      ldmatrix_x4(registers[step],
                  shared + chunk % 2 * STAGE + row * ROW + ((2 * step + lane / 16) ^ row % 8) * 16);
    };
    if constexpr (REGISTERS)
      for (int step = 0; step < 4; ++step) load(step);
    if (defect != Defect::NO_FENCE) wgmma_fence();
    if (defect == Defect::SUMS_WRITTEN_BEHIND_FENCE && chunk > 0) sums[1] += 1;
    if constexpr (REGISTERS)
      if (defect == Defect::A_WRITTEN_BEHIND_FENCE && chunk > 0) registers[2][1] += 0x10000;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const bool add = chunk > 0 || step > 0;
      if constexpr (REGISTERS)
        multiply_rows<KIND>(sums, registers[step], right + unsigned(step) * 2, add);
      else
        multiply_rows<KIND>(sums, left + unsigned(step) * 2, right + unsigned(step) * 2, add);
    }
    if (defect != Defect::NO_COMMIT) wgmma_commit();
    if constexpr (REGISTERS)
      if (defect == Defect::A_WRITTEN_UNDER_WAY) registers[1][2] += 0x10000;
    if (defect == Defect::SUMS_WRITTEN_UNDER_WAY) sums[3] = 0;
    if (defect == Defect::SUMS_READ_UNDER_WAY) early = sums[3];
    if (defect == Defect::REFILLED_UNDER_WAY && chunk > 0) {
      copy(chunk + 1 < chunks ? chunk : chunks);  // what is being multiplied
    } else {
      copy(chunk + 1);
    }
    if (defect == Defect::WAITS_FOR_TOO_FEW && chunk + 1 < chunks)
      wgmma_wait<1>();
    else if (defect != Defect::NO_WAIT)
      wgmma_wait<0>();
    __syncthreads();  // all have read the chunk, which the copies after the next overwrite
  }
  for (int i = 0; i < N / 2; ++i) {
    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8;
    y[row * N + i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[i] + early;
  }
#endif
}

template <Kind KIND, int N, bool REGISTERS>
__global__ void __launch_bounds__(256)
    multiply(const unsigned char* a, const unsigned char* b, typename SumOf<KIND>::Type* y,
             int chunks, Defect defect) {
  multiply_chunks<KIND, N, REGISTERS>(a, b, y, chunks, defect);
}

// The same that never has a defect: what a compiler makes of it.
template <Kind KIND, int N, bool REGISTERS>
__global__ void __launch_bounds__(256)
    multiply_rightly(const unsigned char* a, const unsigned char* b, typename SumOf<KIND>::Type* y,
                     int chunks) {
  multiply_chunks<KIND, N, REGISTERS>(a, b, y, chunks, Defect::NONE);
}

struct Descriptors {
  unsigned long long a, b;
};

// One product of 32 bytes of K, of tiles that lie in shared memory as `tiles` does; the descriptors
// count from there.
__global__ void multiply_described(const float4* tiles, int vectors, Descriptors tile, float* y) {
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  SWIZZLED_SHARED(float4, shared);
  const int thread = threadIdx.x;
  for (int i = thread; i < vectors; i += int(blockDim.x)) shared[i] = tiles[i];
  fence_proxy_async();
  __syncthreads();
  float sums[16];
  const unsigned long long begin = shared_address(shared) >> 4;
  wgmma_fence();
  wgmma_f16(sums, tile.a + begin, tile.b + begin, false);
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < 16; ++i) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
    y[row * 32 + i / 4 * 8 + thread % 4 * 2 + i % 2] = sums[i];
  }
#endif
}
