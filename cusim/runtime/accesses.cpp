#include "accesses.h"

#if defined(CUSIM_PROFILE)
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "block.h"
#include "launch.h"
#include "memory.h"
#include "protocol.h"

namespace cusim {

namespace {

struct Place {
  const void* code;
  Access access;
  uint8_t size;
  bool shared;
  auto operator<=>(const Place&) const = default;
};

// What the lanes of a warp touch at once.
struct Instruction {
  uint32_t lanes = 0;
  std::array<uintptr_t, 32> at = {};
};

// The same, from the start of a row of all banks or of a sector: instructions that differ only in
// which are alike.
struct Pattern {
  uint32_t lanes;
  std::array<uint32_t, 32> at;
  auto operator<=>(const Pattern&) const = default;
};

constexpr uintptr_t row_of_banks = 128;  // and 4 sectors

std::map<std::pair<Place, unsigned>, unsigned> times;                   // by place and thread
std::map<std::tuple<Place, unsigned, unsigned>, Instruction> together;  // place, warp, time
std::map<Place, std::map<Pattern, uint64_t>> patterns;                  // how often each came

}  // namespace

void record(Access access, const void* at, size_t size, const void* place) {
  if (block == nullptr || block->thread == nullptr) return;
  const bool shared = in_shared_memory(at, 1);
  if (!shared && !is_device_memory(at)) return;  // the thread's own
  const unsigned thread = block->thread->linear;
  const Place where = {place, access, uint8_t(size), shared};
  Instruction& instruction = together[{where, thread / 32, times[{where, thread}]++}];
  instruction.lanes |= 1u << thread % 32;
  instruction.at[thread % 32] = uintptr_t(at);
}

void block_recorded() {
  for (const auto& [key, instruction] : together) {
    uintptr_t least = ~uintptr_t(0);
    for (unsigned i = 0; i < 32; i++) {
      if (instruction.lanes >> i & 1) least = std::min(least, instruction.at[i]);
    }
    least &= ~(row_of_banks - 1);
    Pattern pattern = {instruction.lanes, {}};
    for (unsigned i = 0; i < 32; i++) {
      if (instruction.lanes >> i & 1) pattern.at[i] = uint32_t(instruction.at[i] - least);
    }
    patterns[std::get<Place>(key)][pattern]++;
  }
  together.clear();
  times.clear();
}

std::string recorded() {
  std::string all;
  for (const auto& [place, found] : patterns) {
    Dl_info library = {};
    dladdr(place.code, &library);
    // The call returns to `code`: the instruction before is the place.
    const auto offset = uint64_t(static_cast<const char*>(place.code) -
                                 static_cast<const char*>(library.dli_fbase) - 1);
    for (const auto& [pattern, count] : found) {
      all += bytes_of(offset) + bytes_of(count) + bytes_of(uint32_t(place.access)) +
             bytes_of(uint32_t(place.size)) + bytes_of(uint32_t(place.shared)) +
             bytes_of(pattern.lanes) + bytes_of(pattern.at);
    }
  }
  patterns.clear();
  return all;
}

}  // namespace cusim
#endif
