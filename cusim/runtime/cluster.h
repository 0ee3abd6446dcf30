// The blocks of a cluster, which can access each other's shared memory, and the barrier of all
// their threads.
#pragma once
#include <cusim/runtime.h>

#include <vector>

namespace cusim {

class Block;

struct Cluster {
  std::vector<Block*> blocks;  // by rank
  unsigned phase = 0;          // how often all threads have met

  // Where blocks are several, they may be known to have begun only once their threads have met.
  Block& other(unsigned rank, const Site& site) const;

  // One of the copies that blocks have under way arrives, at one block. That all of a block's come
  // ahead of the others' suits worst: it may end while it still owes them theirs. Whether there was
  // any.
  bool deliver();

  // Ends the phase, if all threads that have not returned have arrived.
  void count();
};

}  // namespace cusim
