#include "block.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "copies.h"
#include "fault.h"
#include "launch.h"
#include "sanitizers.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cusim {

Block* block = nullptr;
uint64_t steps = 0;

void Block::begin(uint3 where, size_t first_fiber, Cluster& in, unsigned rank_in_it) {
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  index = where;
  count_ = live_ = threads;
  cluster = &in;
  rank = rank_in_it;
  at_barrier_ = barriers_ = arrived_ = 0;
  first_fiber_ = first_fiber;
  fibers_used_ = 0;
  idle_.clear();
  threads_.resize(threads);
  warps_.resize((threads + 31) / 32);
  queue_.clear();
  behind_.clear();
  ahead_ = nullptr;
  triggered_ = held_ = false;
  releases_ = true;
  order_.resize(threads);
  uint3 at = {0, 0, 0};
  for (unsigned i = 0; i < threads; i++) {
    Thread& thread = threads_[i];
    thread.index = at;
    thread.linear = i;
    thread.state = State::Done;
    thread.barriers = 0;
    thread.waited = thread.arrived = thread.must_wait = false;
    thread.fiber = nullptr;
    order_[i] = launch->order == Order::Reversed ? threads - 1 - i : i;
    if (++at.x == blockDim.x) {
      at.x = 0;
      if (++at.y == blockDim.y) at.y = 0, at.z++;
    }
  }
  for (size_t i = 0; i < warps_.size(); i++) {
    const unsigned lanes = std::min(32u, threads - unsigned(i) * 32);
    warps_[i].live = lanes == 32 ? ~0u : (1u << lanes) - 1;
    warps_[i].ready.clear();
    warps_[i].products = {};
  }
  warpgroups_.assign((threads + 127) / 128, {});
  proxy.begin();
  bulk.begin(*this);
  dynamic_alignment = 128;
  shuffle_order();
  // To ThreadSanitizer all that a thread did before it made another happened before that.
  for (unsigned i = 0; tsan && i < threads; i++) fiber(first_fiber_ + i);
  for (unsigned i : order_) ready(threads_[i]);
  released(&start_);
}

void Block::run() {
  block = this;
  blockIdx = index;
  paused_ = false;
  let_go_on();
  released(&start_);
  if (Thread* first = next()) {
    become(*first);
    switch_to(*first->fiber);
  }
  acquired(&end_);
  thread = nullptr;
  if (!at_previous_.empty()) paused_ = held_ = true;
  if (!paused_ && live_ != 0) {
    if (cluster->blocks.size() == 1) report_deadlock();
    paused_ = true;
  }
  if (paused_) return;
  bulk.check_done();
  check_warpgroups_alike(warpgroups_);
}

int Block::barrier(int predicate, Site site) {
  Thread& self = *thread;
  const unsigned parity = self.barriers;
  self.barriers ^= 1;
  if (at_barrier_ == 0) {
    first_at_barrier_ = &self;
    predicates_[parity] = 0;
  } else if (first_at_barrier_->site.line() != site.line()) {
    fault(&site, "divergent __syncthreads: thread %s waits at %s, another barrier;",
          text(first_at_barrier_->index).c_str(), text(first_at_barrier_->site).c_str());
  }
  predicates_[parity] += predicate != 0;
  released(&barrier_tokens_[parity]);
  self.state = State::AtBarrier;
  self.site = site;
  if (++at_barrier_ == live_) release_barrier();
  suspend();
  acquired(&barrier_tokens_[parity]);
  return predicates_[parity];
}

// The thread that runs, and with it its block, goes on when the block is run again.
void Block::pause() {
  paused_ = true;
  ready(*thread);
  switch_to(main_fiber);
}

// The next launch may begin once a thread of each block has called this; while the launches behind
// this one begin, the block stays here.
void Block::let_next_begin() {
  if (std::exchange(triggered_, true) || !launch_stops_at_trigger) return;
  held_ = true;
  pause();
}

