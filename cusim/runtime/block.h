// A thread block on fibers: which thread runs, which threads wait for what, and in which order they
// continue.
#pragma once
#include <cusim/runtime.h>

#include <cstdint>
#include <vector>

#include "apart.h"
#include "bulk.h"
#include "cluster.h"
#include "copies.h"
#include "fiber.h"
#include "stores.h"
#include "wgmma.h"

namespace cusim {

// Forward and Reversed keep warps in step: each thread goes on when all that were ready before it
// have. In Random order one warp, any, runs ahead until none of its threads can go on.
enum class Order : uint8_t { Forward, Reversed, Random };

enum class State : uint8_t {
  Ready,
  AtBarrier,
  AtWarp,
  Done,
  AtPrevious,
  AtMemoryBarrier,
  AtCluster
};

constexpr size_t max_threads = 1024;

struct Thread {
  uint3 index;
  unsigned linear;
  State state;
  uint8_t barriers;  // passed so far, modulo 2
  bool waited;       // for the launch before
  bool arrived;      // at the cluster's barrier, whose phase has not ended
  bool must_wait;    // there, before it may arrive again
  Fiber* fiber;      // none until it first runs, and once it has returned
  Site site;         // where it waits
  Copies copies;
};

// What a warp does as one, given what each lane handed over.
using Together = void (*)(const uint64_t (&values)[32]);

// Threads that can go on, first in, first out; each is in it once at most.
template <size_t SIZE>
struct Queue {
  static_assert((SIZE & (SIZE - 1)) == 0);
  Thread* threads[SIZE];
  size_t head = 0, tail = 0;

  bool empty() const { return head == tail; }
  void clear() { head = tail = 0; }
  void put(Thread& thread) { threads[tail++ % SIZE] = &thread; }
  Thread* take() { return threads[head++ % SIZE]; }
};

// Where lanes that name the same mask meet. What they hand over is read after they have met, when
// some may be on their way to meet again: hence two of each. Three are not needed, for all that met
// go on once before any goes on twice (the queue is first in, first out).
struct Meeting {
  Site site;
  Together together;  // null where the lanes only hand over
  unsigned mask;
  unsigned arrived;  // lanes that wait
  unsigned unread;   // lanes that have met, and not gone on yet
  unsigned parity;
  WarpOp op;
  char tokens[2];
  unsigned came[2];
  uint64_t values[2][32];
};

struct Warp {
  unsigned live;     // lanes that exist and have not returned
  unsigned pending;  // meetings at which some wait
  Meeting meetings[32];
  Queue<32> ready;
  WarpProducts products;

  // That of the mask. One can always be had: a lane is at one meeting at most.
  Meeting& meeting(unsigned mask);
  unsigned bit(const Meeting& meeting) const { return 1u << (&meeting - meetings); }
};

class Block {
 public:
  // All threads of a block of blockDim, ready to run on stacks from `first_fiber` on.
  void begin(uint3 index, size_t first_fiber, Cluster& cluster, unsigned rank);

  // Runs until every thread has returned, one pauses the block, or all wait for what other blocks
  // of the cluster may do; anything else is a fault.
  void run();

  bool done() const { return live_ == 0; }
  bool paused() const { return paused_; }
  bool triggered() const { return triggered_; }
  // Whether it is left for other launches, until they let it go on; whether a thread can.
  bool held() const { return held_; }
  void let_go_on();
  bool can_go_on() const;

  // What a thread calls.
  int barrier(int predicate, Site site);
  void pause();
  void let_next_begin();
  void wait_for_previous();
  void wait_at(uint64_t* barrier, int parity, Site site);
  // A thread that waited there.
  void go_on(Thread& waiting) { ready(waiting); }
  void cluster_arrive(bool releases, Site site);
  void cluster_wait(Site site);
  bool all_arrived() const { return arrived_ == live_; }
  void release_cluster();
  [[noreturn]] void report_deadlock();
  Met meet(WarpOp op, unsigned mask, uint64_t value, Site site, Together together);

  unsigned barriers() const { return barriers_; }  // that all threads have passed

  // What the block has where it would find `shared` if it ran.
  char* place(const void* shared);
  void expose(const void* shared, size_t size);
  void written(const void* shared, size_t size);

  uint3 index;
  Cluster* cluster = nullptr;
  unsigned rank = 0;         // in it
  Apart apart;               // its shared memory, where others may reach it
  Thread* thread = nullptr;  // the one that runs
  Stores stores;
  Proxy proxy;
  Bulk bulk;
  unsigned dynamic_alignment = 128;  // that the kernel asks for
  Warp& warp() { return warps_[thread->linear / 32]; }
  Warpgroup& warpgroup() { return warpgroups_[thread->linear / 128]; }

 private:
  static void thread_main();
  void suspend();
  void become(Thread& next);
  void finish();
  void ready(Thread& thread);
  Thread* take();
  Thread* next();
  void release_barrier();
  void complete(Warp& warp, Meeting& meeting);
  void shuffle_order();

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<Warpgroup> warpgroups_;
  std::vector<unsigned> order_;  // of threads
  Queue<max_threads> queue_;     // where warps are kept in step; else each has its own
  std::vector<Warp*> behind_;    // warps that could go on, but for the one that is ahead
  Warp* ahead_ = nullptr;
  unsigned count_ = 0, live_ = 0, at_barrier_ = 0, barriers_ = 0, arrived_ = 0;
  int predicates_[2] = {};
  std::vector<Thread*> at_previous_;  // threads that wait for the launch before
  const Thread* first_at_barrier_ = nullptr;
  size_t first_fiber_ = 0, fibers_used_ = 0;
  bool paused_ = false, triggered_ = false, held_ = false;
  bool releases_ = true;      // all that have arrived in this phase of the cluster's barrier
  std::vector<Fiber*> idle_;  // stacks whose thread has returned
  char start_ = 0, end_ = 0, barrier_tokens_[2] = {};
};

// The block that runs; there is none between launches.
extern Block* block;

}  // namespace cusim
