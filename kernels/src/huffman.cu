// Decodes the coefficients of JPEG files from the bits of their scans: Huffman decoding by many
// threads.
//
// Algorithm: self-synchronising decoding in subsequences (Weissenberger & Schmidt 2018, "Massively
//   parallel Huffman decoding on GPUs"), with one guess for each block of an MCU (minimum coded
//   unit). A walker guesses that its subsequence begins with a certain block of an MCU, and decodes
//   the subsequence. In each further round it decodes the next subsequence. It stops once it ends a
//   subsequence in the same state as a walker that began with that subsequence. From then on both
//   would decode the same, so it links to the other walker. The walker at the start of a restart
//   segment need not guess: a segment begins with the first block. The links from this walker lead
//   through the walkers that guessed right, and on to the next segment. Sums over these walkers
//   give the first block and the DC values of each subsequence. Then all subsequences are decoded
//   again, and their coefficients are stored. An error in a scan sets a flag and never stops a
//   kernel: every loop ends at a bit, at a block, or after a number of rounds.
// Layouts: see kernels/src/jpeg.cuh. The scan without stuffing consists of words whose highest byte
//   is the first. A link is hops << 3 | block: it leads to the walker of that block of the MCU in
//   the subsequence `hops` further on. 128 is added if that subsequence begins the next segment.
// Launch: the grid's y is the place in the batch; places without a JPEG file are left alone.
//   `jpeg_count`: a block for every CHUNK of the longest scan, and one more for the tables.
//   `jpeg_unstuff`: a block for every CHUNK of the longest scan; a thread has 16 bytes of the scan.
//   `jpeg_walk`: one launch per round; each thread runs one walker after another.
//   `jpeg_resolve`: one block, which does nothing once all links are known.
//   `jpeg_write`: each thread decodes one subsequence after another.
#include "jpeg.cuh"

constexpr unsigned ALL_LANES = 0xffffffffu;

// The sums of what the threads before this one have, and of what all have.
template <class T>
struct Sums {
  T before, all;
};

template <int THREADS, class T>
__device__ __forceinline__ Sums<T> sums_of(T mine) {
  __shared__ T of_warp[THREADS / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T sum = mine;
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
    const T other = __shfl_up_sync(ALL_LANES, sum, apart);
    if (lane >= apart) sum += other;
  }
  __syncthreads();  // those of sums before may still be read
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  Sums<T> sums{T(sum - mine), 0};
#pragma unroll
  for (int i = 0; i < THREADS / 32; ++i) {
    if (i < warp) sums.before += of_warp[i];
    sums.all += of_warp[i];
  }
  return sums;
}

// 16 bytes of a scan, and by bit what they are.
struct Sixteen {
  unsigned char bytes[17];  // and the next
  unsigned kept;            // neither stuffing nor of a marker
  unsigned restarts;        // where a restart marker begins
  unsigned others;          // where another marker does
};

__device__ __forceinline__ Sixteen look(const unsigned char* scan, int at, int end) {
  Sixteen here{};
  if (at >= end) return here;
  const int4 words = *reinterpret_cast<const int4*>(scan + at);
  const unsigned four[] = {unsigned(words.x), unsigned(words.y), unsigned(words.z),
                           unsigned(words.w)};
#pragma unroll
  for (int i = 0; i < 16; ++i) here.bytes[i] = four[i / 4] >> i % 4 * 8;
  here.bytes[16] = at + 16 < end ? scan[at + 16] : 0;
  unsigned before = at > 0 ? scan[at - 1] : 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const unsigned byte = here.bytes[i], next = at + i + 1 < end ? here.bytes[i + 1] : 0xff;
    const bool restart = byte == 0xff && next >> 3 == 0xd0 >> 3;
    if (at + i < end) {
      here.kept |= unsigned(before != 0xff && !restart) << i;
      here.restarts |= unsigned(restart) << i;
      here.others |= unsigned(byte == 0xff && next != 0 && !restart) << i;
    }
    before = byte;
  }
  return here;
}

