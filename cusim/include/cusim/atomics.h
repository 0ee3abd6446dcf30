// Atomic operations and fences. The operations are relaxed, as in CUDA, so that ThreadSanitizer
// does not see synchronisation that a GPU would not provide. Blocks communicate through them, so
// after one the simulator may switch to another block.
#pragma once
#include <cusim/arithmetic.h>
#include <cusim/runtime.h>

inline void __threadfence() { cusim::fence(cusim::FenceScope::Device); }
inline void __threadfence_block() { cusim::fence(cusim::FenceScope::Block); }
inline void __threadfence_system() { cusim::fence(cusim::FenceScope::Device); }

namespace cusim {

// Replaces *at by change(*at); returns what was there.
template <class Word, class T, class F>
inline T update(T* at, F change) {
  before_atomic(at, sizeof(T));
  Word* word = reinterpret_cast<Word*>(at);
  Word seen = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(word, &seen, bits<Word>(T(change(bits<T>(seen)))), false,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  after_atomic(at, sizeof(T));
  return bits<T>(seen);
}

// What `operation` returns, which is atomic and at that place.
template <class T, class F>
inline T atomic(T* at, F operation) {
  before_atomic(at, sizeof(T));
  const T seen = operation();
  after_atomic(at, sizeof(T));
  return seen;
}

}  // namespace cusim

#define CUSIM_ATOMIC(name, type, word, expression)                                \
  inline type name(type* at, type value) {                                        \
    return cusim::update<word>(at, [=](type old) -> type { return expression; }); \
  }
#define CUSIM_ATOMICS(type, word)                                                              \
  CUSIM_ATOMIC(atomicExch, type, word, ((void)old, value))                                     \
  CUSIM_ATOMIC(atomicMin, type, word, min(old, value))                                         \
  CUSIM_ATOMIC(atomicMax, type, word, max(old, value))                                         \
  inline type atomicAdd(type* at, type value) {                                                \
    return cusim::atomic(at, [=] { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }); \
  }                                                                                            \
  inline type atomicSub(type* at, type value) {                                                \
    return cusim::atomic(at, [=] { return __atomic_fetch_sub(at, value, __ATOMIC_RELAXED); }); \
  }                                                                                            \
  inline type atomicAnd(type* at, type value) {                                                \
    return cusim::atomic(at, [=] { return __atomic_fetch_and(at, value, __ATOMIC_RELAXED); }); \
  }                                                                                            \
  inline type atomicOr(type* at, type value) {                                                 \
    return cusim::atomic(at, [=] { return __atomic_fetch_or(at, value, __ATOMIC_RELAXED); });  \
  }                                                                                            \
  inline type atomicCAS(type* at, type expected, type value) {                                 \
    return cusim::atomic(at, [=]() mutable {                                                   \
      __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED,               \
                                  __ATOMIC_RELAXED);                                           \
      return expected;                                                                         \
    });                                                                                        \
  }
CUSIM_ATOMICS(int, unsigned)
CUSIM_ATOMICS(unsigned, unsigned)
CUSIM_ATOMICS(unsigned long long, unsigned long long)
CUSIM_ATOMIC(atomicAdd, float, unsigned, old + value)
CUSIM_ATOMIC(atomicAdd, double, unsigned long long, old + value)
CUSIM_ATOMIC(atomicExch, float, unsigned, ((void)old, value))
CUSIM_ATOMIC(atomicInc, unsigned, unsigned, old >= value ? 0 : old + 1)
CUSIM_ATOMIC(atomicDec, unsigned, unsigned, old == 0 || old > value ? value : old - 1)
#undef CUSIM_ATOMICS
#undef CUSIM_ATOMIC
