// A sum over the blocks of a cluster, without a workspace or a counter. Each block has its part of
// a tile at the same place in its shared memory. Each block adds all parts of some rows of the
// tile, and reads them from the other blocks' shared memory. The order is that of split.cuh, so the
// sums are the same to the bit.
#pragma once

#include "cluster.cuh"
#include "common.cuh"

// Adds up `count` rows of the parts, COLUMNS floats each that lie PITCH apart from `rows` on, to
// where this block has its own. The `blocks` that have parts are every `apart`-th of the cluster,
// from that of rank `begin` on. Thread t adds up every THREADS-th 4 neighbours from the t-th on.
// All threads of the cluster call it; others may read this block's part until the cluster_wait that
// each thread calls next.
template <int COLUMNS, int PITCH, int THREADS>
__device__ __forceinline__ void add_up_rows(float* rows, int count, int blocks, int apart,
                                            int begin) {
  cluster_arrive();  // this block's part is there
  cluster_wait();
#pragma unroll 1
  for (int i = threadIdx.x; i < count * (COLUMNS / 4); i += THREADS) {
    float* const at = rows + (i / (COLUMNS / 4) * PITCH + i % (COLUMNS / 4) * 4);
    Vec<4> sum = splat<4>(0.0f);
#pragma unroll 1
    for (int first = 0; first < blocks; first += 4) {
      Vec<4> parts[4];  // all are on their way before the first is added; 0 beyond the last
#pragma unroll
      for (int each = 0; each < 4; ++each)
        parts[each] = first + each < blocks ? load<4>(of_block(at, begin + (first + each) * apart))
                                            : splat<4>(0.0f);
#pragma unroll
      for (int each = 0; each < 4; ++each)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum.at[j] += parts[each].at[j];
    }
    store<4>(at, sum);
  }
  cluster_arrive_relaxed();  // this block reads no other's part any more
}