__device__ __forceinline__ unsigned counts_of(const Sixteen& here) {
  return __popc(here.kept) | __popc(here.restarts) << 16;
}

// A number of Lookup::quick, of a value in a Huffman table: the size of the number behind the code
// is its lower half, and the zeros ahead of it the upper.
__device__ __forceinline__ unsigned symbol_of(unsigned value, int length, bool dc) {
  const unsigned size = value & 15, run = value >> 4;
  const unsigned step = dc ? 1 : size != 0 || run == 15 ? run + 1 : 64;
  return (length + size) | size << 5 | step << 9;
}

// What makes the next bits symbols, of `count` Huffman tables.
__device__ __forceinline__ void make_lookups(const unsigned char* codes, Lookup* lookups,
                                             int count) {
  __shared__ int limit[6][16];  // of a length from 1 on: no code that long has 16 bits from here on
  __shared__ int value[6][16];  // likewise: what to add to a code for its place among the values
  if (int(threadIdx.x) < count) {
    const unsigned char* const lengths = codes + threadIdx.x * HUFFMAN_BYTES;
    int code = 0, place = 0;
    for (int i = 0; i < 16; ++i) {
      value[threadIdx.x][i] = place - code;
      code += lengths[i];
      place += lengths[i];
      limit[threadIdx.x][i] = code << (15 - i);
      code *= 2;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count << QUICK_BITS; i += blockDim.x) {
    const int table = i >> QUICK_BITS, bits = i & ((1 << QUICK_BITS) - 1);
    int length = QUICK_BITS + 1;
    for (int shorter = QUICK_BITS; shorter > 0; --shorter)
      if (bits << (16 - QUICK_BITS) < limit[table][shorter - 1]) length = shorter;
    unsigned symbol = 0;
    if (length <= QUICK_BITS) {
      const int place = (bits >> (QUICK_BITS - length)) + value[table][length - 1];
      symbol = symbol_of(codes[table * HUFFMAN_BYTES + 16 + place], length, table % 2 == 0);
    }
    lookups[table].quick[bits] = symbol;
  }
  for (int i = threadIdx.x; i < count * 8; i += blockDim.x) {
    const int length = QUICK_BITS + 1 + i % 8;
    lookups[i / 8].limit[i % 8] = length <= 16 ? limit[i / 8][length - 1] : 0;
    lookups[i / 8].value[i % 8] = length <= 16 ? value[i / 8][length - 1] : 0;
  }
  for (int i = threadIdx.x; i < count * 256; i += blockDim.x)
    lookups[i / 256].values[i % 256] = codes[i / 256 * HUFFMAN_BYTES + 16 + i % 256];
}

__global__ void __launch_bounds__(256)
    jpeg_count(const unsigned char* entries, unsigned char* scratch, int* flags, int pitch,
               int scratch_pitch) {
  follow_previous();
  const bool makes_tables = blockIdx.x == gridDim.x - 1;
  if (makes_tables && threadIdx.x == 0) flags[blockIdx.y] = 0;
  const Entry& entry = entry_at(entries, pitch);
  if (entry.jpeg == 0) return;
  const Jpeg& jpeg = jpeg_of(entry);
  Scratch& own = scratch_at(scratch, scratch_pitch);
  if (makes_tables) {
    make_lookups(tables_of(jpeg) + QUANTIZATION_BYTES + ZIGZAG_BYTES, own.lookup,
                 2 * jpeg.components);
    return;
  }
  const int first = blockIdx.x * CHUNK;
  if (first >= jpeg.scan_bytes) return;
  const Sixteen here = look(data_of(entry), first + threadIdx.x * 16, jpeg.scan_bytes);
  const unsigned all = sums_of<256>(counts_of(here)).all;
  if (threadIdx.x == 0) own.counts[blockIdx.x] = all;
}

__global__ void __launch_bounds__(256)
    jpeg_unstuff(const unsigned char* entries, unsigned char* scratch, int* flags, int pitch,
                 int scratch_pitch) {
  __shared__ unsigned long long begins;
  follow_previous();
  const Entry& entry = entry_at(entries, pitch);
  if (entry.jpeg == 0) return;
  const Jpeg& jpeg = jpeg_of(entry);
  Scratch& own = scratch_at(scratch, scratch_pitch);

  int4* const coefficients = part<int4>(own, jpeg.coefficients);
  for (unsigned i = thread_index(); i < unsigned(jpeg.blocks) * 8; i += gridDim.x * blockDim.x)
    coefficients[i] = make_int4(0, 0, 0, 0);

  const int first = blockIdx.x * CHUNK;
  if (first >= jpeg.scan_bytes && first > 0) return;
  const bool counted = int(threadIdx.x) * CHUNK < jpeg.scan_bytes;
  const unsigned counts = counted ? own.counts[threadIdx.x] : 0;
  const auto chunks =
      sums_of<256>((counts & 0xffffu) | static_cast<unsigned long long>(counts >> 16) << 32);
  if (threadIdx.x == blockIdx.x) begins = chunks.before;
  const Sixteen here = look(data_of(entry), first + threadIdx.x * 16, jpeg.scan_bytes);
  const unsigned before = sums_of<256>(counts_of(here)).before;
  int to = int(begins) + int(before & 0xffffu), segment = int(begins >> 32) + int(before >> 16);

  int* const starts = part<int>(own, jpeg.starts);
  unsigned char* const bytes = part<unsigned char>(own, jpeg.bytes);
  bool wrong = here.others != 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (here.kept >> i & 1) bytes[to++ ^ 3] = here.bytes[i];
    if (here.restarts >> i & 1) {
      wrong = wrong || here.bytes[i + 1] != 0xd0 + segment % 8;
      if (++segment < jpeg.segments) starts[segment] = to;
    }
  }
  if (blockIdx.x == 0) {
    const int all = int(chunks.all);
    const bool expected = int(chunks.all >> 32) == jpeg.segments - 1;
    wrong = wrong || !expected;
    if (threadIdx.x < 16) bytes[(all + threadIdx.x) ^ 3] = 0;
    if (threadIdx.x == 0) {
      starts[0] = 0;
      starts[jpeg.segments] = all;
      own.slots = expected ? all / SUBSEQUENCE + jpeg.segments : 0;
      own.whole = 0;
    }
  }
  if (wrong) atomicOr(flags + blockIdx.y, MARKER);
}

