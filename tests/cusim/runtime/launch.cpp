#include "launch.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>

#include "fault.h"
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

void run_one_by_one(const std::vector<unsigned>& order) {
  static Block only;  // its vectors keep their capacity from block to block
  for (unsigned i : order) {
    poison_shared_memory();
    only.begin(unflatten(i), 0);
    only.run();
    check_shared_memory();
  }
}

// Each block runs as far as the grid's barrier, its shared memory then put away.
void run_side_by_side(const std::vector<unsigned>& order) {
  const size_t threads = size_t(blockDim.x) * blockDim.y * blockDim.z;
  struct Resident {
    Block block;
    std::vector<char> shared;
  };
  std::vector<std::unique_ptr<Resident>> residents;
  const size_t static_bytes = launch->module->static_shared_bytes;
  char* const static_shared = launch->module->static_shared;
  const auto put_away = [&](std::vector<char>& shared) {
    raw_copy(shared.data(), static_shared, static_bytes);
    raw_copy(shared.data() + static_bytes, dynamic.start(), dynamic.size());
  };
  const auto take_out = [&](const std::vector<char>& shared) {
    raw_copy(static_shared, shared.data(), static_bytes);
    raw_copy(dynamic.start(), shared.data() + static_bytes, dynamic.size());
  };
  for (unsigned i : order) {
    residents.push_back(std::make_unique<Resident>());
    residents.back()->block.begin(unflatten(i), residents.size() * threads - threads);
    residents.back()->shared.assign(static_bytes + dynamic.size(), char(poison));
  }
  for (bool all_done = false; !all_done;) {
    size_t done = 0;
    for (auto& resident : residents) {
      if (!resident->block.done()) {
        take_out(resident->shared);
        resident->block.run();
        put_away(resident->shared);
        check_shared_memory();
      }
      done += resident->block.done();
    }
    all_done = done == residents.size();
    if (done != 0 && !all_done) {
      fault(nullptr, "%zu blocks have returned while %zu wait for the grid", done,
            residents.size() - done);
    }
    for (auto& resident : residents) resident->block.release_grid_barrier();
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
  if (what.cooperative) {
    run_side_by_side(order);
  } else {
    run_one_by_one(order);
  }
  set_deadline(0);
  check_red_zones();
  block = nullptr;
  launch = nullptr;
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