void Block::wait_for_previous() {
  Thread& self = *thread;
  if (launch_is_early && !self.waited) {
    self.state = State::AtPrevious;
    at_previous_.push_back(&self);
    suspend();
  }
  self.waited = launch_has_waited = true;
}

void Block::cluster_arrive(bool releases, Site site) {
  Thread& self = *thread;
  if (self.arrived) fault(&site, "arrives again at the cluster's barrier, before its phase ended");
  if (self.must_wait) fault(&site, "arrives again at the cluster's barrier, without a wait");
  self.arrived = self.must_wait = true;
  arrived_++;
  releases_ &= releases;
  if (releases) stores.fence();
  cluster->count();
}

void Block::cluster_wait(Site site) {
  Thread& self = *thread;
  if (!self.must_wait) fault(&site, "waits at the cluster's barrier before it has arrived there");
  self.must_wait = false;
  if (!self.arrived) return;
  self.state = State::AtCluster;
  self.site = site;
  suspend();
}

void Block::release_cluster() {
  arrived_ = 0;
  if (cluster->blocks.size() > 1 && !done()) {
    apart.met(releases_);
    for (Block* each : cluster->blocks) {
      if (releases_) each->bulk.come_from(rank);
    }
  }
  releases_ = true;
  shuffle_order();
  for (unsigned i : order_) {
    Thread& each = threads_[i];
    each.arrived = false;
    if (each.state == State::AtCluster) ready(each);
  }
}

char* Block::place(const void* shared) {
  return apart.away() ? apart.place(shared) : static_cast<char*>(const_cast<void*>(shared));
}

void Block::expose(const void* shared, size_t size) {
  if (cluster->blocks.size() > 1) apart.expose(shared, size);
}

void Block::written(const void* shared, size_t size) {
  if (cluster->blocks.size() > 1) apart.written(shared, size);
}

void Block::let_go_on() {
  held_ = false;
  for (Thread* each : at_previous_) ready(*each);
  at_previous_.clear();
}

bool Block::can_go_on() const {
  if (launch->order != Order::Random) return !queue_.empty();
  return (ahead_ != nullptr && !ahead_->ready.empty()) || !behind_.empty();
}

Meeting& Warp::meeting(unsigned mask) {
  Meeting* unused = nullptr;
  for (Meeting& meeting : meetings) {
    if (meeting.mask == mask) return meeting;
    if (unused == nullptr && (meeting.arrived | meeting.unread) == 0) unused = &meeting;
  }
  unused->mask = mask;
  return *unused;
}

Met Block::meet(WarpOp op, unsigned mask, uint64_t value, Site site, Together together) {
  Thread& self = *thread;
  Warp& lanes = warp();
  const unsigned lane = self.linear % 32;
  if ((mask >> lane & 1) == 0) {
    fault(&site, "lane %u names mask %#x, which lacks the lane itself,", lane, mask);
  }
  if (together != nullptr && lanes.live != ~0u) {
    fault(&site, "ldmatrix, mma or wgmma without all 32 lanes (only %#x)", lanes.live);
  }
  Meeting& meeting = lanes.meeting(mask);
  if (meeting.arrived == 0) {
    meeting.op = op;
    meeting.site = site;
  } else if (meeting.op != op || meeting.site.line() != site.line()) {
    fault(&site, "lane %u meets lanes %#x from %s:", lane, meeting.arrived,
          text(meeting.site).c_str());
  }
  const unsigned parity = meeting.parity;
  meeting.values[parity][lane] = value;
  meeting.arrived |= 1u << lane;
  meeting.together = together;
  lanes.pending |= lanes.bit(meeting);
  released(&meeting.tokens[parity]);
  self.state = State::AtWarp;
  self.site = site;
  if (meeting.arrived == (mask & lanes.live)) complete(lanes, meeting);
  suspend();
  meeting.unread &= ~(1u << lane);
  acquired(&meeting.tokens[parity]);
  return {meeting.values[parity], meeting.came[parity]};
}

