// The simulator's implementation of kernels/src/bulk.cuh.
#pragma once
#include <cusim/wgmma.h>

using TensorMap = cusim::TensorMap;

// All lanes meet, as elect.sync wants it; which one it elects is not said.
inline bool elected() {
  const unsigned lane = threadIdx.x % 32;
  return __shfl_sync(~0u, lane, 0) == lane;
}
inline void mbarrier_init(unsigned long long* barrier, int arrivals, CUSIM_SITE) {
  cusim::mbarrier_init(barrier, arrivals, site);
}
inline void fence_mbarrier_init() { cusim::fence_mbarrier_init(); }
inline void mbarrier_arrive(unsigned long long* barrier, CUSIM_SITE) {
  cusim::mbarrier_arrive(barrier, 0, site);
}
inline void mbarrier_arrive_at(unsigned long long* barrier, unsigned rank, CUSIM_SITE) {
  cusim::mbarrier_arrive_at(barrier, rank, site);
}
inline void mbarrier_expect(unsigned long long* barrier, int bytes, CUSIM_SITE) {
  cusim::mbarrier_arrive(barrier, bytes, site);
}
inline void mbarrier_wait(unsigned long long* barrier, int parity, CUSIM_SITE) {
  cusim::mbarrier_wait(barrier, parity, site);
}
inline void copy_bulk(void* shared, const void* global, int bytes, unsigned long long* barrier,
                      CUSIM_SITE) {
  cusim::copy_bulk(shared, global, bytes, barrier, cusim::own_block, site);
}
inline void copy_tile(void* shared, const TensorMap& map, int x, int y, unsigned long long* barrier,
                      CUSIM_SITE) {
  cusim::copy_tile(shared, map, {x, y}, barrier, cusim::own_block, site);
}
inline void copy_pixels(void* shared, const TensorMap& map, int c, int w, int h, int n, int s,
                        int r, unsigned long long* barrier, CUSIM_SITE) {
  cusim::copy_pixels(shared, map, {c, w, h, n}, {s, r}, barrier, cusim::own_block, site);
}
inline void multicast_bulk(void* shared, const void* global, int bytes, unsigned long long* barrier,
                           unsigned short blocks, CUSIM_SITE) {
  cusim::copy_bulk(shared, global, bytes, barrier, blocks, site);
}
inline void multicast_tile(void* shared, const TensorMap& map, int x, int y,
                           unsigned long long* barrier, unsigned short blocks, CUSIM_SITE) {
  cusim::copy_tile(shared, map, {x, y}, barrier, blocks, site);
}
inline void multicast_pixels(void* shared, const TensorMap& map, int c, int w, int h, int n, int s,
                             int r, unsigned long long* barrier, unsigned short blocks,
                             CUSIM_SITE) {
  cusim::copy_pixels(shared, map, {c, w, h, n}, {s, r}, barrier, blocks, site);
}
