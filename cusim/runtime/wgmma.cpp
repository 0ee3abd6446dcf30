// The last lane of a warp to arrive computes wgmma for all lanes, as for ldmatrix and mma.
//
// PTX ISA, 9.7.15.6 "Asynchronous warpgroup level matrix multiply-accumulate operation". A warp's
// part of a product is computed when that warp waits for it, which is the latest time that a device
// allows.
#include "wgmma.h"

#include <algorithm>
#include <cstring>

#include "block.h"
#include "fault.h"
#include "launch.h"
#include "memory.h"
#include "sanitizers.h"
#include "tiles.h"

namespace cusim {

namespace {

constexpr int product_bytes = 32;  // of K, whatever the type

// Of a matrix descriptor.
struct Tile {
  unsigned address, leading, stride, base_offset, swizzle;

  explicit Tile(uint64_t word)
      : address(unsigned(word & 0x3fff) << 4),
        leading(unsigned(word >> 16 & 0x3fff) << 4),
        stride(unsigned(word >> 32 & 0x3fff) << 4),
        base_offset(unsigned(word >> 49 & 7)),
        swizzle(unsigned(word >> 62)) {}

  // Bytes of a row of K that are swizzled, none where rows lie in matrices of 8 x 16 bytes.
  unsigned span() const { return swizzle == 0 ? 0 : 256u >> swizzle; }

  // The address of 16 bytes of a row: the first of the product's, or the next.
  unsigned at(int row, int vector) const {
    if (swizzle == 0) {
      return address + unsigned(row / 8) * stride + unsigned(vector) * leading +
             unsigned(row % 8) * 16;
    }
    const unsigned place =
        address + unsigned(row / 8) * stride + unsigned(row % 8) * span() + unsigned(vector) * 16;
    return place ^ ((place >> 7 & (span() / 16 - 1)) << 4);
  }

  // Faults if a device would read something else than `at` says.
  void check(const Site& site, const char* factor, uint64_t word) const {
    constexpr uint64_t unused = 3ull << 14 | 3ull << 30 | 7ull << 46 | 0x3ffull << 52;
    if (word & unused) {
      fault(&site, "wgmma's descriptor %#llx of %s has undefined bits",
            static_cast<unsigned long long>(word), factor);
    }
    if (swizzle == 0) return;
    const unsigned pattern = 8 * span();
    if (base_offset != 0) {
      fault(&site, "wgmma's descriptor of %s has base offset %u: begin tiles at multiples of %u",
            factor, base_offset, pattern);
    }
    if (address % pattern >= span()) {
      fault(&site, "wgmma's tile of %s begins at %#x, not in the first row of a multiple of %u",
            factor, address, pattern);
    }
    if (address % span() + product_bytes > span()) {
      fault(&site, "wgmma's tile of %s at %#x exceeds the %u bytes of a swizzled row", factor,
            address, span());
    }
    if (stride % pattern != 0 || stride == 0) {
      fault(&site, "wgmma's stride of %u bytes between 8 rows of %s is no multiple of %u", stride,
            factor, pattern);
    }
  }

