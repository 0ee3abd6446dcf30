// Decides when blocks see each other's stores to device memory, in the build that models this
// (CUSIM_ORDERED). In other builds they see them at once, and these functions do nothing.
//
// Memory itself holds what plain loads of the running block return: the contents at the start of
// the launch, as if the L1 cache held them since then, and the block's own stores. These stores
// drain to the L2 cache, which atomic operations, volatile loads and __ldcg access:
//
//   - at a fence: the thread's own stores, and those of the block's other threads before the last
//     barrier;
//   - when the simulator switches to another block: some of the other stores, in any order;
//   - when the block ends: all stores.
//
// A load that is not volatile may be executed early, so __ldcg returns what had drained at the
// block's last fence. In one way this is stricter than the PTX memory model: there, a fence lets
// plain loads see everything that it lets __ldcg see. So kernels must use __ldcg to read other
// blocks' stores.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace cusim {

#if defined(CUSIM_ORDERED)
constexpr bool ordered = true;
#else
constexpr bool ordered = false;
#endif

class Stores {
 public:
#if defined(CUSIM_ORDERED)
  // The thread that runs is about to store there.
  void about_to_store(const void* at, size_t size);
  void fence();

  // The block is left for another; goes on; has ended.
  void leave();
  void enter();
  void end();

  // Brings memory up to date with the L2 cache: all of it, or what had drained at the last fence.
  void refresh(const void* at, size_t size, bool newest);
  // What memory holds there is in the L2 cache.
  void publish(const void* at, size_t size);

  // After the last block.
  static void launch_done();

 private:
  // 4 bytes of device memory of which this block's view is its own.
  struct Word {
    uint32_t others;    // what memory held, and holds while other blocks run
    uint32_t own;       // what it holds while this one runs; known when the block is left
    uint8_t pending;    // bit by byte: stored, and not in the L2 cache
    bool shared;        // by stores of several threads
    unsigned thread;    // the last to store
    unsigned barriers;  // the block had passed when it did
  };
  Word& word(uint32_t* at);
  static void drain(uint32_t* at, Word& word);

  std::unordered_map<uint32_t*, Word> words_;
  uint64_t fenced_ = 0;
#else
  void about_to_store(const void*, size_t) {}
  void fence() {}
  void leave() {}
  void enter() {}
  void end() {}
  void refresh(const void*, size_t, bool) {}
  void publish(const void*, size_t) {}
  static void launch_done() {}
#endif
};

}  // namespace cusim
