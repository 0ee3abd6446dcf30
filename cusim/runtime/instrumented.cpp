// Functions that the compiler's instrumentation for ThreadSanitizer calls before each access of a
// kernel and instead of its atomic operations. Here, builds without ThreadSanitizer use them.
#include <cusim/runtime.h>

#include "accesses.h"
#include "block.h"
#include "launch.h"
#include "stores.h"

#if defined(CUSIM_ORDERED) || defined(CUSIM_PROFILE)
namespace cusim {

namespace {

void about_to_load(const void* at, size_t size, const void* place) {
  record(Access::Load, at, size, place);
  about_to_access(false, at, size);
}

void about_to_store(const void* at, size_t size, const void* place) {
  record(Access::Store, at, size, place);
  about_to_access(true, at, size);
  if (block == nullptr) return;
  block->stores.about_to_store(at, size);
  if (block->thread != nullptr && in_shared_memory(at, size)) block->proxy.stored(at, size);
}

}  // namespace

}  // namespace cusim

#define HERE __builtin_return_address(0)

#define CUSIM_ACCESS(size)                                                               \
  void __tsan_read##size(void* at) { cusim::about_to_load(at, size, HERE); }             \
  void __tsan_unaligned_read##size(void* at) { cusim::about_to_load(at, size, HERE); }   \
  void __tsan_write##size(void* at) { cusim::about_to_store(at, size, HERE); }           \
  void __tsan_unaligned_write##size(void* at) { cusim::about_to_store(at, size, HERE); } \
  void __tsan_volatile_read##size(void* at) {                                            \
    if (cusim::block != nullptr) cusim::block->stores.refresh(at, size, true);           \
    cusim::about_to_load(at, size, HERE);                                                \
  }                                                                                      \
  void __tsan_volatile_write##size(void* at) { cusim::about_to_store(at, size, HERE); }

#define CUSIM_TSAN_ATOMIC(bits, T)                                                             \
  T __tsan_atomic##bits##_load(const volatile T* at, int) { return *at; }                      \
  T __tsan_atomic##bits##_fetch_add(volatile T* at, T value, int) {                            \
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);                                    \
  }                                                                                            \
  T __tsan_atomic##bits##_fetch_sub(volatile T* at, T value, int) {                            \
    return __atomic_fetch_sub(at, value, __ATOMIC_RELAXED);                                    \
  }                                                                                            \
  T __tsan_atomic##bits##_fetch_and(volatile T* at, T value, int) {                            \
    return __atomic_fetch_and(at, value, __ATOMIC_RELAXED);                                    \
  }                                                                                            \
  T __tsan_atomic##bits##_fetch_or(volatile T* at, T value, int) {                             \
    return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);                                     \
  }                                                                                            \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* at, T* expected, T value, int, \
                                                    int) {                                     \
    return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_RELAXED,           \
                                       __ATOMIC_RELAXED);                                      \
  }

extern "C" {
CUSIM_ACCESS(1)
CUSIM_ACCESS(2)
CUSIM_ACCESS(4)
CUSIM_ACCESS(8)
CUSIM_ACCESS(16)
CUSIM_TSAN_ATOMIC(32, uint32_t)
CUSIM_TSAN_ATOMIC(64, uint64_t)
void __tsan_read_range(void* at, size_t size) { cusim::about_to_load(at, size, HERE); }
void __tsan_write_range(void* at, size_t size) { cusim::about_to_store(at, size, HERE); }
void __tsan_init() {}
}
#undef HERE
#endif
