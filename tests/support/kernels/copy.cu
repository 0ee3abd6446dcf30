// A launch that writes what those behind it read, as any launch of a network does.
#include "dependent.cuh"

__device__ void copy_one(const unsigned* source, unsigned* target, int bytes) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  for (int i = thread; i < bytes / 4; i += threads) target[i] = source[i];
  for (int i = bytes / 4 * 4 + thread; i < bytes; i += threads)
    reinterpret_cast<unsigned char*>(target)[i] = reinterpret_cast<const unsigned char*>(source)[i];
}

__global__ void copy(const unsigned* source_0, unsigned* target_0, int bytes_0,
                     const unsigned* source_1, unsigned* target_1, int bytes_1,
                     const unsigned* source_2, unsigned* target_2, int bytes_2) {
  follow_previous();
  copy_one(source_0, target_0, bytes_0);
  copy_one(source_1, target_1, bytes_1);
  copy_one(source_2, target_2, bytes_2);
}
