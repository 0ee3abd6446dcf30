// Doubles n numbers, in steps of what each thread takes, and goes astray.
#include "ptx.cuh"

enum class Defect {
  NONE,
  READ_PAST_END,
  READ_BEFORE_START,
  WRITE_PAST_END,
  WRITE_BEFORE_START,
  WILD_READ,
  SHARED_READ_PAST_END,
  SHARED_WRITE_PAST_END,
  DYNAMIC_READ_PAST_END,
  DYNAMIC_WRITE_PAST_END,
  MISALIGNED,
  DIVISION_BY_ZERO,
  STACK_OVERFLOW,
  ENDLESS,
  SIGNED_OVERFLOW,
  TRAP,
};

__device__ float deep(int depth, const volatile float* from) {
  volatile float local[256];
  local[depth % 256] = from[0];
  return depth == 0 ? local[0] : deep(depth - 1, local) + local[1];
}

__global__ void twice(const float* x, float* y, int n, Defect defect) {
  __shared__ float staged[36];
  DYNAMIC_SHARED(float, dynamic);
  const int i = threadIdx.x;
  const bool last = i == n - 1;
  const bool first = i == 0;
  staged[i % 36] = 0.0f;
  dynamic[i] = 0.0f;
  float value = x[i];
  if (defect == Defect::READ_PAST_END) value = x[i + last];
  if (defect == Defect::READ_BEFORE_START) value = x[i - first];
  if (defect == Defect::WILD_READ && last) value = x[100000000];
  if (defect == Defect::SHARED_READ_PAST_END && last) value = staged[n + 4];
  if (defect == Defect::SHARED_WRITE_PAST_END && last) staged[n + 4] = 1.0f;
  if (defect == Defect::DYNAMIC_READ_PAST_END && last) value = dynamic[n];
  if (defect == Defect::DYNAMIC_WRITE_PAST_END && last) dynamic[n] = 1.0f;
  if (defect == Defect::MISALIGNED && last) {
    const float4 four = *reinterpret_cast<const float4*>(x + 1);
    value = four.x + four.y + four.z + four.w;
  }
  if (defect == Defect::DIVISION_BY_ZERO && last) value = float(n / (i - n + 1));
  if (defect == Defect::STACK_OVERFLOW && last) value = deep(10000, x);
  if (defect == Defect::ENDLESS && last) {
    while (*static_cast<volatile const float*>(x) == *static_cast<volatile const float*>(x)) {
    }
  }
  if (defect == Defect::SIGNED_OVERFLOW && last) value = float(n * (1 << 26));
  if (defect == Defect::TRAP && last) __trap();
  y[i] = 2.0f * value;
  if (defect == Defect::WRITE_PAST_END && last) y[n] = 1.0f;
  if (defect == Defect::WRITE_BEFORE_START && first) y[-1] = 1.0f;
}