  const char* read(const Site& site, const char* factor, int row, int vector) const {
    const char* from = shared_at(at(row, vector), 16);
    if (from == nullptr) {
      fault(&site, "wgmma reads row %d of %s at %#x, outside the block's shared memory", row,
            factor, at(row, vector));
    }
    block->proxy.check_fenced(site, "wgmma", from, 16);
    return from;
  }
};

struct Issue {
  Operands operands;
  int n;
  void* sums;
  const unsigned* registers;
  uint64_t a, b;
  bool add;
  Site site;
};

size_t sums_bytes(int n) { return size_t(n) / 2 * sizeof(float); }

unsigned warp_number() { return block->thread->linear / 32; }

std::vector<char> held(const Registers& registers) {
  std::vector<char> bytes(32 * registers.bytes);
  for (size_t lane = 0; lane < 32; lane++) {
    raw_copy(&bytes[lane * registers.bytes], registers.at[lane], registers.bytes);
  }
  return bytes;
}

// Those of the warp that lie there, known from now on; `fresh` where they were not before.
size_t registers_at(WarpProducts& warp, char* const (&at)[32], size_t bytes, bool& fresh) {
  const auto same = [&](const Registers& each) {
    return each.bytes == bytes && std::equal(at, at + 32, each.at);
  };
  const auto found = std::find_if(warp.registers.begin(), warp.registers.end(), same);
  fresh = found == warp.registers.end();
  if (!fresh) return size_t(found - warp.registers.begin());
  Registers added = {};
  std::copy(at, at + 32, added.at);
  added.bytes = bytes;
  added.seen = held(added);
  warp.registers.push_back(std::move(added));
  return warp.registers.size() - 1;
}

void poison_registers(const Registers& registers) {
  for (char* at : registers.at) {
    raw_fill(at, poison, registers.bytes);
    forbid(at, registers.bytes);
  }
}

void check_poisoned(const Registers& registers, const Site& site) {
  for (const char* at : registers.at) {
    if (first_unpoisoned(at, registers.bytes) != nullptr) {
      fault(&site, "the sums of a wgmma were written before a wait for this wgmma");
    }
  }
}

// Of what a product under way reads too: kernels are compiled so that no variable lies where
// another has lain (cusim/build.py).
void check_factors_kept(const WarpProduct& product) {
  if (!product.has_registers) return;
  for (int lane = 0; lane < 32; lane++) {
    unsigned now[4];
    raw_copy(now, product.at[lane], sizeof now);
    if (std::equal(now, now + 4, product.left[lane])) continue;
    fault(&product.site,
          "registers of A were written before a wait for the wgmma that reads them, in "
          "lane %d,",
          lane);
  }
}

// Every warp of a warpgroup issues the same, in the same order.
void check_alike(const WarpProducts& warp, const WarpProduct& product) {
  Warpgroup& group = block->warpgroup();
  const size_t place = warp.issued - group.before;
  if (place == group.issued.size()) {
    group.issued.push_back({product.operands, product.n, product.a, product.b,
                            product.has_registers, product.add, 0, product.site});
  }
  Warpgroup::Issued& issued = group.issued[place];
  if (issued.operands != product.operands || issued.n != product.n || issued.a != product.a ||
      issued.b != product.b || issued.has_registers != product.has_registers ||
      issued.add != product.add) {
    fault(&product.site, "the warps of a warpgroup issue different wgmma: one at %s,",
          text(issued.site).c_str());
  }
  issued.warps++;
  while (!group.issued.empty() && group.issued.front().warps == 4) {
    group.issued.pop_front();
    group.before++;
  }
}

void issue_together(const uint64_t (&values)[32]) {
  const Unseen tables;
  const auto of = [&](int lane) { return reinterpret_cast<const Issue*>(values[lane]); };
  const Issue& first = *of(0);
  const Site& site = first.site;
  WarpProducts& warp = block->warp().products;
  char* sums[32];
  char* factors[32];
  for (int lane = 0; lane < 32; lane++) {
    const Issue& each = *of(lane);
    if (each.a != first.a || each.b != first.b || each.add != first.add) {
      fault(&site, "lanes 0 and %d give wgmma different descriptors, or one adds and one does not",
            lane);
    }
    sums[lane] = static_cast<char*>(each.sums);
    factors[lane] = const_cast<char*>(reinterpret_cast<const char*>(each.registers));
  }
  if (warp_number() / 4 * 4 + 4 > (blockDim.x * blockDim.y * blockDim.z + 31) / 32) {
    fault(&site, "wgmma by warp %u, whose warpgroup has fewer than 4 warps", warp_number());
  }
  if (!warp.fenced) fault(&site, "wgmma before any wgmma.fence of its warp");

  WarpProduct product = {};
  product.operands = first.operands;
  product.n = first.n;
  product.a = first.a;
  product.b = first.b;
  product.has_registers = first.registers != nullptr;
  product.add = first.add;
  product.group = warp.committed;
  product.site = site;
  bool fresh;
  if (product.has_registers) {
    const size_t used = registers_at(warp, factors, sizeof product.left[0], fresh);
    const Registers& registers = warp.registers[used];
    if (!fresh && held(registers) != registers.seen) {
      fault(&site, "registers of A were written after the last wgmma.fence");
    }
    for (int lane = 0; lane < 32; lane++) {
      product.at[lane] = factors[lane];
      raw_copy(product.left[lane], factors[lane], sizeof product.left[lane]);
    }
  } else {
    Tile(product.a).check(site, "A", product.a);
  }
  Tile(product.b).check(site, "B", product.b);

  product.sums = registers_at(warp, sums, sums_bytes(first.n), fresh);
  Registers& registers = warp.registers[product.sums];
  if (registers.writers == 0) {
    if (!fresh && first.add && held(registers) != registers.seen) {
      fault(&site, "sums of wgmma were written after the last wgmma.fence");
    }
    registers.seen = held(registers);
  } else {
    check_poisoned(registers, site);
  }
  registers.writers++;
  poison_registers(registers);
  check_alike(warp, product);
  warp.issued++;
  warp.products.push_back(product);
}

void fence_together(const uint64_t (&)[32]) {
  const Unseen tables;
  WarpProducts& warp = block->warp().products;
  warp.fenced = true;
  for (Registers& each : warp.registers) {
    if (each.writers == 0) each.seen = held(each);
  }
}

void commit_together(const uint64_t (&)[32]) { block->warp().products.committed++; }

// One of K's elements in the 32 bytes of a row.
template <int K>
float element(Operands operands, const char* const (&vectors)[2], int k) {
  constexpr int bytes = product_bytes / K, in_vector = 16 / bytes;
  unsigned word = 0;
  raw_copy(&word, vectors[k / in_vector] + k % in_vector * bytes, size_t(bytes));
  return operands == Operands::Half ? half_to_float(word) : from_bits(word & ~0x1fffu);
}

// A row of the warp's 16 of A, or of B.
struct Row {
  const char* vectors[2];
};

// The registers of A as the rows of memory that they stand for.
void rows_of_registers(const unsigned (&left)[32][4], unsigned (&rows)[16][8]) {
  for (int lane = 0; lane < 32; lane++) {
    for (int i = 0; i < 4; i++) {
      rows[lane / 4 + i % 2 * 8][lane % 4 + i / 2 * 4] = left[lane][i];
    }
  }
}

template <int K>
void multiply_floats(Operands operands, const Row (&a)[16], const Row (&b)[256], int n, bool add,
                     std::vector<char>& sums, size_t bytes) {
  const auto sum = [&](int lane, size_t i) {
    return reinterpret_cast<float*>(&sums[size_t(lane) * bytes]) + i;
  };
  Tiles<K> tiles;
  for (int row = 0; row < 16; row++) {
    for (int k = 0; k < K; k++) tiles.a[row][k] = element<K>(operands, a[row].vectors, k);
  }
  for (size_t first = 0; first < size_t(n); first += 8) {
    for (int column = 0; column < 8; column++) {
      for (int k = 0; k < K; k++) {
        tiles.set_b(k, column, element<K>(operands, b[first + size_t(column)].vectors, k));
      }
    }
    for (int lane = 0; lane < 32; lane++) {
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; i++) {
        tiles.c[t / 2][g + i / 2 * 8][2 * t % 4 + i % 2] =
            add ? *sum(lane, first / 2 + size_t(i)) : 0.0f;
      }
    }
    {
      const Truncating truncating;
      tiles.multiply();
    }
    for (int lane = 0; lane < 32; lane++) {
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; i++) {
        *sum(lane, first / 2 + size_t(i)) = tiles.c[t / 2][g + i / 2 * 8][2 * t % 4 + i % 2];
      }
    }
  }
}

