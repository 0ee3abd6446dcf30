// Blocks of a cluster, which reach each other's shared memory, and the barrier of all their
// threads.
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

  // Ends the phase, if all threads that have not returned have arrived.
  void count();
};

}  // namespace cusim
