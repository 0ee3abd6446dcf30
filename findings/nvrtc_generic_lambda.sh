#!/usr/bin/env bash
# NVRTC of CUDA 13.1 and older refuses a generic lambda inside a kernel; that of 13.2 compiles it.
#
# Versions: nvidia-cuda-nvrtc 13.1.115 (refuses) and 13.2.51 (compiles); 12.8.93, 12.9.86 and 13.0.88 refuse, too.
# Needs Linux on x86-64 or ARM, and neither GPU nor driver.
#
# A lambda that is written inside a __global__ function takes that function's execution space, so that both kernels
# below are valid CUDA C++. Up to 13.1 that holds for `[&](int i)` but not for `[&](auto i)`, whose call operator is
# taken for a function of the host: "A function without execution space annotations (__host__/__device__/__global__)
# is considered a host function, and host functions are not allowed in JIT mode. Consider using -default-device flag".
# With --device-as-default-execution-space every version compiles both. So a kernel that compiles with a pinned 13.2
# or newer may fail beside PyTorch 2.11, which brings 13.0.
#
# Output seen on 2026-11-27:
#   NVRTC 13.1: plain lambda compiles, generic lambda is refused, with the flag compiles
#   NVRTC 13.2: plain lambda compiles, generic lambda compiles, with the flag compiles
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/compile.py" << 'PYTHON'
import ctypes
import sys
from pathlib import Path

(path,) = Path(sys.argv[1]).rglob("libnvrtc.so.13")
for builtins in path.parent.glob("libnvrtc-builtins.so*"):
    ctypes.CDLL(str(builtins))
nvrtc = ctypes.CDLL(str(path))


def compiles(parameter: str, *flags: str) -> str:
    source = (
        'extern "C" __global__ void fill(int *y) {'
        f"  const auto store = [&]({parameter} i) {{ y[i] = 1; }};"
        "  store(threadIdx.x);"
        "}"
    )
    program = ctypes.c_void_p()
    created = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"fill.cu", 0, None, None
    )
    assert created == 0, created
    options = [flag.encode() for flag in ("--std=c++17", "--gpu-architecture=sm_90", *flags)]
    result = nvrtc.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*options)
    )
    assert result in (0, 6), result  # NVRTC_ERROR_COMPILATION
    return "is refused" if result else "compiles"


major, minor = ctypes.c_int(), ctypes.c_int()
nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
print(
    f"NVRTC {major.value}.{minor.value}: plain lambda {compiles('int')},"
    f" generic lambda {compiles('auto')},"
    f" with the flag {compiles('auto', '--device-as-default-execution-space')}"
)
PYTHON

for release in 13.1.115 13.2.51; do
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder/$release" \
    "nvidia-cuda-nvrtc==$release"
  python3 "$folder/compile.py" "$folder/$release"
done | tee "$folder/seen"

diff "$folder/seen" - << 'EXPECTED'
NVRTC 13.1: plain lambda compiles, generic lambda is refused, with the flag compiles
NVRTC 13.2: plain lambda compiles, generic lambda compiles, with the flag compiles
EXPECTED
