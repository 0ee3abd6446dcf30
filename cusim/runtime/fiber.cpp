#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sanitizers.h"

#if !defined(__x86_64__)
#define CUSIM_UCONTEXT
#endif
#if defined(CUSIM_UCONTEXT)
#include <ucontext.h>
#endif

namespace cusim {

Fiber main_fiber;
Fiber* current_fiber = &main_fiber;

namespace {

// Address space only: pages that are never touched take no memory.
#if defined(CUSIM_ASAN) || defined(CUSIM_TSAN)
constexpr size_t stack_bytes = 256 << 10;
#else
constexpr size_t stack_bytes = 128 << 10;
#endif

constexpr size_t frames_bytes = 16 << 10;

// The fiber that was left last; it is by now away, and what it was is to be told to the sanitizer.
Fiber* left = nullptr;

Fiber create() {
  const size_t page = size_t(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, stack_bytes + page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {
    perror("cusim: no memory for a stack");
    abort();
  }
  Fiber fiber;
  fiber.bottom = static_cast<char*>(memory) + page;
  fiber.size = stack_bytes;
  // What a kernel reads before it has written it is a NaN, not the 0 of new memory: the frames of
  // kernels are at the stack's top.
  memset(fiber.bottom + fiber.size - frames_bytes, 0xff, frames_bytes);
#if defined(CUSIM_TSAN)
  fiber.tsan = __tsan_create_fiber(0);
#endif
  return fiber;
}

#if !defined(CUSIM_UCONTEXT)

// swapcontext() asks the kernel for the signal mask each time: 20 times as slow as this, which
// saves what a function must not change (System V ABI) and goes on on the other stack.
extern "C" void cusim_switch(void** save, void* resume);
asm(R"(
.text
.type cusim_switch, @function
cusim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cusim_switch, . - cusim_switch
)");

void swap(Fiber& from, Fiber& to) { cusim_switch(&from.resume, to.resume); }

#else

void swap(Fiber& from, Fiber& to) {
  ucontext_t here;
  from.resume = &here;
  swapcontext(&here, static_cast<ucontext_t*>(to.resume));
}

#endif

void arrive() {
#if defined(CUSIM_ASAN)
  const void* bottom;
  size_t size;
  __sanitizer_finish_switch_fiber(current_fiber->fake_stack, &bottom, &size);
  if (left == &main_fiber) {
    main_fiber.bottom = static_cast<char*>(const_cast<void*>(bottom));
    main_fiber.size = size;
  }
#endif
}

}  // namespace

Fiber* fiber(size_t index) {
  static Fiber fibers[max_fibers];
  if (index >= max_fibers) abort();
  if (fibers[index].bottom == nullptr) fibers[index] = create();
  return &fibers[index];
}

void prepare(Fiber& fiber, void (*entry)()) {
  fiber.fake_stack = nullptr;
#if !defined(CUSIM_UCONTEXT)
  // What cusim_switch pops: six registers, then where to go, as if called from address 0. The ABI
  // wants the stack 16-byte aligned before that call.
  auto* top = reinterpret_cast<uint64_t*>(fiber.bottom + fiber.size);
  *--top = 0;
  *--top = reinterpret_cast<uint64_t>(entry);
  for (int i = 0; i < 6; i++) *--top = 0;
  fiber.resume = top;
#else
  auto* context = reinterpret_cast<ucontext_t*>(fiber.bottom);  // the far end, never reached
  getcontext(context);
  context->uc_stack.ss_sp = context + 1;
  context->uc_stack.ss_size = fiber.size - sizeof *context;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  fiber.resume = context;
#endif
}

void switch_to(Fiber& next, [[maybe_unused]] bool last) {
  Fiber& self = *current_fiber;
  left = &self;
  current_fiber = &next;
#if defined(CUSIM_ASAN)
  __sanitizer_start_switch_fiber(last ? nullptr : &self.fake_stack, next.bottom, next.size);
#endif
#if defined(CUSIM_TSAN)
  if (main_fiber.tsan == nullptr) main_fiber.tsan = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(next.tsan, __tsan_switch_to_fiber_no_sync);
#endif
  swap(self, next);
  arrive();
}

void entered() { arrive(); }

}  // namespace cusim
