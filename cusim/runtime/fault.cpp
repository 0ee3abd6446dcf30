#include "fault.h"

#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "block.h"
#include "launch.h"
#include "memory.h"
#include "protocol.h"
#include "sanitizers.h"

namespace cusim {

namespace {

int host = -1;

std::string where() {
  std::string place = "in " + (launch ? launch->kernel : std::string("no kernel"));
  if (block != nullptr) {
    place += ", block " + text(block->index);
    if (block->thread != nullptr) place += ", thread " + text(block->thread->index);
  }
  return place;
}

[[noreturn]] void tell(const std::string& message) {
  reply(host, Status::Fault, message);
  _exit(EXIT_SUCCESS);
}

// Where in which library: the host looks the line up.
std::string code_address(void* context) {
#if defined(__x86_64__)
  auto* user = static_cast<ucontext_t*>(context);
  auto* address = reinterpret_cast<char*>(user->uc_mcontext.gregs[REG_RIP]);
  Dl_info library;
  if (dladdr(address, &library) != 0 && library.dli_fname != nullptr) {
    char offset[32];
    snprintf(offset, sizeof offset, "+%#tx]", address - static_cast<char*>(library.dli_fbase));
    return std::string(" [") + library.dli_fname + offset;
  }
#endif
  return "";
}

// More than a signal handler may do in general, but this one does not return; should it never come
// to its end, the alarm ends it.
void on_signal(int signal, siginfo_t* information, void* context) {
  ::signal(SIGALRM, SIG_DFL);
  alarm(10);
  std::string what;
  switch (signal) {
    case SIGSEGV:
    case SIGBUS:
      what = "illegal address: " + describe_address(information->si_addr);
      break;
    case SIGFPE:
      what = "integer division by zero, or its result too large";
      break;
    case SIGALRM:
      what = "still running after " + std::to_string(launch ? launch->deadline : 0) + " seconds";
      break;
    default:
      what = strsignal(signal);
  }
  tell(what + " " + where() + code_address(context));
}

#if defined(CUSIM_ASAN) || defined(CUSIM_TSAN)
void on_sanitizer_death() {
  const std::string place = "cusim: " + where() + "\n";
  if (write(STDERR_FILENO, place.data(), place.size()) < 0) _exit(EXIT_FAILURE);
}
#endif

}  // namespace

std::string text(uint3 index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " +
         std::to_string(index.z) + ")";
}

std::string text(const Site& site) { return text(site.file_name(), site.line()); }

std::string text(const char* file, unsigned line) {
  const char* slash = strrchr(file, '/');
  return (slash ? slash + 1 : file) + (":" + std::to_string(line));
}

void fault(const std::string& site, const std::string& what) {
  tell(what + " " + where() + (site.empty() ? "" : ", at " + site));
}

void fault(const Site* site, const char* format, ...) {
  char message[2048];
  va_list values;
  va_start(values, format);
  vsnprintf(message, sizeof message, format, values);
  va_end(values);
  fault(site ? text(*site) : "", message);
}

void trap(const char* reason, Site site) { fault(&site, "%s", reason); }

void install_fault_handlers(int socket) {
  host = socket;
  // A stack that overflowed has no room for the handler.
  static char stack[64 << 10];
  stack_t alternate = {};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGALRM, &action, nullptr);
#if defined(CUSIM_ASAN) || defined(CUSIM_TSAN)
  __sanitizer_set_death_callback(on_sanitizer_death);  // they have handlers with more to say
#else
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    sigaction(signal, &action, nullptr);
  }
#endif
}

void set_deadline(unsigned seconds) { alarm(seconds); }

}  // namespace cusim

#if defined(CUSIM_ASAN)
// With each report of UndefinedBehaviorSanitizer's, which does not die as the others do.
extern "C" void __ubsan_on_report() { cusim::on_sanitizer_death(); }
#else
// What GCC calls where -fsanitize=alignment,bounds finds an address that its type does not allow,
// or an index that an array does not have. Defined here, not linked from UBSan's library, so that
// it is a fault as any other.

namespace {

struct Place {
  const char* file;
  uint32_t line, column;

  std::string text() const { return cusim::text(file, line); }
};

struct Type {
  uint16_t kind, information;
  char name[1];
};

}  // namespace

extern "C" void __ubsan_handle_type_mismatch_v1_abort(const void* data, uintptr_t address) {
  struct Mismatch {
    Place place;
    const Type* type;
    uint8_t log_alignment, kind;
  };
  const auto* mismatch = static_cast<const Mismatch*>(data);
  char what[128];
  snprintf(what, sizeof what, "misaligned address: %#zx is no multiple of %u", size_t(address),
           1u << mismatch->log_alignment);
  cusim::fault(mismatch->place.text(), what);
}

extern "C" void __ubsan_handle_out_of_bounds_abort(const void* data, uintptr_t index) {
  struct OutOfBounds {
    Place place;
    const Type *array, *index;
  };
  const auto* out = static_cast<const OutOfBounds*>(data);
  cusim::fault(out->place.text(), "index " + std::to_string(intptr_t(index)) +
                                      " out of bounds of " + out->array->name);
}
#endif
