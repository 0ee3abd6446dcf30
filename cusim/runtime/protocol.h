// The messages between the host and the simulator: the host sends a request, the simulator answers,
// and then the next request may follow. cusim/process.py is the host's side.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>

namespace cusim {

enum class Request : uint32_t { Load = 1, Allocate = 2, Free = 3, Launch = 4, Begin = 5 };
enum class Status : uint32_t { Done = 0, Refused = 1, Fault = 2 };

// The bytes of a request, read from front to back.
class Reader {
 public:
  explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {}

  template <class T>
  T number() {
    T value;
    memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::string string() {
    const auto size = number<uint32_t>();
    return std::string(take(size), size);
  }

 private:
  const char* take(size_t size) { return bytes_.data() + (position_ += size) - size; }

  std::string bytes_;
  size_t position_ = 0;
};

template <class T>
std::string bytes_of(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

// Sends an answer; ends the process where the host has gone.
void reply(int socket, Status status, const std::string& bytes);

// Receives exactly so many bytes; ends the process where the host has gone.
std::string receive(int socket, size_t size);

}  // namespace cusim
