"""Calls NVIDIA's driver by ctypes for two things that CuPy lacks: launch attributes and graph
edges.

Structures are those of cuda.h of CUDA 12 and 13.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from kernels.device.device import NO_CLUSTERS, Dim3

_SUCCESS = 0
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_...
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
_PROGRAMMATIC = 1  # CU_GRAPH_DEPENDENCY_TYPE_...


class DriverError(Exception):
    """Says that the driver refused a call; `status` is a CUresult."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function}: CUDA error {status}")
        self.status = status


class Attribute(ctypes.Structure):
    """Mirrors CUlaunchAttribute; its value of 64 bytes is declared as 16 ints."""

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
    """Launch a CUfunction, in clusters of so many blocks along each axis.

    If `dependent`, it may begin before the previous launch in the stream has ended. `parameters`
    has the bytes of each parameter. Raises DriverError.
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


def programmatic_edges(graph: int) -> int:
    """Return how many edges of a CUgraph let a launch begin before the previous one has ended.

    A capture makes one of each dependent launch, or else a full edge. Raises DriverError.
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
    """Return the driver's library. Raises OSError where there is none."""
    return ctypes.CDLL("libcuda.so.1")
