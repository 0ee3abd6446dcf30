"""cuLaunchKernelEx of NVIDIA's driver, through ctypes: CuPy has no launch with attributes.

Structures are those of cuda.h of CUDA 12 and 13.
"""

import ctypes
from collections.abc import Sequence
from functools import cache

from kernels.device.device import Dim3

_SUCCESS = 0
_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_...


class DriverError(Exception):
    """The driver refused a launch; `status` is a CUresult."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cuLaunchKernelEx: CUDA error {status}")
        self.status = status


class Attribute(ctypes.Structure):
    """CUlaunchAttribute, its value of 64 bytes an int here."""

    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_int * 16))


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


def launch_dependent(
    function: int,
    grid: Dim3,
    block: Dim3,
    shared_bytes: int,
    parameters: Sequence[bytes],
    stream: int,
) -> None:
    """Launch a CUfunction that may begin before the one ahead of it in the stream has ended.

    `parameters` are the bytes of each. Raises DriverError.
    """
    attribute = Attribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION)
    attribute.value[0] = 1
    config = Config(grid, block, shared_bytes, stream, ctypes.pointer(attribute), 1)
    buffers = [ctypes.create_string_buffer(each, len(each)) for each in parameters]
    pointers = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
    status = _library().cuLaunchKernelEx(
        ctypes.byref(config), ctypes.c_void_p(function), pointers, None
    )
    if status != _SUCCESS:
        raise DriverError(status)


@cache
def _library() -> ctypes.CDLL:
    """The driver, which CuPy has loaded already."""
    return ctypes.CDLL("libcuda.so.1")
