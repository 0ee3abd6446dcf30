// A launch: every block of a grid, one after another.
#pragma once
#include <cusim/runtime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "block.h"

namespace cusim {

// A kernel's library.
struct Module {
  std::string kernel;
  Entry entry;
  char* static_shared;
  size_t static_shared_bytes;
};

struct Launch {
  std::string kernel;
  Module* module;
  dim3 grid, block;
  size_t dynamic_shared_bytes;
  Order order;
  uint64_t seed;
  unsigned deadline;  // seconds
  std::vector<std::string> arguments;
  std::vector<const void*> argument_pointers;
};

// The one under way.
extern const Launch* launch;

// How often threads have begun or gone on, ever.
extern uint64_t steps;

void run(const Launch& launch);

// Of the launch's order and seed.
unsigned random_below(unsigned bound);

// The block may be left here for others that have not come as far, where the order is random.
void before_others();

// Whether all of it lies in the shared memory of the block that runs.
bool in_shared_memory(const void* start, size_t size);

}  // namespace cusim
