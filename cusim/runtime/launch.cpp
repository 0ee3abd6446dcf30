#include "launch.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <utility>

#include "accesses.h"
#include "fault.h"
#include "fiber.h"
#include "memory.h"
#include "sanitizers.h"

namespace cusim {

const Launch* launch = nullptr;
bool launch_is_early = false, launch_stops_at_trigger = false, launch_has_waited = false;

namespace {

uint64_t random_state;

// Dynamic shared memory ends where nothing can be touched, but for what alignment leaves between.
class DynamicShared {
 public:
  static constexpr size_t capacity = 256 << 10, guard = 64 << 10, alignment = 128;

  void place(size_t size) {
    if (memory_ == nullptr) map();
    size_ = size;
    start_ = memory_ + capacity - (size + alignment - 1) / alignment * alignment;
    allow(start_, capacity - size_t(start_ - memory_));
    forbid(start_ + size, size_t(memory_ + capacity - start_) - size);
  }
  char* start() const { return start_; }
  size_t size() const { return size_; }
  char* slack() const { return start_ + size_; }
  size_t slack_size() const { return size_t(memory_ + capacity - slack()); }

 private:
  void map() {
    void* memory = mmap(nullptr, capacity + guard, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED ||
        mprotect(static_cast<char*>(memory) + capacity, guard, PROT_NONE) != 0) {
      perror("cusim: no memory for dynamic shared memory");
      abort();
    }
    memory_ = static_cast<char*>(memory);
  }

  char* memory_ = nullptr;
  char* start_ = nullptr;
  size_t size_ = 0;
};

DynamicShared dynamic;

constexpr unsigned largest_alignment = 1024;

// Where static variables begin, aligned as they are in the host's memory, and where dynamic memory.
unsigned static_address() {
  return unsigned(uintptr_t(launch->module->static_shared) % largest_alignment);
}
unsigned dynamic_address() {
  const unsigned end = static_address() + unsigned(launch->module->static_shared_bytes);
  const unsigned start = (end + largest_alignment - 1) / largest_alignment * largest_alignment;
  return start + block->dynamic_alignment % largest_alignment;
}

void poison_shared_memory() {
  raw_fill(launch->module->static_shared, poison, launch->module->static_shared_bytes);
  raw_fill(dynamic.start(), poison, dynamic.size() + dynamic.slack_size());
}

void check_shared_memory() {
  if (const char* bad = first_unpoisoned(dynamic.slack(), dynamic.slack_size())) {
    fault(nullptr, "wrote out of bounds: %td bytes past the end of %zu bytes of shared memory",
          bad - dynamic.slack(), dynamic.size());
  }
}

uint3 unflatten(unsigned index, const dim3& sizes) {
  return {index % sizes.x, index / sizes.x % sizes.y, index / sizes.x / sizes.y};
}

// Where the copy of a block's shared memory has the static and the dynamic part: at the multiple of
// 16 bytes that they are at, for other blocks of a cluster may access vectors there.
constexpr size_t copy_alignment = alignof(std::max_align_t);
size_t static_in_copy() { return uintptr_t(launch->module->static_shared) % copy_alignment; }
size_t dynamic_in_copy() {
  const size_t end = static_in_copy() + launch->module->static_shared_bytes;
  return (end + copy_alignment - 1) / copy_alignment * copy_alignment;
}

struct Resident {
  Block block;
  bool has_run = false;

  void check_untouched() const {
    if (!block.apart.touched()) return;
    fault(nullptr, "wrote to the shared memory of block %u of the cluster, which had ended",
          block.rank);
  }
};

// The blocks of a cluster, one for most launches.
struct Residents {
  std::vector<std::unique_ptr<Resident>> members;
  Cluster cluster;
  size_t last = 0;  // the member that ran last

  template <class Is>
  bool all(Is is) const {
    return std::all_of(members.begin(), members.end(), [&](const auto& m) { return is(m->block); });
  }
  bool done() const {
    return all([](const Block& each) { return each.done(); });
  }
  bool triggered() const {
    return all([](const Block& each) { return each.triggered() || each.done(); });
  }

