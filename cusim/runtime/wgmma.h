// wgmma: a product is computed only when a warp waits for it, from the factors as they are then.
// Until then its sums hold NaN.
#pragma once
#include <cusim/runtime.h>

#include <cstdint>
#include <deque>
#include <vector>

namespace cusim {

// Registers of a warp that wgmma uses: an array of each lane.
struct Registers {
  char* at[32];
  size_t bytes;            // of a lane
  std::vector<char> seen;  // what they held at the last wgmma.fence, or when wgmma had written them
  int writers = 0;         // products under way that write them
};

struct WarpProduct {
  Operands operands;
  int n;
  uint64_t a, b;         // descriptors
  bool has_registers;    // A lies in them, not where `a` says
  const char* at[32];    // those registers, of each lane
  unsigned left[32][4];  // and what they held
  bool add;
  size_t sums;  // which of the warp's Registers
  int group;    // how many groups were committed before its own
  Site site;
};

// What a warp has under way, oldest first.
struct WarpProducts {
  std::vector<WarpProduct> products;
  std::vector<Registers> registers;
  int committed = 0;
  bool fenced = false;
  size_t issued = 0;
};

// What the warps of a warpgroup must issue alike: those products that some have issued only.
struct Warpgroup {
  struct Issued {
    Operands operands;
    int n;
    uint64_t a, b;
    bool has_registers, add;
    int warps;
    Site site;
  };
  std::deque<Issued> issued;
  size_t before = 0;  // that all warps have issued
};

// Which of a block's stores to shared memory wgmma and bulk copies, which are another proxy, may
// not read yet: no thread that knows of them has fenced since. Of plain stores only the builds know
// that are instrumented for it (about_to_store).
class Proxy {
 public:
  void begin();
  void stored(const void* at, size_t size);
  void fence();
  // A bulk copy writes there, itself through that proxy.
  void written(const void* at, size_t size);
  // Faults if a thread's store there is not fenced.
  void check_fenced(const Site& site, const char* reader, const void* at, size_t size) const;

 private:
  static constexpr size_t granule = 16;
  struct Store {
    unsigned epoch;   // barriers passed when it was made, and 1; 0 where there is none
    unsigned thread;  // which made it
  };
  std::vector<Store> stores_;  // by address
  unsigned fenced_ = 0;        // stores of earlier epochs are
};

// Faults if the thread returns with products of its warp under way.
void check_products_done(const WarpProducts& products);

// Faults if some warps issued what others of their warpgroup did not.
void check_warpgroups_alike(const std::vector<Warpgroup>& warpgroups);

}  // namespace cusim
