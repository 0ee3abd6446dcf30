#include "launch.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>

#include "accesses.h"
#include "fault.h"
#include "fiber.h"
#include "memory.h"
#include "sanitizers.h"

namespace cusim {

const Launch* launch = nullptr;

namespace {

uint64_t random_state;

// Dynamic shared memory ends where nothing can be touched, but for what alignment leaves between.
class DynamicShared {
 public:
  static constexpr size_t capacity = 256 << 10, guard = 64 << 10, alignment = 128;

  void place(size_t size) {
    if (memory_ == nullptr) map();
    size_ = size;
    start_ = memory_ + capacity - (size + alignment - 1) / alignment * alignment;
    allow(start_, capacity - size_t(start_ - memory_));
    forbid(start_ + size, size_t(memory_ + capacity - start_) - size);
  }
  char* start() const { return start_; }
  size_t size() const { return size_; }
  char* slack() const { return start_ + size_; }
  size_t slack_size() const { return size_t(memory_ + capacity - slack()); }

 private:
  void map() {
    void* memory = mmap(nullptr, capacity + guard, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED ||
        mprotect(static_cast<char*>(memory) + capacity, guard, PROT_NONE) != 0) {
      perror("cusim: no memory for dynamic shared memory");
      abort();
    }
    memory_ = static_cast<char*>(memory);
  }

  char* memory_ = nullptr;
  char* start_ = nullptr;
  size_t size_ = 0;
};

DynamicShared dynamic;

void poison_shared_memory() {
  raw_fill(launch->module->static_shared, poison, launch->module->static_shared_bytes);
  raw_fill(dynamic.start(), poison, dynamic.size() + dynamic.slack_size());
}

void check_shared_memory() {
  if (const char* bad = first_unpoisoned(dynamic.slack(), dynamic.slack_size())) {
    fault(nullptr, "wrote out of bounds: %td bytes past the end of %zu bytes of shared memory",
          bad - dynamic.slack(), dynamic.size());
  }
}

uint3 unflatten(unsigned index) {
  return {index % gridDim.x, index / gridDim.x % gridDim.y, index / gridDim.x / gridDim.y};
}

// A block that is not running, its shared memory put away.
struct Resident {
  Block block;
  std::vector<char> shared;

  void put_away() {
    const size_t static_bytes = launch->module->static_shared_bytes;
    shared.resize(static_bytes + dynamic.size());
    raw_copy(shared.data(), launch->module->static_shared, static_bytes);
    raw_copy(shared.data() + static_bytes, dynamic.start(), dynamic.size());
  }
  void take_out() const {
    const size_t static_bytes = launch->module->static_shared_bytes;
    raw_copy(launch->module->static_shared, shared.data(), static_bytes);
    raw_copy(dynamic.start(), shared.data() + static_bytes, dynamic.size());
  }
};

size_t threads_of_a_block() { return size_t(blockDim.x) * blockDim.y * blockDim.z; }

// How many blocks are paused, with stacks of their own.
size_t paused_blocks = 0;

// Blocks one after another. One that pauses is left for all that have not begun, and the last to
// pause goes on first: so what it should have waited for has not happened, if it can be so.
void run_one_by_one(const std::vector<unsigned>& order) {
  static std::vector<std::unique_ptr<Resident>> blocks;  // they keep their vectors' capacity
  paused_blocks = 0;
  const auto run = [] {
    Resident& last = *blocks[paused_blocks];
    last.block.run();
    check_shared_memory();
    if (last.block.paused()) {
      last.block.stores.leave();
      last.put_away();
      paused_blocks++;
    } else {
      last.block.stores.end();
      block_recorded();
    }
  };
  for (unsigned i : order) {
    if (blocks.size() == paused_blocks) blocks.push_back(std::make_unique<Resident>());
    poison_shared_memory();
    blocks[paused_blocks]->block.begin(unflatten(i), paused_blocks * threads_of_a_block());
    run();
  }
  while (paused_blocks != 0) {
    blocks[--paused_blocks]->take_out();
    blocks[paused_blocks]->block.stores.enter();
    run();
  }
}

}  // namespace

void run(const Launch& what) {
  launch = &what;
  gridDim = what.grid;
  blockDim = what.block;
  random_state = what.seed * 0x9e3779b97f4a7c15u | 1;
  std::vector<unsigned> order(size_t(gridDim.x) * gridDim.y * gridDim.z);
  std::iota(order.begin(), order.end(), 0u);
  if (what.order == Order::Reversed) std::reverse(order.begin(), order.end());
  if (what.order == Order::Random) {
    for (size_t i = order.size() - 1; i > 0; i--) {
      std::swap(order[i], order[random_below(unsigned(i + 1))]);
    }
  }
  dynamic.place(what.dynamic_shared_bytes);
  set_deadline(what.deadline);
  run_one_by_one(order);
  Stores::launch_done();
  set_deadline(0);
  check_red_zones();
  block = nullptr;
  launch = nullptr;
}

// Not for ThreadSanitizer, to which blocks that share the bytes of their shared memory would race.
void before_others() {
  const bool room = (paused_blocks + 2) * threads_of_a_block() <= max_fibers;
  if (!tsan && launch->order == Order::Random && room) block->pause();
}

// Marsaglia's xorshift64.
unsigned random_below(unsigned bound) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return unsigned((random_state >> 32) * bound >> 32);
}

bool in_shared_memory(const void* start, size_t size) {
  const char* first = static_cast<const char*>(start);
  const auto inside = [=](const char* memory, size_t bytes) {
    return first >= memory && first + size <= memory + bytes;
  };
  return inside(dynamic.start(), dynamic.size()) ||
         inside(launch->module->static_shared, launch->module->static_shared_bytes);
}

void* dynamic_shared(size_t alignment) {
  if (alignment > DynamicShared::alignment) {
    fault(nullptr, "dynamic shared memory is aligned to 128 bytes, not %zu", alignment);
  }
  return dynamic.start();
}

}  // namespace cusim
