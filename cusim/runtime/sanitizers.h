// Tells the sanitizers which fiber runs, which thread waited for which, and which memory may be
// accessed. The runtime itself is not instrumented. In a build without sanitizers these functions
// do nothing.
#pragma once
#include <cstddef>

#if defined(CUSIM_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
extern "C" {
void __asan_report_load_n(void* address, size_t size);
void __asan_report_store_n(void* address, size_t size);
}
#endif
#if defined(CUSIM_TSAN)
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/tsan_interface.h>
extern "C" {
void __tsan_read_range(void* address, unsigned long size);
void __tsan_write_range(void* address, unsigned long size);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace cusim {

#if defined(CUSIM_TSAN)
constexpr bool tsan = true;
#else
constexpr bool tsan = false;
#endif

// Whether launches may overlap. To ThreadSanitizer blocks that share the bytes of their shared
// memory would race, and a profile takes all accesses of a warp for one block's.
#if defined(CUSIM_TSAN) || defined(CUSIM_PROFILE)
constexpr bool overlaps = false;
#else
constexpr bool overlaps = true;
#endif

// All that happened before a `released` happened before a later `acquired` of the same token.
inline void acquired([[maybe_unused]] char* token) {
#if defined(CUSIM_TSAN)
  __tsan_acquire(token);
#endif
}
inline void released([[maybe_unused]] char* token) {
#if defined(CUSIM_TSAN)
  __tsan_release(token);
#endif
}

// The runtime reads or writes on behalf of the thread that runs.
inline void reads([[maybe_unused]] const void* from, [[maybe_unused]] size_t size) {
#if defined(CUSIM_TSAN)
  __tsan_read_range(const_cast<void*>(from), size);
#elif defined(CUSIM_ASAN)
  void* start = const_cast<void*>(from);
  if (__asan_region_is_poisoned(start, size)) __asan_report_load_n(start, size);
#endif
}
inline void writes([[maybe_unused]] void* to, [[maybe_unused]] size_t size) {
#if defined(CUSIM_TSAN)
  __tsan_write_range(to, size);
#elif defined(CUSIM_ASAN)
  if (__asan_region_is_poisoned(to, size)) __asan_report_store_n(to, size);
#endif
}

// While there is one, the thread that runs touches what only the runtime knows of: its own tables,
// which the C library moves and frees, are no races between threads of a kernel.
class Unseen {
 public:
#if defined(CUSIM_TSAN)
  Unseen() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unseen() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  Unseen() {}
#endif
  Unseen(const Unseen&) = delete;
};

// Makes memory untouchable, or touchable again.
inline void forbid([[maybe_unused]] void* memory, [[maybe_unused]] size_t size) {
#if defined(CUSIM_ASAN)
  __asan_poison_memory_region(memory, size);
#endif
}
inline void allow([[maybe_unused]] void* memory, [[maybe_unused]] size_t size) {
#if defined(CUSIM_ASAN)
  __asan_unpoison_memory_region(memory, size);
#endif
}

}  // namespace cusim