// Lanes go on in the order of the launch.
void Block::complete(Warp& warp, Meeting& meeting) {
  if (meeting.together != nullptr) {
    meeting.together(meeting.values[meeting.parity]);
    released(&meeting.tokens[meeting.parity]);  // what it did, by the last lane, is behind all
  }
  const unsigned came = std::exchange(meeting.arrived, 0);
  meeting.came[meeting.parity] = came;
  meeting.unread |= came;
  meeting.parity ^= 1;
  warp.pending &= ~warp.bit(meeting);
  Thread* first = &threads_[size_t(&warp - warps_.data()) * 32];
  uint8_t order[32];
  for (unsigned i = 0; i < 32; i++)
    order[i] = uint8_t(launch->order == Order::Reversed ? 31 - i : i);
  if (launch->order == Order::Random) {
    for (unsigned i = 31; i > 0; i--) std::swap(order[i], order[random_below(i + 1)]);
  }
  for (unsigned lane : order) {
    if (came >> lane & 1) ready(first[lane]);
  }
}

// A thread has returned: those that wait for it need not any more.
void Block::finish() {
  Thread& self = *thread;
  check_copies_done(self);
  check_products_done(warp().products);
  self.state = State::Done;
  live_--;
  Warp& lanes = warp();
  lanes.live &= ~(1u << self.linear % 32);
  for (unsigned pending = lanes.pending; pending != 0; pending &= pending - 1) {
    Meeting& meeting = lanes.meetings[std::countr_zero(pending)];
    if (meeting.together != nullptr) {
      fault(&meeting.site, "returned while other lanes of its warp wait in ldmatrix, mma or wgmma");
    }
    if (meeting.arrived == (meeting.mask & lanes.live)) complete(lanes, meeting);
  }
  if (live_ != 0 && at_barrier_ == live_) release_barrier();
  if (self.arrived) arrived_--;
  self.arrived = false;
  cluster->count();
}

void Block::release_barrier() {
  at_barrier_ = 0;
  barriers_++;
  shuffle_order();
  for (unsigned i : order_) {
    if (threads_[i].state == State::AtBarrier) ready(threads_[i]);
  }
}

void Block::shuffle_order() {
  if (launch->order != Order::Random) return;
  for (unsigned i = count_ - 1; i > 0; i--) std::swap(order_[i], order_[random_below(i + 1)]);
}

void Block::ready(Thread& thread) {
  thread.state = State::Ready;
  if (launch->order != Order::Random) {
    queue_.put(thread);
    return;
  }
  Warp& warp = warps_[thread.linear / 32];
  if (&warp != ahead_ && warp.ready.empty()) behind_.push_back(&warp);
  warp.ready.put(thread);
}

Thread* Block::take() {
  if (launch->order != Order::Random) return queue_.empty() ? nullptr : queue_.take();
  if (ahead_ == nullptr || ahead_->ready.empty()) {
    ahead_ = nullptr;
    if (behind_.empty()) return nullptr;
    std::swap(behind_[random_below(unsigned(behind_.size()))], behind_.back());
    ahead_ = behind_.back();
    behind_.pop_back();
  }
  return ahead_->ready.take();
}

// The thread to run; null where none can. Copies arrive only then, and not while the block may yet
// be left for the launch before, or for others of its cluster.
Thread* Block::next() {
  Thread* found = take();
  while (found == nullptr && live_ != 0 && at_previous_.empty() && cluster->blocks.size() == 1 &&
         cluster->deliver()) {
    found = take();
  }
  return found;
}

void Block::wait_at(uint64_t* at, int parity, Site site) {
  while (MemoryBarrier* barrier = bulk.waits(at, parity, site)) {
    thread->state = State::AtMemoryBarrier;
    thread->site = site;
    {
      const Unseen tables;
      barrier->waiting.push_back(thread);
    }
    suspend();
  }
  bulk.acquire(at);
}

