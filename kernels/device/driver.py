"""Calls functions of NVIDIA's driver that CuPy lacks, through ctypes: launch attributes, tensor
maps and graph edges.

The structures are the same in CUDA 12 and CUDA 13 (cuda.h).
"""

import ctypes
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from kernels.device.device import NO_CLUSTERS, Dim3
from kernels.device.tensor_map import TensorMap
from kernels.problems.precision import FLOAT, HALF

_SUCCESS = 0
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_...
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
_PROGRAMMATIC = 1  # CU_GRAPH_DEPENDENCY_TYPE_...
_DATA_TYPES = {HALF: 6, FLOAT: 7}  # CU_TENSOR_MAP_DATA_TYPE_...
_NOT_INTERLEAVED = 0  # CU_TENSOR_MAP_INTERLEAVE_...
_SWIZZLE_128B = 3  # CU_TENSOR_MAP_SWIZZLE_...
_L2_128B = 2  # CU_TENSOR_MAP_L2_PROMOTION_...: the sectors of a whole line
_ZEROS = 0  # CU_TENSOR_MAP_FLOAT_OOB_FILL_...

_MAP_BYTES, _MAP_ALIGNMENT = 128, 128  # of a CUtensorMap; before CUDA 13 at 64 bytes


class DriverError(Exception):
    """Raised when the driver refuses a call; `status` is a CUresult."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function}: CUDA error {status}")
        self.status = status


class Attribute(ctypes.Structure):
    """Mirrors CUlaunchAttribute, whose value of 64 bytes is declared as 16 ints."""

    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_int * 16))


class Config(ctypes.Structure):
    """Mirrors CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


class EdgeData(ctypes.Structure):
    """Mirrors CUgraphEdgeData."""

    _fields_ = (
        ("from_port", ctypes.c_ubyte),
        ("to_port", ctypes.c_ubyte),
        ("type", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte * 5),
    )


def launch_kernel(
    function: int,
    grid: Dim3,
    block: Dim3,
    shared_bytes: int,
    parameters: Sequence[bytes],
    stream: int,
    *,
    dependent: bool = False,
    cluster: Dim3 = NO_CLUSTERS,
) -> None:
    """Launch a CUfunction in clusters with `cluster` blocks along each axis.

    If `dependent`, the launch may begin before the previous launch in the stream has ended.
    `parameters` has the bytes of each parameter of the kernel. Raises DriverError.
    """
    chosen: dict[int, tuple[int, ...]] = {}
    if dependent:
        chosen[_PROGRAMMATIC_STREAM_SERIALIZATION] = (1,)
    if cluster != NO_CLUSTERS:
        chosen[_CLUSTER_DIMENSION] = cluster
    attributes = (Attribute * len(chosen))(
        *(Attribute(id=name, value=values) for name, values in chosen.items())
    )
    config = Config(grid, block, shared_bytes, stream, attributes, len(chosen))
    buffers = [ctypes.create_string_buffer(parameter, len(parameter)) for parameter in parameters]
    pointers = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
    _call("cuLaunchKernelEx", ctypes.byref(config), ctypes.c_void_p(function), pointers, None)


@lru_cache(maxsize=4096)
def encoded(tensor: TensorMap) -> bytes:
    """Return the bytes of the CUtensorMap that describes `tensor`. Raises DriverError if the driver
    refuses the tensor."""
    if not isinstance(tensor.base, int):
        raise TypeError(
            f"the tensor map of {tensor.base} has no address yet; bind the launch first"
        )
    room = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
    skipped = -ctypes.addressof(room) % _MAP_ALIGNMENT
    head = (
        ctypes.c_void_p(ctypes.addressof(room) + skipped),
        ctypes.c_int(_DATA_TYPES[tensor.stored]),
        ctypes.c_uint32(len(tensor.dims)),
        ctypes.c_void_p(tensor.base),
        _array(ctypes.c_uint64, *tensor.dims),
        _array(ctypes.c_uint64, *tensor.strides),
    )
    tail = map(ctypes.c_int, (_NOT_INTERLEAVED, _SWIZZLE_128B, _L2_128B, _ZEROS))
    if tensor.windows is None:
        box = _array(ctypes.c_uint32, tensor.row, tensor.rows)
        _call("cuTensorMapEncodeTiled", *head, box, _array(ctypes.c_uint32, 1, 1), *tail)
    else:
        # Width is first in corners, as in dims and coordinates, though the driver's manual has
        # {D, H, W}. A GPU must show which it is, by windows that are not square.
        steps, lower, upper = tensor.windows
        _call(
            "cuTensorMapEncodeIm2col",
            *head,
            _array(ctypes.c_int, *lower),
            _array(ctypes.c_int, *upper),
            ctypes.c_uint32(tensor.row),
            ctypes.c_uint32(tensor.rows),
            _array(ctypes.c_uint32, 1, *steps, 1),
            *tail,
        )
    return room.raw[skipped : skipped + _MAP_BYTES]


def _array(kind: Any, *numbers: int) -> Any:
    return (kind * len(numbers))(*numbers)


def programmatic_edges(graph: int) -> int:
    """Return how many edges of a CUgraph let a launch begin before the previous launch has ended.

    A capture turns each dependent launch either into such an edge, or into an edge that waits for
    the end of the previous launch. Raises DriverError.
    """
    count = ctypes.c_size_t()
    handle = ctypes.c_void_p(graph)
    _call("cuGraphGetEdges_v2", handle, None, None, None, ctypes.byref(count))
    if not count.value:
        return 0
    nodes = [(ctypes.c_void_p * count.value)() for _ in range(2)]
    edges = (EdgeData * count.value)()
    _call("cuGraphGetEdges_v2", handle, *nodes, edges, ctypes.byref(count))
    return sum(edge.type == _PROGRAMMATIC for edge in edges)


def has_driver() -> bool:
    """Return whether NVIDIA's driver is installed."""
    try:
        _library()
    except OSError:
        return False
    return True


def _call(function: str, *arguments: Any) -> None:
    status = getattr(_library(), function)(*arguments)
    if status != _SUCCESS:
        raise DriverError(function, status)


@cache
def _library() -> ctypes.CDLL:
    """Return the driver's library. Raises OSError if it is missing."""
    return ctypes.CDLL("libcuda.so.1")
