// The simulator's implementation of kernels/src/wgmma.cuh.
#pragma once
#include <cusim/ptx.h>

#define SWIZZLED_SHARED(type, name) \
  type* const name = static_cast<type*>(cusim::dynamic_shared(1024))

inline unsigned shared_address(const void* shared) { return cusim::shared_address(shared); }

inline void fence_proxy_async() { cusim::fence_proxy_async(); }
inline void wgmma_fence(CUSIM_SITE) { cusim::wgmma_fence(site); }
inline void wgmma_commit(CUSIM_SITE) { cusim::wgmma_commit(site); }
template <int PENDING>
inline void wgmma_wait(CUSIM_SITE) {
  cusim::wgmma_wait(PENDING, site);
}

#define CUSIM_WGMMA(name, type, operands)                                                       \
  template <int COUNT>                                                                          \
  inline void name(type(&d)[COUNT], uint64_t a, uint64_t b, bool add, CUSIM_SITE) {             \
    static_assert(COUNT % 4 == 0 && COUNT <= 128, "8 to 256 columns, in eights");               \
    cusim::wgmma(operands, 2 * COUNT, d, nullptr, a, b, add, site);                             \
  }                                                                                             \
  template <int COUNT>                                                                          \
  inline void name(type(&d)[COUNT], const unsigned (&a)[4], uint64_t b, bool add, CUSIM_SITE) { \
    static_assert(COUNT == 16 || COUNT == 32 || COUNT == 64, "32, 64 or 128 columns");          \
    cusim::wgmma(operands, 2 * COUNT, d, a, 0, b, add, site);                                   \
  }
CUSIM_WGMMA(wgmma_f16, float, cusim::Operands::Half)
CUSIM_WGMMA(wgmma_tf32, float, cusim::Operands::Tf32)
CUSIM_WGMMA(wgmma_u8s8, int, cusim::Operands::Byte)
#undef CUSIM_WGMMA