// The thread that runs has nothing to do until made ready again, which may have happened already.
void Block::suspend() {
  Thread* next = this->next();
  if (next == thread) return;
  if (next != nullptr) become(*next);
  switch_to(next != nullptr ? *next->fiber : main_fiber);
}

// Makes `next` the thread that runs, but for the switch to its stack.
void Block::become(Thread& next) {
  thread = &next;
  threadIdx = next.index;
  steps++;
  if (next.fiber != nullptr) return;
  if (tsan) {
    next.fiber = fiber(first_fiber_ + next.linear);
  } else if (idle_.empty()) {
    next.fiber = fiber(first_fiber_ + fibers_used_++);
  } else {
    next.fiber = idle_.back();
    idle_.pop_back();
  }
  prepare(*next.fiber, thread_main);
}

// What every stack runs. A thread that returns leaves its stack to the next that has none, at no
// cost: a kernel without barriers never switches. Not so for ThreadSanitizer, to which one stack is
// one thread, and its reuse by another a race.
void Block::thread_main() {
  entered();
  for (;;) {
    Block& self = *block;
    acquired(&self.start_);
    launch->module->entry.call(launch->argument_pointers.data());
    released(&self.end_);
    self.finish();
    Thread& done = *self.thread;
    Thread* next = self.next();
    Fiber* stack = std::exchange(done.fiber, nullptr);
    if (!tsan && next != nullptr && next->fiber == nullptr) {
      next->fiber = stack;
      self.become(*next);
      continue;
    }
    if (!tsan) self.idle_.push_back(stack);
    if (next != nullptr) self.become(*next);
    switch_to(next != nullptr ? *next->fiber : main_fiber, true);
  }
}

// All that are at the block's barrier would have gone on: some wait at an mbarrier, or else for
// lanes of their warp.
void Block::report_deadlock() {
  for (Thread& each : threads_) {
    if (each.state != State::AtMemoryBarrier) continue;
    thread = &each;
    bulk.report_waiting(each);
  }
  for (Thread& each : threads_) {
    if (each.state != State::AtCluster) continue;
    thread = &each;
    fault(&each.site, "the cluster's barrier never ends: not all threads of its blocks arrive,");
  }
  static const char* const doing[] = {"can go on",
                                      "waits in __syncthreads at",
                                      "waits at",
                                      "has returned",
                                      "waits for the preceding launch at",
                                      "waits at the mbarrier of",
                                      "waits for the cluster at"};
  const auto told = [](const Thread& thread) {
    std::string what = "thread " + text(thread.index) + " " + doing[int(thread.state)];
    return thread.state == State::Done ? what : what + " " + text(thread.site);
  };
  size_t i = 0;
  while (warps_[i].pending == 0) i++;
  const Meeting& meeting = warps_[i].meetings[std::countr_zero(warps_[i].pending)];
  const unsigned missing = meeting.mask & warps_[i].live & ~meeting.arrived;
  thread = &threads_[i * 32 + size_t(std::countr_zero(meeting.arrived))];
  const Thread& other = threads_[i * 32 + size_t(std::countr_zero(missing))];
  fault(&meeting.site, "lanes %#x of warp %zu are missing: %s, while lanes %#x wait", missing, i,
        told(other).c_str(), meeting.arrived);
}

void let_next_begin() { block->let_next_begin(); }

void wait_for_previous() { block->wait_for_previous(); }

int barrier(int predicate, Site site) { return block->barrier(predicate, site); }

Met meet(WarpOp op, unsigned mask, uint64_t value, Site site) {
  return block->meet(op, mask, value, site, nullptr);
}

unsigned lane() { return block->thread->linear % 32; }

unsigned live_lanes() { return block->warp().live; }

}  // namespace cusim
