"""Calls NVRTC, NVIDIA's run-time compiler, which turns CUDA C++ into a cubin for one architecture.

This module calls twelve functions of NVRTC through ctypes. These functions exist in CUDA 12 and 13,
and need no driver. CuPy's binding of NVRTC is not used, because it cuts the last byte off a cubin.
"""

import ctypes
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernels.device.compilers import doubt
from kernels.device.device import DeviceError
from kernels.installation import how_to_install

_SUCCESS = 0
_COMPILATION_FAILED = 6  # NVRTC_ERROR_COMPILATION: the log has the reason

_log = logging.getLogger(__name__)


class CompilerNotFoundError(DeviceError):
    """Raised when NVRTC is not installed or cannot be loaded."""


class NvrtcError(RuntimeError):
    """Raised when NVRTC refuses a source or a call; contains its log."""


@dataclass(frozen=True, slots=True)
class CompilerOutput:
    """Holds the result of one compilation."""

    cubin: bytes
    lowered_name: str  # the kernel's mangled name in the cubin
    ptx: str  # of which ptxas made the cubin
    log: str  # ptxas's report, where `--ptxas-options=-v` asked for one


@cache
def version() -> tuple[int, int]:
    """Return the compiler's version: (13, 0) for CUDA 13.0. Raises CompilerNotFoundError."""
    return _version(_library())


def _version(library: ctypes.CDLL) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    # It fails for null pointers only.
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def architectures() -> tuple[int, ...]:
    """Return the architectures that NVRTC supports, such as (75, 80, ...). Raises
    CompilerNotFoundError."""
    count = ctypes.c_int()
    _check(_library().nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    numbers = (ctypes.c_int * count.value)()
    _check(_library().nvrtcGetSupportedArchs(numbers))
    return tuple(numbers)


def compile_program(
    source: str,
    filename: str,
    expression: str,
    headers: Mapping[str, str],
    options: Sequence[str],
) -> CompilerOutput:
    """Compile `source` and instantiate `expression`, a kernel's name with its template arguments.

    `headers` maps the name in each `#include "name"` to the text of that file. NVRTC searches no
    folder. Several threads may call this function concurrently. Raises NvrtcError with the log.
    """
    program = ctypes.c_void_p()
    _check(
        _library().nvrtcCreateProgram(
            ctypes.byref(program),
            source.encode(),
            filename.encode(),
            len(headers),
            _strings(list(headers.values())),
            _strings(list(headers)),
        )
    )
    try:
        _check(_library().nvrtcAddNameExpression(program, expression.encode()))
        result = _library().nvrtcCompileProgram(program, len(options), _strings(options))
        log = _bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if result == _COMPILATION_FAILED:
            raise NvrtcError(log)
        _check(result, log)
        lowered = ctypes.c_char_p()
        _check(_library().nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(lowered)))
        ptx = _bytes(program, "PTX").rstrip(b"\0").decode()
        return CompilerOutput(_bytes(program, "CUBIN"), (lowered.value or b"").decode(), ptx, log)
    finally:
        _check(_library().nvrtcDestroyProgram(ctypes.byref(program)))


def _bytes(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(_library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(_library(), f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _strings(texts: Sequence[str]) -> "ctypes.Array[ctypes.c_char_p]":
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def _check(result: int, log: str = "") -> None:
    if result != _SUCCESS:
        meaning: bytes = _library().nvrtcGetErrorString(result)
        raise NvrtcError(f"{meaning.decode()}\n{log}".rstrip())


def _library() -> ctypes.CDLL:
    with _loading:
        return _load()


_loading = threading.Lock()


@cache
def _load() -> ctypes.CDLL:
    """Load libnvrtc from the nvidia wheels, a conda environment, CUDA_PATH or the system.

    Logs a warning if compilers.py does not list this version.
    """
    try:
        # Installed with CuPy; a machine that serves on its CPU has neither.
        from cuda.pathfinder import (  # noqa: PLC0415
            DynamicLibNotFoundError,
            load_nvidia_dynamic_lib,
        )
    except ImportError as missing:
        raise CompilerNotFoundError(_HOW_TO_INSTALL) from missing
    try:
        path = load_nvidia_dynamic_lib("nvrtc").abs_path
    except DynamicLibNotFoundError as missing:
        raise CompilerNotFoundError(_HOW_TO_INSTALL) from missing
    # NVRTC opens its builtins by name when it first compiles. The wheels of 13.0 have no RUNPATH by
    # which it could find them, so they must be there before any thread compiles.
    for builtins in Path(path).parent.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(builtins))
    library = ctypes.CDLL(path)
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    if why := doubt(_version(library)):
        _log.warning("%s; %s", why, _HOW_TO_CHANGE)
    return library


_HOW_TO_CHANGE = f"{how_to_install('cuda13')} (or cuda12, to match the driver)"
_HOW_TO_INSTALL = f"NVRTC was not found; {_HOW_TO_CHANGE}"