  // The next that can go on, in turn or any; none where all have ended, or some are left for other
  // launches. Copies arrive where otherwise none could.
  Resident* next() {
    for (;;) {
      Resident* const found =
          pick([](const Block& each) { return !each.held() && each.can_go_on(); });
      if (found != nullptr) return found;
      if (!all([](const Block& each) { return !each.held(); }) || done()) return nullptr;
      for (const auto& each : members) each->block.thread = nullptr;
      if (!cluster.deliver()) report_deadlock();
    }
  }

 private:
  template <class Is>
  Resident* pick(Is is) {
    const size_t count = members.size();
    const size_t first = launch->order == Order::Random ? random_below(unsigned(count)) : last + 1;
    for (size_t i = 0; i < count; i++) {
      const size_t turn = (first + i) % count;
      const size_t at = launch->order == Order::Reversed ? (2 * count - 1 - turn) % count : turn;
      if (!is(members[at]->block)) continue;
      last = turn;
      return members[at].get();
    }
    return nullptr;
  }

  [[noreturn]] void report_deadlock() {
    for (const auto& each : members) {
      if (each->block.done()) continue;
      block = &each->block;
      block->apart.take_out();
      block->report_deadlock();
    }
    abort();
  }
};

// The blocks of a launch, one after another. One that pauses is left for all that have not begun,
// and the last to pause goes on first: so what it should have waited for has not happened, if it
// can be so.
class Grid {
 public:
  // Each of those under way has a part of the stacks.
  Grid(std::unique_ptr<Launch> what, size_t part)
      : part(part), launch_(std::move(what)), first_fiber_(part * stacks) {
    order_.resize(count(launch_->grid) / count(launch_->cluster));
    std::iota(order_.begin(), order_.end(), 0u);
    random_state = launch_->seed * 0x9e3779b97f4a7c15u | 1;
    if (launch_->order == Order::Reversed) std::reverse(order_.begin(), order_.end());
    if (launch_->order == Order::Random) {
      for (size_t i = order_.size() - 1; i > 0; i--) {
        std::swap(order_[i], order_[random_below(unsigned(i + 1))]);
      }
    }
  }

  const size_t part;

  // Some blocks, up to where they let the next launch begin or, where that is before, to where
  // their threads wait for the launch before, which has not ended where this is `early`.
  void begin(bool early) {
    enter(early, !early);
    for (size_t i = 0; i < paused_; i++) {
      if (!residents_[i]->triggered()) go_on(*residents_[i]);
    }
    while (paused_ != 0 && residents_[paused_ - 1]->done()) paused_--;
    while (next_ < order_.size() && paused_ < first_blocks && has_room()) run_next();
    leave();
  }

  bool has_begun() const { return next_ != 0; }

  // Whether the next launch may begin.
  bool triggered() const {
    const auto let = [](const auto& each) { return each->triggered(); };
    return has_begun() &&
           std::all_of(residents_.begin(), residents_.begin() + ptrdiff_t(paused_), let);
  }

  void finish() {
    enter(false, false);
    // Those that have begun go on first, each until it pauses again: the others find it there.
    for (size_t i = 0; i < paused_; i++) {
      if (!residents_[i]->done()) go_on(*residents_[i]);
    }
    while (next_ < order_.size()) run_next();
    while (paused_ != 0) {
      Residents& last = *residents_[paused_ - 1];
      if (last.done() || go_on(last)) paused_--;
    }
    if (launch_->dependent && !waited_ && !launch_has_waited) {
      fault(nullptr, "no thread waited for the preceding launch");
    }
    Stores::launch_done();
    check_red_zones();
    leave();
  }

  bool has_room() const { return (paused_ + 2) * threads() <= stacks; }

  // Whether a block may be left with others begun; those of its own cluster are anyway.
  bool leaves_blocks() const { return has_room() || count(launch_->cluster) > 1; }

 private:
  static constexpr size_t stacks = max_fibers / max_overlapping, first_blocks = 4;

