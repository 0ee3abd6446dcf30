// The parts of CUDA's header that kernels use.
#pragma once
#include <cusim/narrow.h>

CUSIM_NARROW(__half, __half2, half, HalfFormat)
using half = __half;
using half2 = __half2;
