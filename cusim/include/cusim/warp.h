// Barriers, and operations of all lanes of a warp together. The compiler fills in every function's
// last argument, the line of the call, which the runtime names in its messages.
#pragma once
#include <cusim/arithmetic.h>
#include <cusim/runtime.h>

#define CUSIM_SITE cusim::Site site = cusim::Site::current()

inline void __syncthreads(CUSIM_SITE) { cusim::barrier(0, site); }
inline int __syncthreads_count(int predicate, CUSIM_SITE) {
  return cusim::barrier(predicate, site);
}
inline int __syncthreads_or(int predicate, CUSIM_SITE) {
  return cusim::barrier(predicate, site) != 0;
}
inline int __syncthreads_and(int predicate, CUSIM_SITE) {
  return cusim::barrier(!predicate, site) == 0;
}

inline void __syncwarp(unsigned mask = ~0u, CUSIM_SITE) {
  cusim::meet(cusim::WarpOp::Sync, mask, 0, site);
}

namespace cusim {

// What lane `source` handed over; NaN where it did not come, which leaves it undefined.
template <class T>
inline T shuffle(unsigned mask, T value, int source, Site site) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t word = 0;
  __builtin_memcpy(&word, &value, sizeof value);
  const Met met = meet(WarpOp::Shuffle, mask, word, site);
  word = met.lanes >> source & 1 ? met.values[source] : ~uint64_t(0);
  __builtin_memcpy(&value, &word, sizeof value);
  return value;
}

inline unsigned ballot(unsigned mask, bool predicate, Site site) {
  const Met met = meet(WarpOp::Vote, mask, predicate, site);
  unsigned votes = 0;
  for (int i = 0; i < warpSize; i++) {
    votes |= unsigned(met.lanes >> i & 1 && met.values[i] != 0) << i;
  }
  return votes;
}

template <class T, class F>
inline T reduce(unsigned mask, T value, F combine, Site site) {
  const Met met = meet(WarpOp::Reduce, mask, uint64_t(uint32_t(value)), site);
  T result = value;
  for (int i = 0; i < warpSize; i++) {
    if (met.lanes >> i & 1 && unsigned(i) != lane()) result = combine(result, T(met.values[i]));
  }
  return result;
}

}  // namespace cusim

// Lanes fall into segments of `width`, a power of two; a source outside the segment is the lane.
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUSIM_SITE) {
  const int first = int(cusim::lane()) & ~(width - 1);
  return cusim::shuffle(mask, value, first + (source & (width - 1)), site);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUSIM_SITE) {
  const int lane = int(cusim::lane()), first = lane & ~(width - 1), source = lane - int(delta);
  return cusim::shuffle(mask, value, source < first ? lane : source, site);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUSIM_SITE) {
  const int lane = int(cusim::lane()), end = (lane & ~(width - 1)) + width;
  const int source = lane + int(delta);
  return cusim::shuffle(mask, value, source >= end ? lane : source, site);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32, CUSIM_SITE) {
  const int lane = int(cusim::lane()), end = (lane & ~(width - 1)) + width, source = lane ^ flip;
  return cusim::shuffle(mask, value, source >= end ? lane : source, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, CUSIM_SITE) {
  return cusim::ballot(mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate, CUSIM_SITE) {
  return cusim::ballot(mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, CUSIM_SITE) {
  return cusim::ballot(mask, predicate == 0, site) == 0;
}

// Which lanes run together is the hardware's choice; here, all that have not returned.
inline unsigned __activemask() { return cusim::live_lanes(); }

#define CUSIM_REDUCE(name, type, expression)                                                    \
  inline type name(unsigned mask, type value, CUSIM_SITE) {                                     \
    return cusim::reduce(mask, value, [](type a, type b) -> type { return expression; }, site); \
  }
CUSIM_REDUCE(__reduce_add_sync, unsigned, a + b)
CUSIM_REDUCE(__reduce_min_sync, unsigned, min(a, b))
CUSIM_REDUCE(__reduce_max_sync, unsigned, max(a, b))
CUSIM_REDUCE(__reduce_and_sync, unsigned, a& b)
CUSIM_REDUCE(__reduce_or_sync, unsigned, a | b)
CUSIM_REDUCE(__reduce_add_sync, int, int(unsigned(a) + unsigned(b)))
CUSIM_REDUCE(__reduce_min_sync, int, min(a, b))
CUSIM_REDUCE(__reduce_max_sync, int, max(a, b))
#undef CUSIM_REDUCE

inline void __trap(CUSIM_SITE) { cusim::trap("__trap()", site); }