  static size_t count(const dim3& of) { return size_t(of.x) * of.y * of.z; }
  size_t threads() const { return count(launch_->block) * count(launch_->cluster); }

  void enter(bool is_early, bool stops_at_trigger);
  void leave();

  // Those that have paused. Whether they have ended.
  bool go_on(Residents& group) {
    if (group.members.size() > 1) {
      for (const auto& each : group.members) each->block.let_go_on();
      return run(group);
    }
    go_on(*group.members[0]);
    return group.done();
  }

  void run_next() {
    const unsigned number = order_[next_++];
    if (residents_.size() == paused_) {
      residents_.push_back(std::make_unique<Residents>());
      Residents& made = *residents_.back();
      for (size_t rank = 0; rank < count(launch_->cluster); rank++) {
        made.members.push_back(std::make_unique<Resident>());
        made.cluster.blocks.push_back(&made.members.back()->block);
      }
    }
    Residents& group = *residents_[paused_];
    group.cluster.phase = 0;
    group.last = group.members.size() - 1;
    poison_shared_memory();
    for (unsigned rank = 0; rank < group.members.size(); rank++) {
      Resident& each = *group.members[rank];
      const size_t thread = paused_ * threads() + rank * count(launch_->block);
      each.has_run = false;
      each.block.begin(block_of(number, rank), first_fiber_ + thread, group.cluster, rank);
      if (group.members.size() > 1) each.block.apart.begin();
    }
    if (group.members.size() > 1 ? !run(group) : !run(*group.members[0])) paused_++;
  }

  bool run(Residents& group) {
    while (Resident* each = group.next()) go_on(*each);
    if (group.done()) {
      for (const auto& each : group.members) each->check_untouched();
    }
    return group.done();
  }

  void go_on(Resident& resident) {
    resident.block.apart.take_out();
    if (resident.has_run) resident.block.stores.enter();
    run(resident);
  }

  bool run(Resident& resident) {
    resident.has_run = true;
    resident.block.run();
    check_shared_memory();
    if (resident.block.paused()) {
      resident.block.stores.leave();
      resident.block.apart.put_away();
    } else {
      resident.block.stores.end();
      block_recorded();
      if (resident.block.cluster->blocks.size() > 1) {
        resident.block.apart.end();
      }
    }
    return !resident.block.paused();
  }

  // Of a cluster and a rank in it.
  static uint3 block_of(unsigned number, unsigned rank) {
    const dim3 size = launch->cluster;
    const dim3 clusters(gridDim.x / size.x, gridDim.y / size.y, gridDim.z / size.z);
    const uint3 first = unflatten(number, clusters), inside = unflatten(rank, size);
    return {first.x * size.x + inside.x, first.y * size.y + inside.y, first.z * size.z + inside.z};
  }

