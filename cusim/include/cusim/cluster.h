// The simulator's implementation of kernels/src/cluster.cuh.
#pragma once
#include <cusim/wgmma.h>

inline unsigned cluster_rank() { return cusim::cluster_rank(); }
inline void cluster_arrive(CUSIM_SITE) { cusim::cluster_arrive(true, site); }
inline void cluster_arrive_relaxed(CUSIM_SITE) { cusim::cluster_arrive(false, site); }
inline void cluster_wait(CUSIM_SITE) { cusim::cluster_wait(site); }
template <class T>
T* of_block(T* shared, unsigned rank, CUSIM_SITE) {
  return static_cast<T*>(const_cast<void*>(cusim::of_block(shared, rank, site)));
}
