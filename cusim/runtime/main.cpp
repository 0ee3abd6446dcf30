// The simulated device: a separate process, so that a kernel's fault ends only this process.
//
//   cusim SOCKET MEMORY BYTES
//
// SOCKET is the descriptor of the socket to the host (protocol.h). MEMORY is the descriptor of a
// file of BYTES, which both processes map as device memory. The process ends when the host closes
// the socket, or with a fault.
#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "accesses.h"
#include "fault.h"
#include "launch.h"
#include "memory.h"
#include "protocol.h"

namespace cusim {

std::string receive(int socket, size_t size) {
  std::string bytes(size, '\0');
  for (size_t got = 0; got < size;) {
    const ssize_t more = recv(socket, bytes.data() + got, size - got, 0);
    if (more <= 0) _exit(EXIT_SUCCESS);
    got += size_t(more);
  }
  return bytes;
}

void reply(int socket, Status status, const std::string& bytes) {
  const std::string all = bytes_of(status) + bytes_of(uint32_t(bytes.size())) + bytes;
  for (size_t sent = 0; sent < all.size();) {
    const ssize_t more = send(socket, all.data() + sent, all.size() - sent, MSG_NOSIGNAL);
    if (more <= 0) _exit(EXIT_SUCCESS);
    sent += size_t(more);
  }
}

namespace {

struct Answer {
  Status status;
  std::string bytes;
};

// What cusim/entry.cpp puts into every kernel's library.
struct Exported {
  Entry entry;
  char* shared;
  char* shared_end;
};

// Name, library → module, bytes of static shared memory, parameters.
Answer load(Reader& request) {
  auto module = std::make_unique<Module>();
  module->kernel = request.string();
  void* library = dlopen(request.string().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {Status::Refused, dlerror()};
  const auto* exported = static_cast<const Exported*>(dlsym(library, "cusim_exported"));
  if (exported == nullptr) return {Status::Refused, dlerror()};
  module->entry = exported->entry;
  module->static_shared = exported->shared;
  module->static_shared_bytes = size_t(exported->shared_end - exported->shared);
  const std::string answer = bytes_of(uint64_t(reinterpret_cast<uintptr_t>(module.get()))) +
                             bytes_of(uint64_t(module->static_shared_bytes)) +
                             module->entry.parameters;
  module.release();  // loaded for good
  return {Status::Done, answer};
}

// Whether it may overlap, module, grid, block, cluster, dynamic shared bytes, order, deadline,
// seed, arguments.
std::unique_ptr<Launch> read_launch(Reader& request) {
  auto read = std::make_unique<Launch>();
  Launch& launch = *read;
  launch.dependent = request.number<uint32_t>() != 0;
  launch.module = reinterpret_cast<Module*>(request.number<uint64_t>());
  launch.kernel = launch.module->kernel;
  for (dim3* size : {&launch.grid, &launch.block, &launch.cluster}) {
    for (unsigned* axis : {&size->x, &size->y, &size->z}) *axis = request.number<uint32_t>();
  }
  launch.dynamic_shared_bytes = request.number<uint32_t>();
  launch.order = Order(request.number<uint32_t>());
  launch.deadline = request.number<uint32_t>();
  launch.seed = request.number<uint64_t>();
  launch.arguments.resize(request.number<uint32_t>());
  for (std::string& argument : launch.arguments) {
    argument = request.string();
    launch.argument_pointers.push_back(argument.data());
  }
  return read;
}

// A launch, and whether it was begun → steps, and what a profile has recorded.
Answer launch_kernel(Reader& request) {
  const uint64_t before = steps;
  const bool begun = request.number<uint32_t>() != 0;
  run(read_launch(request), begun);
  return {Status::Done, bytes_of(steps - before) + recorded()};
}

Answer answer(Request kind, Reader& request, char* memory) {
  switch (kind) {
    case Request::Load:
      return load(request);
    case Request::Allocate: {
      char* start = memory + request.number<uint64_t>();
      const auto size = request.number<uint64_t>();
      allocate(start, size, request.number<uint32_t>() != 0);
      return {Status::Done, ""};
    }
    case Request::Free:
      release(memory + request.number<uint64_t>());
      return {Status::Done, ""};
    case Request::Begin:
      begin(read_launch(request));
      return {Status::Done, ""};
    case Request::Launch:
      return launch_kernel(request);
  }
  return {Status::Refused, "no such request"};
}

[[noreturn]] void serve(int socket, char* memory) {
  reply(socket, Status::Done, bytes_of(uint64_t(reinterpret_cast<uintptr_t>(memory))));
  for (;;) {
    Reader header(receive(socket, 8));
    const auto kind = header.number<Request>();
    Reader request(receive(socket, header.number<uint32_t>()));
    const Answer done = answer(kind, request, memory);
    reply(socket, done.status, done.bytes);
  }
}

}  // namespace

}  // namespace cusim

int main(int count, char** arguments) {
  if (count != 4) return EXIT_FAILURE;
  const int socket = atoi(arguments[1]);
  cusim::install_fault_handlers(socket);
  cusim::serve(socket,
               cusim::map_device_memory(atoi(arguments[2]), strtoull(arguments[3], nullptr, 10)));
}
