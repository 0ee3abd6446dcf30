// The parts of CUDA's header that kernels use.
#pragma once
#include <cusim/narrow.h>

CUSIM_NARROW(__nv_bfloat16, __nv_bfloat162, bfloat16, Bfloat16Format)
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;
