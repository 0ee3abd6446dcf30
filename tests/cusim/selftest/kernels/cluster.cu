// Blocks of a cluster that add up in each other's shared memory, and that share what they copy.
#include "bulk.cuh"
#include "cluster.cuh"
#include "dependent.cuh"
#include "wgmma.cuh"

enum class Defect {
  NONE,
  NO_FIRST_BARRIER,
  NO_BARRIER_BETWEEN,
  NO_LAST_BARRIER,
  RELAXED,
  ONE_RELAXED,
  ONE_WAITS_ELSEWHERE,
  ARRIVES_TWICE,
  WAITS_WITHOUT_ARRIVAL,
  NO_SUCH_BLOCK,
  NOT_SHARED,
  OTHER_PLACE,
  NO_INIT_FENCE,
  NO_PROXY_FENCE,
  TO_NO_BLOCK,
  TO_BLOCKS_OUTSIDE,
  TO_ONE_ONLY,
  EXPECTS_ITS_OWN_HALF,
  REFILLED_TOO_SOON,
  ARRIVES_AT_ITS_OWN,
  ENDS_EARLY,
  DOES_NOT_WAIT,
  RELAXED_AT_THE_END,
  READS_WHERE_ONE_ENDED,
  WRITES_WHERE_ONE_ENDED,
};

__device__ __forceinline__ void meet() {
  cluster_arrive();
  cluster_wait();
}

// y[i] = the sum over the cluster's blocks of x[block][i]: each block adds up a part of what all
// have in shared memory, and writes it to the first, which writes y.
__global__ void add_up(const float* x, float* y, int blocks, Defect defect) {
#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 900
  let_next_begin();
  DYNAMIC_SHARED(float, memory);  // of each thread a number, then a sum
  const int thread = threadIdx.x, threads = blockDim.x, rank = cluster_rank();
  float* const sums = memory + threads;
  wait_for_previous();
  x += blockIdx.x / blocks * blocks * threads;
  memory[thread] = x[rank * threads + thread];
  if (defect == Defect::WAITS_WITHOUT_ARRIVAL) cluster_wait();
  if (defect == Defect::ARRIVES_TWICE) cluster_arrive();
  if (defect == Defect::ONE_WAITS_ELSEWHERE && rank == blocks - 1 && thread == 5)
    __syncthreads();
  else if (defect == Defect::RELAXED || (defect == Defect::ONE_RELAXED && thread == 5))
    cluster_arrive_relaxed(), cluster_wait();
  else if (defect != Defect::NO_FIRST_BARRIER)
    meet();
  if (thread % blocks == rank) {
    float sum = 0.0f;
    for (int block = 0; block < blocks; ++block) {
      const float* from = defect == Defect::NOT_SHARED ? x : memory;
      const int of = block + (defect == Defect::NO_SUCH_BLOCK);
      sum += of_block(from, of)[thread];
    }
    of_block(sums, 0)[thread] = sum;
  }
  if (defect != Defect::NO_BARRIER_BETWEEN) meet();
  if (defect == Defect::READS_WHERE_ONE_ENDED || defect == Defect::WRITES_WHERE_ONE_ENDED) {
    float* const of_last = of_block(memory, blocks - 1) + thread;
    meet();
    if (rank == blocks - 1) return;
    meet();
    if (defect == Defect::READS_WHERE_ONE_ENDED) sums[thread] += *of_last;
    if (defect == Defect::WRITES_WHERE_ONE_ENDED) *of_last = 0.0f;
  }
  if (rank == 0) y[blockIdx.x / blocks * threads + thread] = sums[thread];
  if (defect == Defect::NO_LAST_BARRIER) {
    if (rank != 0) return;
    for (int block = 1; block < blocks; ++block) of_block(sums, block)[thread] = 0.0f;
  }
#endif
}