void multiply_bytes(const Row (&a)[16], const Row (&b)[256], int n, bool add,
                    std::vector<char>& sums, size_t bytes) {
  for (int lane = 0; lane < 32; lane++) {
    for (size_t i = 0; i < size_t(n) / 2; i++) {
      const Row& left = a[lane / 4 + int(i) / 2 % 2 * 8];
      const Row& right = b[i / 4 * 8 + size_t(lane) % 4 * 2 + i % 2];
      auto* sum = reinterpret_cast<unsigned*>(&sums[size_t(lane) * bytes]) + i;
      if (!add) *sum = 0;
      for (int k = 0; k < product_bytes; k++) {
        *sum += unsigned(static_cast<unsigned char>(left.vectors[k / 16][k % 16])) *
                unsigned(static_cast<signed char>(right.vectors[k / 16][k % 16]));
      }
    }
  }
}

// Of what its factors hold now.
void do_product(const WarpProduct& product, Registers& registers) {
  Row a[16];
  unsigned rows[16][8];
  if (product.has_registers) rows_of_registers(product.left, rows);
  const int first_row = int(warp_number() % 4) * 16;
  for (int row = 0; row < 16; row++) {
    for (int i = 0; i < 2; i++) {
      if (product.has_registers) {
        a[row].vectors[i] = reinterpret_cast<const char*>(&rows[row][4 * i]);
      } else {
        a[row].vectors[i] = Tile(product.a).read(product.site, "A", first_row + row, i);
        reads(a[row].vectors[i], 16);
      }
    }
  }
  Row b[256];
  for (int row = 0; row < product.n; row++) {
    for (int i = 0; i < 2; i++) {
      b[size_t(row)].vectors[i] = Tile(product.b).read(product.site, "B", row, i);
      reads(b[size_t(row)].vectors[i], 16);
    }
  }
  switch (product.operands) {
    case Operands::Tf32:
      return multiply_floats<8>(product.operands, a, b, product.n, product.add, registers.seen,
                                registers.bytes);
    case Operands::Half:
      return multiply_floats<16>(product.operands, a, b, product.n, product.add, registers.seen,
                                 registers.bytes);
    default:
      return multiply_bytes(a, b, product.n, product.add, registers.seen, registers.bytes);
  }
}

