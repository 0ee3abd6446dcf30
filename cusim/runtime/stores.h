// When blocks see each other's stores to device memory, in the build that models it (CUSIM_ORDERED;
// in any other at once, and all of this is nothing).
//
// Memory itself is what the block that runs sees by plain loads: what was there when the launch
// began, as if its L1 cache had held all of it from then on, and its own stores. What it stores
// drains to the L2 cache, which atomic operations, volatile loads and __ldcg go to:
//
//   - at a fence: the thread's own stores, and those of the block's others before the last barrier;
//   - where the block is left for another: some of the others, in any order;
//   - when the block ends: all.
//
// A load that is not volatile may be served early, so __ldcg finds what had drained at the block's
// last fence. Stricter than the PTX memory model in one way: there a fence also makes plain loads
// see what it made __ldcg see. A load that names its cache says what it needs.
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