// The bits of one slot, and of the segment that it is a part of.
struct Slot {
  int segment, first;    // its number, and its first slot
  int begin, end, last;  // bits: of the slot, and where the segment ends
};

__device__ __forceinline__ int first_slot(const int* starts, int segment) {
  return starts[segment] / SUBSEQUENCE + segment;
}

__device__ __forceinline__ Slot slot_of(const int* starts, int segments, int slot) {
  int low = 0, high = segments;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first_slot(starts, middle) <= slot ? low : high) = middle;
  }
  Slot found{low, first_slot(starts, low)};
  found.begin = (starts[low] + (slot - found.first) * SUBSEQUENCE) * 8;
  found.last = starts[low + 1] * 8;
  found.end = min(found.begin + SUBSEQUENCE * 8, found.last);
  return found;
}

// Where a walker stands between two symbols, in bits from the begin of a subsequence: fewer than 32
// when it has come there.
struct State {
  int bit, block, z;  // the block of the MCU, and the next coefficient's place in zigzag order

  static __device__ __forceinline__ State of(unsigned packed) {
    return {int(packed & 31), int(packed >> 5 & 7), int(packed >> 8 & 63)};
  }
  __device__ __forceinline__ unsigned packed() const { return bit | block << 5 | z << 8; }
};

constexpr int STATE_BITS = 14;
constexpr unsigned STATE = (1u << STATE_BITS) - 1;

// What a walker did in a round: the state it came to, << STATE_BITS the blocks it ended, and by
// component the sum of the DC differences, modulo 2^32.
struct alignas(16) Record {
  unsigned state, dc[3];
};