// y[block][i] = the sum over `chunks` of x[chunk][i], of which each block copies a half to both.
__global__ void share_chunks(const float4* x, float4* y, int chunks, Defect defect) {
#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 900
  constexpr int STAGES = 2, ADDING = 128, BYTES = ADDING * 16;
  SWIZZLED_SHARED(float4, staged);
  __shared__ unsigned long long full[STAGES], empty[STAGES];
  const int thread = threadIdx.x, rank = cluster_rank();
  if (thread == 0) {
    for (int i = 0; i < STAGES; ++i) {
      mbarrier_init(full + i, 1);
      mbarrier_init(empty + i, 2 * ADDING / 32);
    }
    if (defect != Defect::NO_INIT_FENCE) fence_mbarrier_init();
    if (defect != Defect::NO_PROXY_FENCE) fence_proxy_async();
  }
  if (defect == Defect::NO_FIRST_BARRIER)
    __syncthreads();
  else
    meet();
  if (thread == ADDING) {
    const int first = defect == Defect::OTHER_PLACE ? 0 : rank * ADDING / 2;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int stage = chunk % STAGES;
      if (chunk >= STAGES && defect != Defect::REFILLED_TOO_SOON)
        mbarrier_wait(empty + stage, (chunk / STAGES - 1) & 1);
      mbarrier_expect(full + stage, defect == Defect::EXPECTS_ITS_OWN_HALF ? BYTES / 2 : BYTES);
      const unsigned short to = defect == Defect::TO_NO_BLOCK         ? 0
                                : defect == Defect::TO_BLOCKS_OUTSIDE ? 7
                                : defect == Defect::TO_ONE_ONLY       ? 1
                                                                      : 3;
      multicast_bulk(staged + stage * ADDING + first, x + chunk * ADDING + first, BYTES / 2,
                     full + stage, to);
    }
  }
  if (thread < ADDING) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int stage = chunk % STAGES;
      mbarrier_wait(full + stage, chunk / STAGES & 1);
      const float4 four = staged[stage * ADDING + (thread + 1) % ADDING];
      sum = make_float4(sum.x + four.x, sum.y + four.y, sum.z + four.z, sum.w + four.w);
      __syncwarp();
      if (thread % 32 == 0) {
        if (defect == Defect::ARRIVES_AT_ITS_OWN) {
          mbarrier_arrive(empty + stage);
        } else {
          mbarrier_arrive_at(empty + stage, 0);
          mbarrier_arrive_at(empty + stage, 1);
        }
      }
    }
    y[blockIdx.x * ADDING + (thread + 1) % ADDING] = sum;
  }
  if (defect == Defect::DOES_NOT_WAIT || defect == Defect::RELAXED_AT_THE_END)
    cluster_arrive_relaxed();
  else if (defect != Defect::ENDS_EARLY)
    cluster_arrive();
  if (defect != Defect::ENDS_EARLY && defect != Defect::DOES_NOT_WAIT) cluster_wait();
#endif
}

// y[block] = its place in its cluster.
__global__ void rank_blocks(unsigned* y) {
#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0)
    y[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] = cluster_rank();
#endif
}

// y[block] = a tile from the tensor's first element on, which the first block copies to both.
template <bool PIXELS>
__global__ void share_tensor(const __grid_constant__ TensorMap map, float4* y, int vectors) {
#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 900
  SWIZZLED_SHARED(float4, staged);
  __shared__ unsigned long long barrier;
  if (threadIdx.x == 0) {
    mbarrier_init(&barrier, 1);
    fence_mbarrier_init();
    fence_proxy_async();
    mbarrier_expect(&barrier, vectors * 16);
  }
  meet();
  if (threadIdx.x == 0 && cluster_rank() == 0) {
    if constexpr (PIXELS)
      multicast_pixels(staged, map, 0, 0, 0, 0, 0, 0, &barrier, 3);
    else
      multicast_tile(staged, map, 0, 0, &barrier, 3);
  }
  mbarrier_wait(&barrier, 0);
  for (int i = int(threadIdx.x); i < vectors; i += int(blockDim.x))
    y[int(blockIdx.x) * vectors + i] = staged[i];
  meet();
#endif
}