  std::unique_ptr<Launch> launch_;
  std::vector<unsigned> order_;
  std::vector<std::unique_ptr<Residents>> residents_;
  size_t next_ = 0, paused_ = 0, first_fiber_;
  bool waited_ = false;
};

Grid* grid = nullptr;  // under way

void Grid::enter(bool is_early, bool stops_at_trigger) {
  grid = this;
  launch = launch_.get();
  gridDim = launch->grid;
  blockDim = launch->block;
  launch_is_early = is_early;
  launch_stops_at_trigger = stops_at_trigger;
  launch_has_waited = false;
  dynamic.place(launch->dynamic_shared_bytes);
  set_deadline(launch->deadline);
}

void Grid::leave() {
  waited_ |= launch_has_waited;
  set_deadline(0);
  grid = nullptr;
  block = nullptr;
  launch = nullptr;
}

std::vector<std::unique_ptr<Grid>> begun;  // and not run, in their order

std::unique_ptr<Grid> grid_of(std::unique_ptr<Launch> what) {
  size_t part = 0;
  const auto taken = [&](const auto& each) { return each->part == part; };
  while (std::any_of(begun.begin(), begun.end(), taken)) part++;
  return std::make_unique<Grid>(std::move(what), part);
}

// All that may begin does: the first until it lets the next one, and so on.
void begin_more() {
  if (!overlaps || begun.size() < 2) return;
  if (!begun[0]->triggered()) begun[0]->begin(false);
  for (size_t i = 1; i < begun.size() && begun[i - 1]->triggered(); i++) {
    if (!begun[i]->has_begun()) begun[i]->begin(true);
  }
}

}  // namespace

void begin(std::unique_ptr<Launch> what) {
  begun.push_back(grid_of(std::move(what)));
  begin_more();
}

void run(std::unique_ptr<Launch> what, bool was_begun) {
  if (!was_begun) begun.push_back(grid_of(std::move(what)));
  begin_more();
  const std::unique_ptr<Grid> first = std::move(begun.front());
  begun.erase(begun.begin());
  first->finish();
}

void about_to_access(bool write, const void* at, size_t size) {
  if (launch == nullptr || !launch->dependent || block == nullptr || block->thread == nullptr ||
      block->thread->waited || !is_device_memory(at)) {
    return;
  }
  if (write || !is_constant(at, size)) {
    fault(nullptr, "%s before it waited for the preceding launch: %s", write ? "wrote" : "read",
          describe_address(at).c_str());
  }
}

// Not for ThreadSanitizer, to which blocks that share the bytes of their shared memory would race.
void before_others() {
  if (!tsan && launch->order == Order::Random && grid->leaves_blocks()) block->pause();
}

// Marsaglia's xorshift64.
unsigned random_below(unsigned bound) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return unsigned((random_state >> 32) * bound >> 32);
}

bool in_shared_memory(const void* start, size_t size) {
  const char* first = static_cast<const char*>(start);
  const auto inside = [=](const char* memory, size_t bytes) {
    return first >= memory && first + size <= memory + bytes;
  };
  return inside(dynamic.start(), dynamic.size()) ||
         inside(launch->module->static_shared, launch->module->static_shared_bytes);
}

// With the slack, which blocks of another launch may use.
size_t shared_copy_size() { return dynamic_in_copy() + dynamic.size() + dynamic.slack_size(); }

void copy_shared_to(char* copy) {
  raw_copy(copy + static_in_copy(), launch->module->static_shared,
           launch->module->static_shared_bytes);
  raw_copy(copy + dynamic_in_copy(), dynamic.start(), dynamic.size() + dynamic.slack_size());
}

void copy_shared_from(const char* copy) {
  raw_copy(launch->module->static_shared, copy + static_in_copy(),
           launch->module->static_shared_bytes);
  raw_copy(dynamic.start(), copy + dynamic_in_copy(), dynamic.size() + dynamic.slack_size());
}

char* in_copy(char* copy, const void* shared) {
  const char* const at = static_cast<const char*>(shared);
  if (at >= dynamic.start() && at < dynamic.start() + dynamic.size()) {
    return copy + dynamic_in_copy() + (at - dynamic.start());
  }
  return copy + static_in_copy() + (at - launch->module->static_shared);
}

void* dynamic_shared(size_t alignment) {
  if (alignment > largest_alignment) {
    fault(nullptr, "dynamic shared memory is aligned to at most %u bytes, not %zu",
          largest_alignment, alignment);
  }
  block->dynamic_alignment = std::max(block->dynamic_alignment, unsigned(alignment));
  return dynamic.start();
}

unsigned shared_address(const void* shared) {
  const char* at = static_cast<const char*>(shared);
  const size_t into = size_t(at - dynamic.start());
  if (at >= dynamic.start() && into <= dynamic.size()) return dynamic_address() + unsigned(into);
  return static_address() + unsigned(at - launch->module->static_shared);
}

const char* shared_at(unsigned address, size_t size) {
  const char* at = address >= dynamic_address()
                       ? dynamic.start() + (address - dynamic_address())
                       : launch->module->static_shared + (int(address) - int(static_address()));
  return in_shared_memory(at, size) ? at : nullptr;
}

}  // namespace cusim