constexpr unsigned NO_CODE = 1;  // a bit is passed over, and stands for no coefficient

// The next symbol, as Lookup::quick has it, whatever its code's length.
__device__ __forceinline__ unsigned symbol_at(const Lookup& lookup, unsigned word, bool dc) {
  const unsigned quick = lookup.quick[word >> (32 - QUICK_BITS)];
  if (quick != 0) return quick;
  const int bits = word >> 16;
  int length = QUICK_BITS + 1;
#pragma unroll
  for (int i = 0; i < 6; ++i) length += bits >= lookup.limit[i];
  if (bits >= lookup.limit[6]) return NO_CODE;
  const int place = (bits >> (16 - length)) + lookup.value[length - QUICK_BITS - 1];
  return symbol_of(lookup.values[place & 255], length, dc);
}

// The number behind a symbol's code, where `word` begins with that.
__device__ __forceinline__ int number_of(unsigned symbol, unsigned word) {
  const int size = symbol >> 5 & 15;
  if (size == 0) return 0;
  const unsigned bits = word << ((symbol & 31) - size);
  const int number = bits >> (32 - size);
  return bits >> 31 ? number : number - (1 << size) + 1;
}

// 32 bits from any bit on, for bits that are asked for in ascending order, by less than 32. A word
// is loaded long before its bits are needed.
struct Reader {
  const unsigned* words;
  unsigned next;  // word
  int last;       // bit of `high`
  unsigned high, low, ahead;

  __device__ __forceinline__ Reader(const unsigned* words, int bit)
      : words(words), next(unsigned(bit) / 32 + 3), last(bit | 31) {
    high = words[next - 3];
    low = words[next - 2];
    ahead = words[next - 1];
  }
  __device__ __forceinline__ unsigned from(int bit) {
    if (bit > last) {
      last += 32;
      high = low;
      low = ahead;
      ahead = words[next++];
    }
    return __funnelshift_l(low, high, bit);
  }
};

// The Huffman tables by block of the MCU: that of DC codes, and behind it that of AC codes.
struct Tables {
  const Lookup* lookups;
  unsigned components;  // of blocks of the MCU, in four bits each
  int per_mcu;

  __device__ __forceinline__ Tables(const Lookup* lookups, const Jpeg& jpeg)
      : lookups(lookups), components(0), per_mcu(jpeg.per_mcu) {
#pragma unroll
    for (int i = 0; i < MOST_BLOCKS; ++i) components |= jpeg.component[i] << 4 * i;
  }
  __device__ __forceinline__ int component(int block) const { return components >> 4 * block & 15; }
  __device__ __forceinline__ const Lookup* of(int block) const {
    return lookups + 2 * component(block);
  }
  __device__ __forceinline__ int after(int block) const {
    return block + 1 == per_mcu ? 0 : block + 1;
  }
};

// The Huffman tables, in shared memory, for all threads of a block.
__device__ __forceinline__ const Lookup* shared_lookups(const Scratch& own, const Jpeg& jpeg) {
  __shared__ Lookup lookups[6];
  const int4* const from = reinterpret_cast<const int4*>(own.lookup);
  int4* const to = reinterpret_cast<int4*>(lookups);
  const int vectors = 2 * jpeg.components * int(sizeof(Lookup) / sizeof(int4));
  for (int i = threadIdx.x; i < vectors; i += blockDim.x) to[i] = from[i];
  __syncthreads();
  return lookups;
}

// Decodes the symbols that begin ahead of the bit `end`.
__device__ __forceinline__ Record walk(const Tables& tables, const unsigned* words, State at,
                                       int end) {
  Reader reader(words, at.bit);
  Record record{};
  const Lookup* lookup = tables.of(at.block) + (at.z != 0);
  int blocks = 0;
  while (at.bit < end) {
    const unsigned word = reader.from(at.bit);
    const bool dc = at.z == 0;
    const unsigned symbol = symbol_at(*lookup, word, dc);
    at.bit += symbol & 31;
    at.z += symbol >> 9;
    if (!dc && at.z < 64) continue;  // most often
    if (dc) {
      const int number = number_of(symbol, word), component = tables.component(at.block);
#pragma unroll
      for (int i = 0; i < 3; ++i) record.dc[i] += i == component ? number : 0;
      lookup += at.z;
    } else {
      at.z = 0;
      at.block = tables.after(at.block);
      lookup = tables.of(at.block);
      ++blocks;
    }
  }
  at.bit -= end;
  record.state = at.packed() | blocks << STATE_BITS;
  return record;
}

