#include "stores.h"

#include <cusim/runtime.h>

#include "block.h"
#include "launch.h"
#include "memory.h"

namespace cusim {

void fence(FenceScope scope) {
  if (scope == FenceScope::Block) return;  // one multiprocessor sees its own stores at once
  block->stores.fence();
  // Not always: a thread left at a fence does not see what happens between it and an atomic.
  if (ordered && random_below(2) == 0) before_others();
}

void refresh(const void* at, size_t size) {
  about_to_access(false, at, size);
  block->stores.refresh(at, size, false);
}

void before_atomic(const void* at, size_t size) {
  about_to_access(true, at, size);
  block->stores.refresh(at, size, true);
}

void after_atomic(const void* at, size_t size) {
  block->stores.publish(at, size);
  if (!in_shared_memory(at, 1)) before_others();
}

}  // namespace cusim

#if defined(CUSIM_ORDERED)
namespace cusim {

namespace {

// What has drained in this launch, and when it first did: what is stored again is seen at once.
struct Drained {
  uint32_t value;
  uint8_t bytes;
  uint64_t time;
};
std::unordered_map<uint32_t*, Drained> l2;
uint64_t now = 1;

uint32_t mask_of(uint8_t bytes) {
  uint32_t mask = 0;
  for (int i = 0; i < 4; i++) mask |= (bytes >> i & 1) ? 0xffu << 8 * i : 0;
  return mask;
}

void put(uint32_t* at, uint8_t bytes, uint32_t value) {
  const auto [found, first] = l2.try_emplace(at, Drained{0, 0, now});
  Drained& drained = found->second;
  const uint32_t mask = mask_of(bytes);
  drained.value = (drained.value & ~mask) | (value & mask);
  drained.bytes |= bytes;
}

template <class F>
void each_word(const void* at, size_t size, F f) {
  const uintptr_t begin = uintptr_t(at), end = begin + size;
  for (uintptr_t word = begin & ~uintptr_t(3); word < end; word += 4) {
    uint8_t bytes = 0;
    for (unsigned i = 0; i < 4; i++) bytes |= uint8_t(word + i >= begin && word + i < end) << i;
    f(reinterpret_cast<uint32_t*>(word), bytes);
  }
}

}  // namespace

Stores::Word& Stores::word(uint32_t* at) {
  return words_.try_emplace(at, Word{*at, 0, 0, false, 0, 0}).first->second;
}

void Stores::drain(uint32_t* at, Word& word) {
  put(at, word.pending, *at);
  word.pending = 0;
}

void Stores::about_to_store(const void* at, size_t size) {
  if (!is_device_memory(at)) return;
  const unsigned thread = block->thread->linear;
  each_word(at, size, [&](uint32_t* place, uint8_t bytes) {
    Word& stored = word(place);
    stored.shared = stored.pending != 0 && (stored.shared || stored.thread != thread);
    stored.pending |= bytes;
    stored.thread = thread;
    stored.barriers = block->barriers();
  });
}

void Stores::fence() {
  for (auto& [at, word] : words_) {
    const bool own = !word.shared && word.thread == block->thread->linear;
    if (word.pending != 0 && (own || word.barriers < block->barriers())) drain(at, word);
  }
  fenced_ = now++;
}

void Stores::leave() {
  for (auto& [at, word] : words_) {
    if (word.pending != 0 && random_below(4) == 0) drain(at, word);
    word.own = *at;
    *at = word.others;
  }
}

void Stores::enter() {
  for (auto& [at, word] : words_) {
    word.others = *at;
    *at = word.own;
  }
}

void Stores::end() {
  for (auto& [at, word] : words_) {
    if (word.pending != 0) drain(at, word);
    *at = word.others;
  }
  words_.clear();
  fenced_ = now++;
}

void Stores::refresh(const void* at, size_t size, bool newest) {
  if (!is_device_memory(at)) return;
  each_word(at, size, [&](uint32_t* place, uint8_t bytes) {
    const auto drained = l2.find(place);
    if (drained == l2.end() || (!newest && drained->second.time > fenced_)) return;
    Word& own = word(place);
    const uint32_t mask = mask_of(bytes & drained->second.bytes & ~own.pending);
    *place = (*place & ~mask) | (drained->second.value & mask);
  });
}

void Stores::publish(const void* at, size_t size) {
  if (!is_device_memory(at)) return;
  each_word(at, size, [&](uint32_t* place, uint8_t bytes) {
    Word& changed = word(place);
    put(place, bytes, *place);
    changed.pending &= ~bytes;
  });
}

void Stores::launch_done() {
  for (const auto& [at, drained] : l2) {
    const uint32_t mask = mask_of(drained.bytes);
    *at = (*at & ~mask) | (drained.value & mask);
  }
  l2.clear();
}

}  // namespace cusim
#endif
