// Device memory, which the host maps too. Each allocation has a red zone around it, and unmapped
// addresses around that. A write into the red zone is found after the launch, a read from it gives
// NaN, and an access beyond it is a fault. Under AddressSanitizer every access to the red zone is a
// fault at once.
#pragma once
#include <cstddef>
#include <string>

namespace cusim {

// 0xFFFF is NaN as half and bfloat16, 0xFFFFFFFF as float, 0xFF... as double, and -1.
constexpr unsigned char poison = 0xff;
constexpr size_t red_zone = 64 << 10;

// Maps the host's file; returns where.
char* map_device_memory(int file, size_t size);

// What is `constant` no kernel writes that may overlap with another.
void allocate(char* start, size_t size, bool constant);
void release(char* start);

// Faults if something was written into a red zone.
void check_red_zones();

// Whether it is an address of device memory, allocated or not.
bool is_device_memory(const void* address);

// Whether all of it lies in one allocation.
bool in_device_memory(const void* start, size_t size);

// Whether all of it lies in one constant allocation.
bool is_constant(const void* start, size_t size);

// The address, and which allocation it is near.
std::string describe_address(const void* address);

// Without the sanitizers' seeing it.
void raw_fill(void* to, unsigned char value, size_t size);
void raw_copy(void* to, const void* from, size_t size);

// The first byte that is not poison; null if there is none.
const char* first_unpoisoned(const char* start, size_t size);

}  // namespace cusim