void wait_together(const uint64_t (&values)[32]) {
  WarpProducts& warp = block->warp().products;
  const int until = warp.committed - int(values[0]);
  auto done = warp.products.begin();
  for (; done != warp.products.end() && done->group < until; ++done) {
    Registers& registers = warp.registers[done->sums];
    check_poisoned(registers, done->site);
    check_factors_kept(*done);
    do_product(*done, registers);
    if (--registers.writers > 0) continue;
    for (size_t lane = 0; lane < 32; lane++) {
      allow(registers.at[lane], registers.bytes);
      raw_copy(registers.at[lane], &registers.seen[lane * registers.bytes], registers.bytes);
    }
  }
  const Unseen tables;
  warp.products.erase(warp.products.begin(), done);
}

}  // namespace

void wgmma(Operands operands, int n, void* sums, const unsigned* registers, uint64_t a, uint64_t b,
           bool add, Site site) {
  const Issue issue = {operands, n, sums, registers, a, b, add, site};
  block->meet(WarpOp::Wgmma, ~0u, reinterpret_cast<uint64_t>(&issue), site, issue_together);
}

void wgmma_fence(Site site) { block->meet(WarpOp::Wgmma, ~0u, 0, site, fence_together); }

void wgmma_commit(Site site) { block->meet(WarpOp::Wgmma, ~0u, 0, site, commit_together); }

void wgmma_wait(int pending, Site site) {
  block->meet(WarpOp::Wgmma, ~0u, uint64_t(pending), site, wait_together);
}

void check_products_done(const WarpProducts& products) {
  if (!products.products.empty()) {
    fault(&products.products.back().site, "returned with %zu wgmma under way, the last begun",
          products.products.size());
  }
}

void check_warpgroups_alike(const std::vector<Warpgroup>& warpgroups) {
  for (const Warpgroup& each : warpgroups) {
    if (!each.issued.empty()) {
      fault(&each.issued.front().site, "%d warps of a warpgroup, not 4, issued the wgmma",
            each.issued.front().warps);
    }
  }
}

void Proxy::begin() {
  std::fill(stores_.begin(), stores_.end(), Store{});
  fenced_ = 0;
}

void Proxy::stored(const void* at, size_t size) {
  const unsigned first = shared_address(at);
  const size_t end = (first + size + granule - 1) / granule;
  if (stores_.size() < end) {
    const Unseen table;
    stores_.resize(end);
  }
  for (size_t i = first / granule; i * granule < first + size; i++) {
    stores_[i] = {block->barriers() + 1, block->thread->linear};
  }
}

void Proxy::written(const void* at, size_t size) {
  const unsigned first = shared_address(at);
  for (size_t i = first / granule; i * granule < first + size && i < stores_.size(); i++) {
    stores_[i].epoch = 0;
  }
}

// As PTX has it, what other threads stored before a barrier is fenced too.
void Proxy::fence() {
  fenced_ = std::max(fenced_, block->barriers() + 1);
  for (Store& store : stores_) {
    if (store.thread == block->thread->linear) store.epoch = 0;
  }
}

void Proxy::check_fenced(const Site& site, const char* reader, const void* at, size_t size) const {
  const unsigned first = shared_address(at);
  for (size_t i = first / granule; i * granule < first + size && i < stores_.size(); i++) {
    if (stores_[i].epoch != 0 && stores_[i].epoch >= fenced_) {
      fault(&site,
            "%s reads what thread %u stored at %#zx, but no fence.proxy.async follows the store,",
            reader, stores_[i].thread, i * granule);
    }
  }
}

void fence_proxy_async() { block->proxy.fence(); }

}  // namespace cusim
