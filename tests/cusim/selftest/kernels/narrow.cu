// Arithmetic of 16-bit floats, and conversions both ways.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// A number and what it becomes, for every pair of x: one row of y an operation.
template <class T>
__global__ void arithmetic(const T* x, T* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const T a = x[i], b = x[n - 1 - i];
  y[0 * n + i] = a + b;
  y[1 * n + i] = a - b;
  y[2 * n + i] = a * b;
  y[3 * n + i] = __hfma(a, b, b);
  y[4 * n + i] = a < b ? b : a;
  y[5 * n + i] = -a;
}

template <class T>
__global__ void widen(const T* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = float(x[i]);
}

template <class T>
__global__ void narrow(const float* x, T* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = T(x[i]);
}

// (x, y) of each pair as float, swapped.
__global__ void pairs(const half2* x, half2* y) {
  const float2 wide = __half22float2(x[threadIdx.x]);
  y[threadIdx.x] = __floats2half2_rn(wide.y, wide.x);
}
