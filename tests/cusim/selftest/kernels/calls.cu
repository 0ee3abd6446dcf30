// How a kernel is called: arguments of every kind, coordinates, the order in which threads run.
#include "ptx.cuh"

struct Mixed {
  char a;
  double b;
  short c[3];
  const float* d;
};

enum class Choice : unsigned char { FIRST, SECOND };

__global__ void arguments(Mixed mixed, int i, unsigned u, long long l, float f, Choice choice,
                          const int* table, double* y) {
  y[0] = mixed.a;
  y[1] = mixed.b;
  y[2] = mixed.c[2];
  y[3] = mixed.d[1];
  y[4] = i;
  y[5] = u;
  y[6] = l;
  y[7] = f;
  y[8] = choice == Choice::SECOND;
  y[9] = table[1];
}

// Each thread writes 2 * 3 coordinates, then 2 * 3 extents, where it belongs.
__global__ void coordinates(unsigned* y) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  unsigned* mine = y + (block * blockDim.x * blockDim.y * blockDim.z + thread) * 12;
  const uint3 indices[] = {blockIdx, threadIdx};
  const dim3 extents[] = {gridDim, blockDim};
  for (int i = 0; i < 2; ++i) {
    mine[3 * i] = indices[i].x, mine[3 * i + 1] = indices[i].y, mine[3 * i + 2] = indices[i].z;
    mine[3 * i + 6] = extents[i].x, mine[3 * i + 7] = extents[i].y, mine[3 * i + 8] = extents[i].z;
  }
}

// y[i] = which thread of the grid was the i-th to run, before the barrier and after it.
__global__ void turns(int* y, int* next) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  y[atomicAdd(next, 1)] = thread;
  __syncthreads();
  y[atomicAdd(next, 1)] = thread;
}

template <int BYTES>
__global__ void shared(unsigned char* y) {
  __shared__ unsigned char memory[BYTES];
  DYNAMIC_SHARED(unsigned char, dynamic);
  const int i = threadIdx.x;
  y[2 * i] = memory[i];
  y[2 * i + 1] = dynamic[i];
  memory[i] = dynamic[i] = 0;
}

template <int FIRST, bool SECOND, class Third>
__global__ void named(Third* y) {
  y[0] = SECOND ? FIRST : -FIRST;
}
