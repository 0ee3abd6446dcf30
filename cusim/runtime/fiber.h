// Stacks between which code can switch: it leaves one in the middle and returns to it later.
#pragma once
#include <cstddef>

namespace cusim {

struct Fiber {
  char* bottom = nullptr;  // of its stack; for the one the program began on, known once left
  size_t size = 0;
  void* resume = nullptr;      // where it goes on: its stack pointer, or a ucontext_t
  void* fake_stack = nullptr;  // AddressSanitizer's, kept while the fiber is away
  void* tsan = nullptr;        // ThreadSanitizer's own record of it
};

// Stack number `index`, which stays the same fiber to ThreadSanitizer whatever runs on it. Stacks
// end in a page that cannot be touched, so that an overflow is a fault rather than a riddle.
Fiber* fiber(size_t index);

// Prepares the fiber to call `entry`, which never returns, when next switched to.
void prepare(Fiber& fiber, void (*entry)());

// Leaves the fiber that runs (`current`) for another; returns when another fiber switches back to
// it. `last`: none will.
void switch_to(Fiber& next, bool last = false);

// To be called first by `entry`.
void entered();

extern Fiber* current_fiber;
extern Fiber main_fiber;

// The most fibers there can be: a block that pauses keeps those of its threads.
constexpr size_t max_fibers = 16384;

}  // namespace cusim
