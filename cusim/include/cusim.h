// CUDA C++ for g++: included before a kernel's source, which then compiles unchanged.
//
// A __shared__ variable becomes a static variable. A kernel's library has no other static
// variables, so the runtime uses the library's .bss as the block's static shared memory.
#pragma once
#include <cusim/runtime.h>

#define __global__ __attribute__((flatten))
#define __device__
#define __host__
#define __shared__ static
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__

#include <cusim/arithmetic.h>
#include <cusim/atomics.h>
#include <cusim/bulk.h>
#include <cusim/cluster.h>
#include <cusim/ptx.h>
#include <cusim/warp.h>
#include <cusim/wgmma.h>
