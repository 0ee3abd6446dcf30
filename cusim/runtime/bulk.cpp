// PTX ISA, 9.7.13.15 "mbarrier" and 5.5 "Tensors": tiles, im2col, swizzles.
#include "bulk.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "block.h"
#include "fault.h"
#include "launch.h"
#include "memory.h"
#include "sanitizers.h"

namespace cusim {

namespace {

constexpr int most_bytes = (1 << 20) - 1, most_arrivals = (1 << 20) - 1;

// What memory holds of a barrier, so that a store there is noticed.
uint64_t mark_of(const MemoryBarrier& barrier) { return 0x6d62617272696572u + barrier.phase; }

unsigned swizzled(unsigned address, unsigned span) {
  return span == 0 ? address : address ^ ((address >> 7 & (span / 16 - 1)) << 4);
}

// Pieces of rows of so many bytes, which a copy writes one behind another.
class Rows {
 public:
  Rows(void* shared, unsigned span, const Site& site)
      : base_(static_cast<char*>(shared)),
        first_(shared_address(shared)),
        span_(span),
        site_(site) {}

  // `exist` bytes of it are in memory at `from`, the others zeros.
  void add(const char* from, unsigned bytes, unsigned exist) {
    for (unsigned at = 0; at < bytes; at += 16) {
      const unsigned read = exist > at ? std::min(16u, exist - at) : 0;
      char* const to = base_ + (int(swizzled(first_ + written_, span_)) - int(first_));
      if (!in_shared_memory(to, 16)) {
        fault(&site_, "a bulk copy to %#x, outside the block's shared memory", first_ + written_);
      }
      if (read > 0 && !in_device_memory(from + at, read)) {
        fault(&site_, "a bulk copy out of bounds: from %s", describe_address(from + at).c_str());
      }
      if (read > 0) about_to_access(false, from + at, read);
      pieces_.push_back({to, from + at, 16, read});
      written_ += 16;
    }
  }

  std::vector<Bulk::Piece> take() { return std::move(pieces_); }

