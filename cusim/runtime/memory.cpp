#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "fault.h"
#include "sanitizers.h"

namespace cusim {

namespace {

struct Allocation {
  char* start;
  size_t size;
  bool constant;

  const char* end() const { return start + size; }
  // What is mapped for it: whole pages, both red zones in them.
  char* first_page() const {
    return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(start - red_zone) & -page());
  }
  size_t pages_size() const {
    const char* last = start + size + red_zone;
    return (size_t(last - first_page()) + page() - 1) & -page();
  }
  static size_t page() { return size_t(sysconf(_SC_PAGESIZE)); }
};

std::vector<Allocation> allocations;
const char* memory_begin;
const char* memory_end;

// The allocation in which all of it lies.
const Allocation* holding(const void* start, size_t size) {
  const char* first = static_cast<const char*>(start);
  const auto found = std::find_if(allocations.begin(), allocations.end(), [=](const Allocation& a) {
    return first >= a.start && first + size <= a.end();
  });
  return found == allocations.end() ? nullptr : &*found;
}

void set_protection(const Allocation& allocation, int protection) {
  if (mprotect(allocation.first_page(), allocation.pages_size(), protection) != 0) {
    perror("cusim: mprotect");
    abort();
  }
}

}  // namespace

char* map_device_memory(int file, size_t size) {
  void* base = mmap(nullptr, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (base == MAP_FAILED) {
    perror("cusim: no address space for device memory");
    abort();
  }
  memory_begin = static_cast<char*>(base);
  memory_end = memory_begin + size;
  return static_cast<char*>(base);
}

void allocate(char* start, size_t size, bool constant) {
  const Allocation allocation = {start, size, constant};
  set_protection(allocation, PROT_READ | PROT_WRITE);
  raw_fill(allocation.first_page(), poison, allocation.pages_size());
  forbid(allocation.first_page(), size_t(start - allocation.first_page()));
  forbid(start + size, size_t(allocation.first_page() + allocation.pages_size() - start - size));
  allocations.push_back(allocation);
}

void release(char* start) {
  const auto found = std::find_if(allocations.begin(), allocations.end(),
                                  [=](const Allocation& a) { return a.start == start; });
  if (found == allocations.end()) return;
  allow(found->first_page(), found->pages_size());
  madvise(found->first_page(), found->pages_size(), MADV_REMOVE);
  set_protection(*found, PROT_NONE);
  allocations.erase(found);
}

void check_red_zones() {
  for (const Allocation& allocation : allocations) {
    const char* before = allocation.first_page();
    const char* bad = first_unpoisoned(before, size_t(allocation.start - before));
    if (bad == nullptr) {
      const char* end = before + allocation.pages_size();
      bad = first_unpoisoned(allocation.end(), size_t(end - allocation.end()));
    }
    if (bad != nullptr) {
      fault(nullptr, "wrote out of bounds: %s", describe_address(bad).c_str());
    }
  }
}

bool is_device_memory(const void* address) {
  return address >= memory_begin && address < memory_end;
}

bool in_device_memory(const void* start, size_t size) { return holding(start, size) != nullptr; }

bool is_constant(const void* start, size_t size) {
  const Allocation* found = holding(start, size);
  return found != nullptr && found->constant;
}

std::string describe_address(const void* address) {
  const char* at = static_cast<const char*>(address);
  char hexadecimal[32];
  snprintf(hexadecimal, sizeof hexadecimal, "%p", address);
  const auto distance = [=](const Allocation& a) {
    return at < a.start ? size_t(a.start - at) : at >= a.end() ? size_t(at - a.end()) : 0;
  };
  const auto nearest = std::min_element(
      allocations.begin(), allocations.end(),
      [&](const Allocation& a, const Allocation& b) { return distance(a) < distance(b); });
  if (nearest == allocations.end()) return std::string(hexadecimal) + ", with nothing allocated";
  const char* side = at < nearest->start    ? " bytes before"
                     : at >= nearest->end() ? " bytes past the end of"
                                            : " bytes into";
  const size_t away = at >= nearest->start && at < nearest->end() ? size_t(at - nearest->start)
                                                                  : distance(*nearest);
  return std::string(hexadecimal) + ", " + std::to_string(away) + side + " a buffer of " +
         std::to_string(nearest->size) + " bytes";
}

// Loops that must stay loops: memset and memcpy are the sanitizers' own.
__attribute__((optimize("no-tree-loop-distribute-patterns"))) void raw_fill(void* to,
                                                                            unsigned char value,
                                                                            size_t size) {
  auto* bytes = static_cast<unsigned char*>(to);
  for (size_t i = 0; i < size; i++) bytes[i] = value;
}

__attribute__((optimize("no-tree-loop-distribute-patterns"))) void raw_copy(void* to,
                                                                            const void* from,
                                                                            size_t size) {
  auto* target = static_cast<unsigned char*>(to);
  const auto* source = static_cast<const unsigned char*>(from);
  for (size_t i = 0; i < size; i++) target[i] = source[i];
}

const char* first_unpoisoned(const char* start, size_t size) {
  size_t i = 0;
  for (; i + 64 <= size; i += 64) {
    unsigned char all = poison;
    for (size_t j = 0; j < 64; j++) all &= static_cast<unsigned char>(start[i + j]);
    if (all != poison) break;
  }
  for (; i < size; i++) {
    if (static_cast<unsigned char>(start[i]) != poison) return start + i;
  }
  return nullptr;
}

}  // namespace cusim
