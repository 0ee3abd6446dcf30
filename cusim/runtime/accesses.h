// Records which addresses the lanes of a warp access with one instruction, in the build that
// profiles (CUSIM_PROFILE); in other builds these functions do nothing. The n-th visits of a warp's
// lanes to a place in the code count as one instruction.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace cusim {

enum class Access : uint8_t { Load, Store, CopyFrom, CopyTo, Matrix };

#if defined(CUSIM_PROFILE)
// The thread that runs accesses so many bytes there, by the instruction at `place`.
void record(Access access, const void* at, size_t size, const void* place);
// The block that runs has ended.
void block_recorded();
// Everything recorded since the last time, for cusim/accesses.py.
std::string recorded();
#else
inline void record(Access, const void*, size_t, const void*) {}
inline void block_recorded() {}
inline std::string recorded() { return ""; }
#endif

}  // namespace cusim