constexpr unsigned char NO_LINK = 0x7f, RESTART = 0x80;

__device__ __forceinline__ unsigned char link_to(int hops, int block) { return hops << 3 | block; }

// The record of a walker in a round.
__device__ __forceinline__ Record* record_of(Record* records, const Jpeg& jpeg, int round,
                                             int walker) {
  return records + (round * jpeg.walkers + walker);
}

__global__ void __launch_bounds__(128)
    jpeg_walk(const unsigned char* entries, unsigned char* scratch, int pitch, int scratch_pitch,
              int round) {
  follow_previous();
  const Entry& entry = entry_at(entries, pitch);
  if (entry.jpeg == 0) return;
  const Jpeg& jpeg = jpeg_of(entry);
  Scratch& own = scratch_at(scratch, scratch_pitch);
  const int walkers = own.slots * int(jpeg.per_mcu);
  if (own.whole != 0 || int(blockIdx.x * blockDim.x) >= walkers) return;
  const Tables tables(shared_lookups(own, jpeg), jpeg);
  const int* const starts = part<int>(own, jpeg.starts);
  const unsigned* const words = part<unsigned>(own, jpeg.bytes);
  unsigned char* const links = part<unsigned char>(own, jpeg.links);
  Record* const records = part<Record>(own, jpeg.records);

  for (int walker = thread_index(); walker < walkers; walker += gridDim.x * blockDim.x) {
    if (round > 0 && links[walker] != NO_LINK) continue;
    unsigned slots = walker;
    const int block = peel(slots, jpeg.per_mcu), of_slot = walker - block;
    const int first = int(slots), now = first + round;
    const Slot slot = slot_of(starts, jpeg.segments, now);
    State at{0, block, 0};
    if (round == 0) {
      // What lies behind a segment's last byte is empty, and leads to the next segment; so does the
      // truth of a segment, which begins with the first block.
      const bool empty = slot.begin >= slot.last;
      if (empty && block == 0) *record_of(records, jpeg, 0, walker) = Record{};
      if (empty || (now == slot.first && block != 0)) {
        links[walker] = block != 0 ? link_to(0, 0) : link_to(1, 0) | RESTART;
        continue;
      }
    } else {
      at = State::of(record_of(records, jpeg, round - 1, walker)->state);
      if (round == 1) {
        unsigned char twin = NO_LINK;
        const unsigned mine = at.packed();
#pragma unroll 1
        for (int i = block - 1; i >= 0; --i)
          if ((record_of(records, jpeg, 0, of_slot + i)->state & STATE) == mine)
            twin = link_to(0, i);
        if (twin != NO_LINK) {
          links[walker] = twin;
          continue;
        }
      }
    }
    at.bit += slot.begin;
    const Record record = walk(tables, words, at, slot.end);
    *record_of(records, jpeg, round, walker) = record;
    unsigned char link = NO_LINK;
    if (slot.end == slot.last) {
      link = link_to(round + 1, 0) | RESTART;
    } else if (round > 0) {
      const Record* const others = record_of(records, jpeg, 0, of_slot + round * int(jpeg.per_mcu));
#pragma unroll 1
      for (int i = int(jpeg.per_mcu) - 1; i >= 0; --i)
        if ((others[i].state & STATE) == (record.state & STATE)) link = link_to(round, i);
    }
    links[walker] = link;
  }
}

