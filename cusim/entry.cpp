// Builds a library with one kernel. CUSIM_SOURCE is the kernel's file, and CUSIM_KERNEL its name
// with its template arguments. cusim.h is included before this file.
#include CUSIM_SOURCE

#include <type_traits>
#include <utility>

// Where the linker puts the first and the last of the library's static variables.
extern "C" __attribute__((visibility("hidden"))) char __bss_start[], _end[];

namespace cusim {

constexpr char digit(size_t number) { return char('0' + number % 10); }

// What an enumeration is stored as; any other type is that type.
template <class T, bool = std::is_enum_v<T>>
struct Stored {
  using Type = T;
};
template <class T>
struct Stored<T, true> {
  using Type = std::underlying_type_t<T>;
};

// "p8,i4,f4,s48,": see Entry.
template <class... Parameter>
struct Parameters {
  static constexpr size_t each = 6;
  char text[sizeof...(Parameter) * each + 1] = {};

  constexpr Parameters() {
    size_t at = 0;
    (
        [&] {
          using P = typename Stored<Parameter>::Type;
          text[at++] = std::is_pointer_v<P>          ? 'p'
                       : std::is_floating_point_v<P> ? 'f'
                       : !std::is_integral_v<P>      ? 's'
                       : std::is_signed_v<P>         ? 'i'
                                                     : 'u';
          static_assert(sizeof(P) <= 4096, "CUDA's limit for all parameters is 4 KiB");
          for (size_t place = 1000, printed = 0; place != 0; place /= 10) {
            if (sizeof(P) >= place || printed != 0)
              text[at++] = digit(sizeof(P) / place), printed = 1;
          }
          text[at++] = ',';
        }(),
        ...);
  }
};

template <auto kernel, class Type = decltype(kernel)>
struct Callable;

template <auto kernel, class... Parameter>
struct Callable<kernel, void (*)(Parameter...)> {
  static constexpr Parameters<Parameter...> parameters = {};

  static void call(const void* const* arguments) {
    [&]<size_t... i>(std::index_sequence<i...>) {
      kernel(*static_cast<const Parameter*>(arguments[i])...);
    }(std::index_sequence_for<Parameter...>());
  }
};

struct Exported {
  Entry entry;
  char* shared;
  char* shared_end;
};

}  // namespace cusim

extern "C" __attribute__((visibility("default"))) const cusim::Exported cusim_exported = {
    {cusim::Callable<&CUSIM_KERNEL>::call, cusim::Callable<&CUSIM_KERNEL>::parameters.text},
    __bss_start,
    _end};