 private:
  char* base_;
  unsigned first_, span_, written_ = 0;
  Site site_;
  std::vector<Bulk::Piece> pieces_;
};

void check_map(const TensorMap& map, bool im2col, unsigned rank, const void* shared,
               const Site& site) {
  if (map.kind != (im2col ? TensorMap::Im2col : TensorMap::Tiled) || map.rank != rank) {
    fault(&site, "a tensor map of another kind, or of %u dimensions instead of %u", map.rank, rank);
  }
  if (map.address % 16 != 0) {
    fault(&site, "a tensor map's address %#llx is no multiple of 16",
          static_cast<unsigned long long>(map.address));
  }
  for (unsigned i = 0; i + 1 < rank; i++) {
    if (map.strides[i] % 16 != 0) {
      fault(&site, "a tensor map's stride of %u bytes is no multiple of 16", map.strides[i]);
    }
  }
  const unsigned inner = map.box[0] * map.element_bytes;
  if (inner % 16 != 0) fault(&site, "rows of %u bytes in a tile are no multiple of 16", inner);
  if (map.swizzle != 0 && inner > map.swizzle) {
    fault(&site, "rows of %u bytes in a tile with a swizzle of %u", inner, map.swizzle);
  }
  if (map.box[0] > 256 || map.box[1] > (im2col ? 1024 : 256)) {
    fault(&site, "a tile of %u x %u: too large", map.box[0], map.box[1]);
  }
  if (shared_address(shared) % 128 != 0) {
    fault(&site, "a tensor's tile at %#x, which is no multiple of 128", shared_address(shared));
  }
}

// Bytes of a row's `box` elements from element `c` on that exist.
unsigned existing(const TensorMap& map, int c, const Site& site) {
  if (c < 0)
    fault(&site, "a tile begins at element %d; the simulator supports only 0 and above", c);
  const int64_t left = int64_t(map.dims[0]) - c;
  return unsigned(std::clamp<int64_t>(left, 0, map.box[0])) * map.element_bytes;
}

unsigned targets(unsigned blocks) { return blocks == own_block ? 1u << block->rank : blocks; }

const char* place(const TensorMap& map, int c) {
  return reinterpret_cast<const char*>(map.address) + int64_t(c) * map.element_bytes;
}

}  // namespace

void Bulk::begin(Block& of) {
  of_ = &of;
  barriers_.clear();
  copies_.clear();
}

MemoryBarrier& Bulk::barrier(uint64_t* at, const Site& site) {
  auto* const held = reinterpret_cast<uint64_t*>(of_->place(at));
  reads(held, sizeof *held);
  const auto found = barriers_.find(at);
  if (found == barriers_.end()) {
    fault(&site, "there is no mbarrier at %#x: none was initialised", shared_address(at));
  }
  if (of_ != block && !found->second.fenced) {
    fault(&site, "the mbarrier at %#x of block %u: no fence follows its initialisation",
          shared_address(at), of_->rank);
  }
  if (*held != mark_of(found->second)) {
    fault(&site, "the mbarrier at %#x was overwritten", shared_address(at));
  }
  return found->second;
}

void Bulk::init(uint64_t* at, int arrivals, const Site& site) {
  if (uintptr_t(at) % 8 != 0 || !in_shared_memory(at, 8)) {
    fault(&site, "mbarrier at %p, which is no multiple of 8 in the block's shared memory",
          static_cast<void*>(at));
  }
  if (arrivals < 1 || arrivals > most_arrivals) {
    fault(&site, "an mbarrier of %d arrivals, not 1 to %d", arrivals, most_arrivals);
  }
  if (barriers_.count(at) != 0) {
    fault(&site, "the mbarrier at %#x is initialised again", shared_address(at));
  }
  writes(at, sizeof *at);
  const Unseen tables;
  const MemoryBarrier& added =
      barriers_
          .emplace(at,
                   MemoryBarrier{unsigned(arrivals), unsigned(arrivals), 0, 0, false, {}, 0, 0, 0})
          .first->second;
  *at = mark_of(added);
  of_->expose(at, sizeof *at);
  block->proxy.stored(at, 8);
}

void Bulk::fence_inits() {
  for (auto& [at, barrier] : barriers_) barrier.fenced = true;
}

void Bulk::arrive(uint64_t* at, int bytes, const Site& site) {
  MemoryBarrier& self = barrier(at, site);
  if (self.missing == 0) {
    fault(&site, "one arrival more than the %u of a phase at the mbarrier at %#x", self.arrivals,
          shared_address(at));
  }
  self.bytes += bytes;
  if (bytes < 0 || self.bytes > most_bytes) {
    fault(&site, "an mbarrier that expects %lld bytes, not 0 to %d",
          static_cast<long long>(self.bytes), most_bytes);
  }
  released(&self.token);
  if (of_ != block) {
    self.from |= 1u << block->rank;
    self.last_from = self.phase;
  }
  self.missing--;
  count(at, self, site);
}

// Ends the phase, if nothing is missing.
void Bulk::count(uint64_t* at, MemoryBarrier& self, const Site& site) {
  if (self.missing != 0) return;
  if (self.bytes < 0) {
    fault(&site, "%lld bytes more than a phase of the mbarrier at %#x expects",
          static_cast<long long>(-self.bytes), shared_address(at));
  }
  if (self.bytes > 0) return;
  self.phase++;
  self.missing = self.arrivals;
  *reinterpret_cast<uint64_t*>(of_->place(at)) = mark_of(self);
  const Unseen tables;
  for (Thread* each : std::exchange(self.waiting, {})) of_->go_on(*each);
}

MemoryBarrier* Bulk::waits(uint64_t* at, int parity, const Site& site) {
  MemoryBarrier& self = barrier(at, site);
  if (parity != 0 && parity != 1) fault(&site, "an mbarrier's parity of %d, not 0 or 1", parity);
  if (int(self.phase & 1) != parity) return nullptr;
  return &self;
}

void Bulk::acquire(uint64_t* at) {
  MemoryBarrier& self = barriers_.at(at);
  if (self.last_from < self.phase) self.from = 0;
  acquired(&self.token);
}

void Bulk::come_from(unsigned rank) {
  for (auto& [at, barrier] : barriers_) barrier.from &= ~(1u << rank);
}

// The pieces of a copy begin to change, of which the barrier is to know.
void Bulk::expect(const std::vector<Piece>& pieces, uint64_t* at, const Site& site) {
  MemoryBarrier& self = barrier(at, site);
  of_->proxy.check_fenced(site, "a bulk copy", at, 8);
  for (const Piece& piece : pieces) {
    if (of_ == block) writes(piece.to, piece.size);
    of_->written(piece.to, piece.size);
    raw_fill(of_->place(piece.to), poison, piece.size);
    of_->proxy.written(piece.to, piece.size);
  }
  released(&self.token);
}

void Bulk::begin_copy(std::vector<Piece> pieces, uint64_t* at, unsigned blocks, const Site& site) {
  if (blocks == 0 || blocks >> of_->cluster->blocks.size() != 0) {
    fault(&site, "a bulk copy to blocks %#x of a cluster of %zu", blocks,
          of_->cluster->blocks.size());
  }
  size_t bytes = 0;
  for (const Piece& piece : pieces) {
    bytes += piece.size;
    if (piece.read > 0) reads(piece.from, piece.read);
  }
  for (unsigned rank = 0; blocks >> rank != 0; rank++) {
    if (blocks >> rank & 1) of_->cluster->other(rank, site).bulk.expect(pieces, at, site);
  }
  const Unseen tables;
  const auto shared = std::make_shared<const std::vector<Piece>>(std::move(pieces));
  for (unsigned rank = 0; blocks >> rank != 0; rank++) {
    if (blocks >> rank & 1) copies_.push_back({shared, bytes, at, rank, site});
  }
}

size_t Bulk::under_way_to(unsigned rank) const {
  return size_t(std::count_if(copies_.begin(), copies_.end(),
                              [=](const Copy& each) { return each.rank == rank; }));
}

// In any order, as they do on a device.
void Bulk::deliver_to(unsigned rank) {
  const Unseen tables;
  const size_t count = under_way_to(rank);
  size_t which = launch->order == Order::Random     ? random_below(unsigned(count))
                 : launch->order == Order::Reversed ? count - 1
                                                    : 0;
  auto found = copies_.begin();
  while (found->rank != rank || which-- != 0) ++found;
  const Copy copy = std::move(*found);
  copies_.erase(found);
  Block& to = of_->cluster->other(copy.rank, copy.site);
  to.bulk.arrived(*copy.pieces, copy.bytes, copy.barrier, copy.site);
}

void Bulk::arrived(const std::vector<Piece>& pieces, size_t bytes, uint64_t* at, const Site& site) {
  for (const Piece& piece : pieces) {
    of_->written(piece.to, piece.size);
    char* const to = of_->place(piece.to);
    raw_copy(to, piece.from, piece.read);
    raw_fill(to + piece.read, 0, piece.size - piece.read);
  }
  MemoryBarrier& self = barrier(at, site);
  self.bytes -= int64_t(bytes);
  if (self.bytes < -most_bytes) fault(&site, "bytes that no phase of an mbarrier expects");
  count(at, self, site);
}

void Bulk::report_waiting(const Thread& thread) const {
  for (const auto& [at, barrier] : barriers_) {
    if (std::count(barrier.waiting.begin(), barrier.waiting.end(), &thread) == 0) continue;
    fault(&thread.site,
          "the phase of parity %u of the mbarrier at %#x never ends, %u arrivals and %lld bytes "
          "are missing:",
          barrier.phase & 1, shared_address(at), barrier.missing,
          static_cast<long long>(barrier.bytes));
  }
}

void Bulk::check_done() const {
  if (!copies_.empty()) {
    fault(&copies_.back().site, "the block ended with %zu bulk copies under way, the last begun",
          copies_.size());
  }
  for (const Block* each : of_->cluster->blocks) {
    for (const Copy& copy : each->bulk.copies_) {
      if (copy.rank != of_->rank) continue;
      fault(&copy.site, "the block ended with a bulk copy under way to it, which block %u began",
            each->rank);
    }
  }
  for (const auto& [at, barrier] : barriers_) {
    if (barrier.from == 0) continue;
    fault(
        nullptr,
        "the block ended while arrivals of blocks %#x at its mbarrier at %#x may be on their way: "
        "no thread has waited for them since, nor have those blocks released them",
        barrier.from, shared_address(at));
  }
}

void mbarrier_init(unsigned long long* barrier, int arrivals, Site site) {
  block->bulk.init(reinterpret_cast<uint64_t*>(barrier), arrivals, site);
}

void mbarrier_arrive(unsigned long long* barrier, int bytes, Site site) {
  block->bulk.arrive(reinterpret_cast<uint64_t*>(barrier), bytes, site);
}

void mbarrier_arrive_at(unsigned long long* barrier, unsigned rank, Site site) {
  block->cluster->other(rank, site).bulk.arrive(reinterpret_cast<uint64_t*>(barrier), 0, site);
}

void fence_mbarrier_init() { block->bulk.fence_inits(); }

void mbarrier_wait(unsigned long long* barrier, int parity, Site site) {
  block->wait_at(reinterpret_cast<uint64_t*>(barrier), parity, site);
}

void copy_bulk(void* shared, const void* global, int bytes, unsigned long long* barrier,
               unsigned blocks, Site site) {
  if (bytes <= 0 || bytes % 16 != 0 || shared_address(shared) % 16 != 0 ||
      uintptr_t(global) % 16 != 0) {
    fault(&site, "misaligned bulk copy of %d bytes from %p to %#x", bytes, global,
          shared_address(shared));
  }
  Rows rows(shared, 0, site);
  rows.add(static_cast<const char*>(global), unsigned(bytes), unsigned(bytes));
  block->bulk.begin_copy(rows.take(), reinterpret_cast<uint64_t*>(barrier), targets(blocks), site);
}

void copy_tile(void* shared, const TensorMap& map, const int (&at)[2], unsigned long long* barrier,
               unsigned blocks, Site site) {
  check_map(map, false, 2, shared, site);
  Rows rows(shared, map.swizzle, site);
  for (int i = 0; i < map.box[1]; i++) {
    const int y = at[1] + i;
    const bool inside = y >= 0 && unsigned(y) < map.dims[1];
    rows.add(place(map, at[0]) + int64_t(y) * map.strides[0], map.box[0] * map.element_bytes,
             inside ? existing(map, at[0], site) : 0);
  }
  block->bulk.begin_copy(rows.take(), reinterpret_cast<uint64_t*>(barrier), targets(blocks), site);
}

void copy_pixels(void* shared, const TensorMap& map, const int (&at)[4], const int (&tap)[2],
                 unsigned long long* barrier, unsigned blocks, Site site) {
  check_map(map, true, 4, shared, site);
  Rows rows(shared, map.swizzle, site);
  int pixel[3] = {at[1], at[2], at[3]};
  for (int i = 0; i < map.box[1]; i++) {
    const int w = pixel[0] + tap[0], h = pixel[1] + tap[1], n = pixel[2];
    const bool inside = w >= 0 && unsigned(w) < map.dims[1] && h >= 0 &&
                        unsigned(h) < map.dims[2] && n >= 0 && unsigned(n) < map.dims[3];
    rows.add(place(map, at[0]) + int64_t(w) * map.strides[0] + int64_t(h) * map.strides[1] +
                 int64_t(n) * map.strides[2],
             map.box[0] * map.element_bytes, inside ? existing(map, at[0], site) : 0);
    for (int axis = 0; axis < 2; axis++) {
      pixel[axis] += map.steps[axis];
      if (pixel[axis] <= int(map.dims[axis + 1]) - 1 + map.upper[axis]) break;
      pixel[axis] = map.lower[axis];
      if (axis == 1) pixel[2]++;
    }
  }
  block->bulk.begin_copy(rows.take(), reinterpret_cast<uint64_t*>(barrier), targets(blocks), site);
}

}  // namespace cusim