constexpr int RESOLVING = 512;  // threads
constexpr int RANGE = 32;       // slots
constexpr int MOST_RANGES = MOST_SLOTS / RANGE;
constexpr int MOST_HOPS = ROUNDS + 1;
constexpr int ENTRANCES = (MOST_HOPS + 1) * 8;  // links into a range, but for RESTART

// Follows links through the slots up to `end`. Calls visit(slot, block, link that leads there, link
// that leads on). Returns the link that leads out of them, as one from `end`; or NO_LINK.
template <class Visit>
__device__ __forceinline__ unsigned char follow(const unsigned char* links, int per_mcu, int begin,
                                                int end, unsigned char link, Visit visit) {
  int slot = begin + (link >> 3 & 15), block = link & 7;
  while (slot < end) {
    const unsigned char on = links[slot * per_mcu + block];
    if (on == NO_LINK) return NO_LINK;
    visit(slot, block, link, on);
    slot += on >> 3 & 15;
    block = on & 7;
    link = on;
  }
  return link_to(slot - end, block) | (link & RESTART);
}

__global__ void __launch_bounds__(RESOLVING, 1)
    jpeg_resolve(const unsigned char* entries, unsigned char* scratch, int* flags, int pitch,
                 int scratch_pitch, int last) {
  __shared__ unsigned char exits[MOST_RANGES][ENTRANCES];
  __shared__ unsigned char enters[MOST_RANGES];
  __shared__ bool whole;
  follow_previous();
  const Entry& entry = entry_at(entries, pitch);
  if (entry.jpeg == 0) return;
  const Jpeg& jpeg = jpeg_of(entry);
  Scratch& own = scratch_at(scratch, scratch_pitch);
  const int slots = own.slots, per_mcu = jpeg.per_mcu, ranges = (slots + RANGE - 1) / RANGE;
  if (own.whole != 0 || slots == 0) return;
  const unsigned char* const links = part<unsigned char>(own, jpeg.links);

  // Where each link into a range leads out of it; then, one after another, which is the truth.
  const auto nothing = [](int, int, unsigned char, unsigned char) {};
  for (int i = threadIdx.x; i < ranges * ENTRANCES; i += RESOLVING) {
    const int range = i / ENTRANCES, entrance = i % ENTRANCES;
    if ((entrance & 7) < per_mcu)
      exits[range][entrance] =
          follow(links, per_mcu, range * RANGE, min((range + 1) * RANGE, slots), entrance, nothing);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned char link = RESTART;
    for (int range = 0; range < ranges && link != NO_LINK; ++range) {
      enters[range] = link;
      link = exits[range][link & ~RESTART];
    }
    whole = link != NO_LINK;
    if (whole) own.whole = 1;
    if (!whole && last != 0) atomicOr(flags + blockIdx.y, NOT_SYNCHRONISED);
  }
  __syncthreads();
  if (!whole) return;

  // A walker's record of its own subsequence counts at a segment's begin, where it guessed nothing;
  // elsewhere it is that of the walker that led here.
  int* const sources = part<int>(own, jpeg.sources);
  for (int range = threadIdx.x; range < ranges; range += RESOLVING) {
    const auto mark = [&](int slot, int block, unsigned char link, unsigned char on) {
      const int hops = on >> 3 & 15, rounds = on & RESTART ? hops : hops + 1;
      for (int round = link & RESTART ? 0 : 1; round < rounds; ++round)
        sources[slot + round] = round * jpeg.walkers + slot * per_mcu + block;
    };
    follow(links, per_mcu, range * RANGE, min((range + 1) * RANGE, slots), enters[range], mark);
  }
  __syncthreads();

  // What the subsequences before each came to.
  const Record* const records = part<Record>(own, jpeg.records);
  Record* const sums = part<Record>(own, jpeg.sums);
  const int each = (slots + RESOLVING - 1) / RESOLVING;
  const int begin = min(int(threadIdx.x) * each, slots), end = min(begin + each, slots);
  Record sum{};
  const auto add = [&](const Record& record) {
    sum.state += record.state >> STATE_BITS;
#pragma unroll
    for (int i = 0; i < 3; ++i) sum.dc[i] += record.dc[i];
  };
  for (int slot = begin; slot < end; ++slot) add(records[sources[slot]]);
  sum.state = sums_of<RESOLVING>(sum.state).before;
#pragma unroll
  for (int i = 0; i < 3; ++i) sum.dc[i] = sums_of<RESOLVING>(sum.dc[i]).before;
  for (int slot = begin; slot < end; ++slot) {
    sums[slot] = sum;
    add(records[sources[slot]]);
  }
}

