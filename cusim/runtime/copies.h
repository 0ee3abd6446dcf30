// cp.async: a copy happens only when a thread waits for it.
#pragma once
#include <vector>

namespace cusim {

struct Thread;

// A thread's copies under way, oldest first. Until a copy is done its target holds NaN: so reading
// before waiting, and copying over what others still read, both show.
struct Copies {
  struct Copy {
    char* shared;
    const char* global;
    int bytes;
    int read;   // of them; the rest becomes zeros
    int group;  // how many groups were committed before its own
  };
  std::vector<Copy> copies;
  int committed = 0;
};

// Faults if the thread returns with copies under way.
void check_copies_done(Thread& thread);

}  // namespace cusim
