// Barriers in shared memory, and the bulk copies that they count. A copy arrives only when no
// thread can continue without it. A copy to several blocks arrives at one block after another.
#pragma once
#include <cusim/runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sanitizers.h"

namespace cusim {

class Block;
struct Thread;

struct MemoryBarrier {
  unsigned arrivals;  // of each phase
  unsigned missing;   // of this one
  int64_t bytes;      // that it still expects; negative where they came before they were expected
  unsigned phase;     // how many have ended
  bool fenced;        // its initialisation, for other blocks of the cluster
  std::vector<Thread*> waiting;
  char token;
  // Blocks, bit by bit, that have arrived, and nothing shows yet that this has come; in which phase
  // the last one did.
  unsigned from, last_from;
};

class Bulk {
 public:
  void begin(Block& of);

  // How many copies are under way that this block began, or those of them to the block of a rank.
  size_t under_way() const { return copies_.size(); }
  size_t under_way_to(unsigned rank) const;

  // One of those to that block arrives.
  void deliver_to(unsigned rank);

  // Faults for a thread that waits in vain; for what is under way to or from a block that has
  // ended.
  void report_waiting(const Thread& thread) const;
  void check_done() const;

  void init(uint64_t* at, int arrivals, const Site& site);
  void fence_inits();
  void arrive(uint64_t* at, int bytes, const Site& site);
  // The barrier, for a thread that waits there; null where the phase has ended.
  void acquire(uint64_t* at);
  // All arrivals of the block of that rank have.
  void come_from(unsigned rank);
  MemoryBarrier* waits(uint64_t* at, int parity, const Site& site);

  // At most 16 bytes of a copy; those that are not read are zeros.
  struct Piece {
    char* to;
    const char* from;
    unsigned size, read;
  };
  // To the same places of each block whose bit of `blocks` is set, by rank.
  void begin_copy(std::vector<Piece> pieces, uint64_t* at, unsigned blocks, const Site& site);

 private:
  MemoryBarrier& barrier(uint64_t* at, const Site& site);
  void count(uint64_t* at, MemoryBarrier& barrier, const Site& site);
  void expect(const std::vector<Piece>& pieces, uint64_t* at, const Site& site);
  void arrived(const std::vector<Piece>& pieces, size_t bytes, uint64_t* at, const Site& site);

  struct Copy {
    std::shared_ptr<const std::vector<Piece>> pieces;  // the same for all blocks that get it
    size_t bytes;
    uint64_t* barrier;
    unsigned rank;  // of the block that gets it
    Site site;
  };
  Block* of_ = nullptr;
  std::map<uint64_t*, MemoryBarrier> barriers_;  // by where the block finds them when it runs
  std::vector<Copy> copies_;                     // the oldest first
};

}  // namespace cusim
