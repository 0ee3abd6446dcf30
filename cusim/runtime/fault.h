// Reports a kernel's fault: what happened, in which kernel, block and thread, and at which line.
#pragma once
#include <cusim/runtime.h>

#include <cstdint>
#include <string>

namespace cusim {

struct Thread;

// Tells the host what went wrong in the thread that runs, and ends the process: as on a GPU, there
// is no going on after a fault. `site` is where, if it is known.
[[noreturn, gnu::format(printf, 2, 3)]] void fault(const Site* site, const char* format, ...);
[[noreturn]] void fault(const std::string& site, const std::string& what);

// "(x, y, z)".
std::string text(uint3 index);

// "conv.cu:12".
std::string text(const Site& site);
std::string text(const char* file, unsigned line);

// Turns signals (a wild address, a division by zero, no end in sight) and the sanitizers' reports
// into faults. `socket` is the host's.
void install_fault_handlers(int socket);

// Seconds that a launch may take before it counts as one that never ends; 0 to stop counting.
void set_deadline(unsigned seconds);

}  // namespace cusim
