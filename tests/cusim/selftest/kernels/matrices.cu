// ldmatrix and mma as they are, each lane's registers in and out.
#include "ptx.cuh"

enum class Defect { NONE, MISALIGNED, LANE_MISSING, LANE_RETURNED, OUTSIDE };

// y[lane][i] = matrix[i] of the lane; lane l gives the address of row rows[l] of x (8 elements
// each).
template <int COUNT, bool TRANS>
__global__ void load(const unsigned short* x, const int* rows, unsigned* y, Defect defect) {
  __shared__ __align__(16) unsigned short staged[32 * 8 + 8];
  const int lane = threadIdx.x;
  for (int i = 0; i < 8; ++i) staged[lane * 8 + i] = x[lane * 8 + i];
  __syncwarp();
  unsigned matrix[COUNT];
  const void* row = staged + rows[lane] * 8;
  if (defect == Defect::MISALIGNED && lane == 3) row = staged + 4;
  if (defect == Defect::OUTSIDE && lane == 3) row = x;
  if (defect == Defect::LANE_RETURNED && lane == 3) return;
  if (defect == Defect::LANE_MISSING && lane == 3) __syncthreads();
  if constexpr (COUNT == 1 && !TRANS) ldmatrix_x1(matrix, row);
  if constexpr (COUNT == 2 && !TRANS) ldmatrix_x2(matrix, row);
  if constexpr (COUNT == 4 && !TRANS) ldmatrix_x4(matrix, row);
  if constexpr (COUNT == 1 && TRANS) ldmatrix_x1_trans(matrix, row);
  if constexpr (COUNT == 2 && TRANS) ldmatrix_x2_trans(matrix, row);
  if constexpr (COUNT == 4 && TRANS) ldmatrix_x4_trans(matrix, row);
  for (int i = 0; i < COUNT; ++i) y[lane * COUNT + i] = matrix[i];
}

enum class Operands { TF32, HALF, BFLOAT16 };

// c += a * b, ROUNDS times; a, b and c hold each lane's registers one after another.
template <Operands OPERANDS, int ROUNDS>
__global__ void multiply(const unsigned* a, const unsigned* b, float* c) {
  const int lane = threadIdx.x;
  unsigned left[4], right[2];
  float sum[4];
  for (int i = 0; i < 4; ++i) left[i] = a[lane * 4 + i], sum[i] = c[lane * 4 + i];
  for (int i = 0; i < 2; ++i) right[i] = b[lane * 2 + i];
  for (int round = 0; round < ROUNDS; ++round) {
    if constexpr (OPERANDS == Operands::TF32) mma_m16n8k8_tf32(sum, left, right);
    if constexpr (OPERANDS == Operands::HALF) mma_m16n8k16_f16(sum, left, right);
    if constexpr (OPERANDS == Operands::BFLOAT16) mma_m16n8k16_bf16(sum, left, right);
  }
  for (int i = 0; i < 4; ++i) c[lane * 4 + i] = sum[i];
}

// c += a * b, of bytes.
template <int ROUNDS>
__global__ void multiply_bytes(const unsigned* a, const unsigned* b, int* c) {
  const int lane = threadIdx.x;
  unsigned left[4], right[2];
  int sum[4];
  for (int i = 0; i < 4; ++i) left[i] = a[lane * 4 + i], sum[i] = c[lane * 4 + i];
  for (int i = 0; i < 2; ++i) right[i] = b[lane * 2 + i];
  for (int round = 0; round < ROUNDS; ++round) mma_m16n8k32_u8s8(sum, left, right);
  for (int i = 0; i < 4; ++i) c[lane * 4 + i] = sum[i];
}

// y = a * b + c, of which the product is rounded.
__global__ void multiply_then_add(const float* a, const float* b, const float* c, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = __fadd_rn(__fmul_rn(a[i], b[i]), c[i]);
}

__global__ void round_to_tf32(const float* x, unsigned* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = to_tf32(x[i]);
}
