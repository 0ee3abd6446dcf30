// A launch: all blocks of a grid, one after another. Several launches may be in progress, each of
// which overlaps with the previous one. A block stops when it lets the next launch begin. It
// continues when some blocks of the following launches have come to where they wait for the
// previous launch.
#pragma once
#include <cusim/runtime.h>

#include <cstdint>
#include <memory>
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
  dim3 grid, block, cluster;
  size_t dynamic_shared_bytes;
  Order order;
  uint64_t seed;
  unsigned deadline;  // seconds
  bool dependent;     // may overlap with the launch before
  std::vector<std::string> arguments;
  std::vector<const void*> argument_pointers;
};

// The one under way.
extern const Launch* launch;

// How often threads have begun or gone on, ever.
extern uint64_t steps;

// Whether the launch before the one under way has not ended; whether blocks are left where they let
// the next one begin; and whether a thread has waited for the one before.
extern bool launch_is_early, launch_stops_at_trigger, launch_has_waited;

// At most as many may be begun, and not have run.
constexpr size_t max_overlapping = 3;

// Begins a launch behind those that were begun already and have not run: some of its blocks, as far
// as they can go.
void begin(std::unique_ptr<Launch> launch);

// Runs a launch: the one begun first, where any was begun and `begun` says so.
void run(std::unique_ptr<Launch> launch, bool begun);

// A thread of the launch under way is about to read or write there.
void about_to_access(bool write, const void* at, size_t size);

// Of the launch's order and seed.
unsigned random_below(unsigned bound);

// The block may be left here for others that have not come as far, where the order is random.
void before_others();

// Whether all of it lies in the shared memory of the block that runs.
bool in_shared_memory(const void* start, size_t size);

// A copy of all of it: its size; and what memory has now, to the copy, and from it.
size_t shared_copy_size();
void copy_shared_to(char* copy);
void copy_shared_from(const char* copy);

// Where a block that is not running has what it finds in its shared memory at `shared`: there, in
// the copy of all of it that begins at `copy`.
char* in_copy(char* copy, const void* shared);

// What lies at an address in shared memory, null where not all of it is the block's. The dynamic
// part begins at a multiple of the alignment that the kernel asks for, and of no more.
const char* shared_at(unsigned address, size_t size);

}  // namespace cusim