__global__ void __launch_bounds__(128)
    jpeg_write(const unsigned char* entries, unsigned char* scratch, int* flags, int pitch,
               int scratch_pitch) {
  follow_previous();
  const Entry& entry = entry_at(entries, pitch);
  if (entry.jpeg == 0) return;
  const Jpeg& jpeg = jpeg_of(entry);
  Scratch& own = scratch_at(scratch, scratch_pitch);
  if (own.whole == 0 || int(blockIdx.x * blockDim.x) >= own.slots) return;
  const Tables tables(shared_lookups(own, jpeg), jpeg);
  const int* const starts = part<int>(own, jpeg.starts);
  const unsigned* const words = part<unsigned>(own, jpeg.bytes);
  const int* const sources = part<int>(own, jpeg.sources);
  const Record* const records = part<Record>(own, jpeg.records);
  const Record* const sums = part<Record>(own, jpeg.sums);
  short* const coefficients = part<short>(own, jpeg.coefficients);

  unsigned wrong = 0;
  for (int now = thread_index(); now < own.slots; now += gridDim.x * blockDim.x) {
    const Slot slot = slot_of(starts, jpeg.segments, now);
    if (slot.begin >= slot.last && now != slot.first) continue;
    const int end_block = min((slot.segment + 1) * jpeg.interval, jpeg.blocks);
    const Record before = sums[now], ahead = sums[slot.first];
    unsigned blocks = slot.segment * jpeg.interval + (before.state - ahead.state);
    if (blocks >= unsigned(end_block)) continue;
    const int source = sources[now];
    State at =
        source < jpeg.walkers ? State{0, 0, 0} : State::of(records[source - jpeg.walkers].state);
    at.bit += slot.begin;
    unsigned dc[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) dc[i] = before.dc[i] - ahead.dc[i];

    Reader reader(words, at.bit);
    const Lookup* lookup = tables.of(at.block) + (at.z != 0);
    short* to = coefficients + size_t(blocks) * 64;
    int left = end_block - int(blocks);
    while (at.bit < slot.end && left > 0) {
      const unsigned word = reader.from(at.bit);
      const bool is_dc = at.z == 0;
      const unsigned symbol = symbol_at(*lookup, word, is_dc);
      at.bit += symbol & 31;
      at.z += symbol >> 9;
      if (symbol == NO_CODE) wrong |= BAD_CODE;
      if (at.bit > slot.last) wrong |= BITS_MISSING;
      int number = number_of(symbol, word);
      if (is_dc) {
        const int component = tables.component(at.block);
#pragma unroll
        for (int i = 0; i < 3; ++i) {
          dc[i] += i == component ? number : 0;
          if (i == component) number = int(dc[i]);
        }
        if (number != short(number)) wrong |= OVERFLOW;
        *to = number;
        lookup += at.z;
        continue;
      }
      if ((symbol >> 5 & 15) != 0 && at.z <= 64) to[at.z - 1] = number;
      if (at.z >= 64) {
        if (at.z > 64 && symbol >> 9 < 64) wrong |= TOO_MANY_COEFFICIENTS;
        at.z = 0;
        at.block = tables.after(at.block);
        lookup = tables.of(at.block);
        to += 64;
        --left;
      }
    }
    if (left > 0 && slot.end == slot.last) wrong |= BITS_MISSING;
    if (left == 0 && slot.last - at.bit > 7) wrong |= BITS_LEFT_OVER;
  }
  if (wrong != 0) atomicOr(flags + blockIdx.y, int(wrong));
}
