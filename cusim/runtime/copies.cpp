#include "copies.h"

#include <cstdint>
#include <cstring>

#include "accesses.h"
#include "block.h"
#include "fault.h"
#include "launch.h"
#include "memory.h"
#include "sanitizers.h"

namespace cusim {

void copy_async(void* shared, const void* global, int bytes, int read, Site site) {
  const size_t size = size_t(bytes);
  if (uintptr_t(shared) % size != 0 || uintptr_t(global) % size != 0) {
    fault(&site, "misaligned cp.async of %d bytes from %p to %p", bytes, global, shared);
  }
  if (!in_shared_memory(shared, size)) {
    fault(&site, "cp.async to %p, outside the block's shared memory", shared);
  }
  if (read < 0 || read > bytes) fault(&site, "cp.async reads %d of %d bytes", read, bytes);
  if (read > 0 && !in_device_memory(global, size_t(read))) {
    fault(&site, "cp.async out of bounds: from %s", describe_address(global).c_str());
  }
  if (read > 0) about_to_access(false, global, size_t(read));
  record(Access::CopyTo, shared, size, __builtin_return_address(0));
  if (read > 0) record(Access::CopyFrom, global, size_t(read), __builtin_return_address(0));
  writes(shared, size);
  raw_fill(shared, poison, size);
  Copies& copies = block->thread->copies;
  copies.copies.push_back({static_cast<char*>(shared), static_cast<const char*>(global), bytes,
                           read, copies.committed});
  block->thread->site = site;
}

void copy_commit() { block->thread->copies.committed++; }

void copy_wait(int pending) {
  Copies& copies = block->thread->copies;
  auto done = copies.copies.begin();
  for (; done != copies.copies.end() && done->group < copies.committed - pending; ++done) {
    const size_t size = size_t(done->bytes);
    writes(done->shared, size);
    const size_t read = size_t(done->read);
    if (read > 0) {
      reads(done->global, read);
      raw_copy(done->shared, done->global, read);
    }
    if (read < size) raw_fill(done->shared + read, 0, size - read);
    block->proxy.stored(done->shared, size);
  }
  copies.copies.erase(copies.copies.begin(), done);
}

void check_copies_done(Thread& thread) {
  Copies& copies = thread.copies;
  if (!copies.copies.empty()) {
    fault(&thread.site, "returned with %zu cp.async under way, the last begun",
          copies.copies.size());
  }
  copies.committed = 0;
}

}  // namespace cusim
