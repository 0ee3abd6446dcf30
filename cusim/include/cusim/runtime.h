// The functions of the simulator's runtime that a kernel calls. The runtime is compiled and linked
// separately, because a kernel may have a sanitizer's instrumentation and the runtime must not.
#pragma once
#include <cusim/vector_types.h>

#include <cstddef>
#include <cstdint>
#include <source_location>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Not const: the runtime sets them before it lets a thread go on.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace cusim {

// A place in a kernel's source. As a default argument, that of the call.
using Site = std::source_location;

// What the lanes of a warp may do together; lanes that meet must do the same.
enum class WarpOp : uint8_t { Sync, Shuffle, Vote, Reduce, LoadMatrix, Mma, Wgmma };

enum class Operands : uint8_t { Tf32, Half, Bfloat16, Byte };

// Waits for the block's other threads; returns for how many of them `predicate` was not 0.
int barrier(int predicate, Site site);

// Around an atomic operation on so many bytes. After it another block may run, if the launch's
// order is random.
void before_atomic(const void* at, size_t size);
void after_atomic(const void* at, size_t size);

// Who is to see what the thread stored before. Here too another block may run.
enum class FenceScope : uint8_t { Block, Device };
void fence(FenceScope scope);

// Before a load that goes past the L1 cache.
void refresh(const void* at, size_t size);

// The values that the lanes of `mask`, all of which call this, hand over; see Met.
struct Met {
  const uint64_t* values;  // one a lane, until the next time this lane meets others
  unsigned lanes;          // which lanes came: not those of `mask` that have returned already
};
Met meet(WarpOp op, unsigned mask, uint64_t value, Site site);

unsigned lane();
unsigned live_lanes();  // of this warp: those that have not returned

void load_matrix(unsigned* matrices, int count, bool transposed, const void* row, Site site);
// Products are added to c, of int where operands are bytes, else of float.
void mma(Operands operands, void* c, const unsigned* a, const unsigned* b, Site site);

// As it is done when waited for, to sums of a thread's n / 2 columns; of A, what the descriptor
// says where there are no registers.
void wgmma(Operands operands, int n, void* sums, const unsigned* registers, uint64_t a, uint64_t b,
           bool add, Site site);
void wgmma_fence(Site site);
void wgmma_commit(Site site);
void wgmma_wait(int pending, Site site);
void fence_proxy_async();

// As the driver's 128 bytes say it, whose layout NVIDIA does not: a simulated device has its own.
struct TensorMap {
  enum Kind : uint8_t { Tiled = 1, Im2col = 2 };
  uint64_t address;
  uint32_t dims[4];     // elements, the innermost first
  uint32_t strides[3];  // bytes, of all but the innermost
  uint16_t box[2];      // elements of a row and rows; channels and pixels
  Kind kind;
  uint8_t rank, element_bytes, swizzle;  // 0, 32, 64 or 128 bytes
  // Of im2col, by width and height: between windows, and where the first and the last may begin
  // from the corners of the image.
  uint8_t steps[2];
  int8_t lower[2], upper[2];
  uint8_t unused[78];
};
static_assert(sizeof(TensorMap) == 128);

void mbarrier_init(unsigned long long* barrier, int arrivals, Site site);
void mbarrier_arrive(unsigned long long* barrier, int bytes, Site site);
void mbarrier_arrive_at(unsigned long long* barrier, unsigned rank, Site site);
void mbarrier_wait(unsigned long long* barrier, int parity, Site site);
void fence_mbarrier_init();

// To the blocks of the cluster whose bits are set, by rank, or to the one that runs.
constexpr unsigned own_block = ~0u;
void copy_bulk(void* shared, const void* global, int bytes, unsigned long long* barrier,
               unsigned blocks, Site site);
void copy_tile(void* shared, const TensorMap& map, const int (&at)[2], unsigned long long* barrier,
               unsigned blocks, Site site);
void copy_pixels(void* shared, const TensorMap& map, const int (&at)[4], const int (&tap)[2],
                 unsigned long long* barrier, unsigned blocks, Site site);

unsigned cluster_rank();
// Without a release the other blocks do not see what this one has stored.
void cluster_arrive(bool releases, Site site);
void cluster_wait(Site site);
// Where the block of that rank has what this one has at `shared`.
const void* of_block(const void* shared, unsigned rank, Site site);

// Of a place in shared memory, as instructions and descriptors have it.
unsigned shared_address(const void* shared);

void copy_async(void* shared, const void* global, int bytes, int read, Site site);
void copy_commit();
void copy_wait(int pending);

// The launches behind this one may begin.
void let_next_begin();

// Waits until the launch before has ended, where this one has begun early.
void wait_for_previous();

void* dynamic_shared(size_t alignment);

[[noreturn]] void trap(const char* reason, Site site);

// A kernel with its parameters' types taken away, so that it can be called with any arguments.
struct Entry {
  void (*call)(const void* const* arguments);
  const char* parameters;  // of each, in order: kind (p, i, u, f, s), size in bytes, a comma
};

}  // namespace cusim
