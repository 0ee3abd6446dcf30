"""The driver through ctypes: its structures, its enumerators and the arguments that it receives."""

import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kernels.device import driver
from kernels.device.cuda_device import CudaDevice, CudaGraph
from kernels.device.device import DeviceError, FaultError, LaunchError
from kernels.device.driver import (
    Attribute,
    Config,
    DriverError,
    EdgeData,
    launch_kernel,
    programmatic_edges,
)
from kernels.device.launch import instantiate
from kernels.device.tensor_map import TensorMap
from kernels.problems.precision import FLOAT, HALF
from tests.kernels.device.test_tensor_map import IMAGES, MATRIX
from tests.support.kernels.fake_cupy import FakeCupy
from tests.support.kernels.resources import CACHE

_OFFSETS = """
#include <cuda.h>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <type_traits>
int main() {
  using C = CUlaunchConfig;
  using A = CUlaunchAttribute;
  printf("%zu %zu %zu %zu %zu %zu %zu ", offsetof(C, gridDimX), offsetof(C, blockDimX),
         offsetof(C, sharedMemBytes), offsetof(C, hStream), offsetof(C, attrs),
         offsetof(C, numAttrs), sizeof(C));
  printf("%zu %zu %d ", sizeof(CUgraphEdgeData), offsetof(CUgraphEdgeData, type),
         int(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC));
  printf("%zu %zu %zu %d ", offsetof(A, id), offsetof(A, value), sizeof(A),
         int(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION));
  using D = decltype(CUlaunchAttributeValue::clusterDim);
  printf("%zu %zu %zu %d ", offsetof(D, x), offsetof(D, y), offsetof(D, z),
         int(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION));
  printf("%zu %zu %d %d %d %d %d %d", sizeof(CUtensorMap), alignof(CUtensorMap),
         int(CU_TENSOR_MAP_DATA_TYPE_FLOAT16), int(CU_TENSOR_MAP_DATA_TYPE_FLOAT32),
         int(CU_TENSOR_MAP_INTERLEAVE_NONE), int(CU_TENSOR_MAP_SWIZZLE_128B),
         int(CU_TENSOR_MAP_L2_PROMOTION_L2_128B), int(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  // As they are called: integers of 32 bits, arrays of 64, of 32, and of int.
  CUresult (*tiled)(CUtensorMap*, CUtensorMapDataType, uint32_t, void*, const cuuint64_t*,
                    const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) = nullptr;
  CUresult (*im2col)(CUtensorMap*, CUtensorMapDataType, uint32_t, void*, const cuuint64_t*,
                     const cuuint64_t*, const int*, const int*, cuuint32_t, cuuint32_t,
                     const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                     CUtensorMapL2promotion, CUtensorMapFloatOOBfill) = nullptr;
  static_assert(std::is_same_v<decltype(tiled), decltype(&cuTensorMapEncodeTiled)>);
  static_assert(std::is_same_v<decltype(im2col), decltype(&cuTensorMapEncodeIm2col)>);
}
"""


def test_structures_lie_as_in_the_toolkits_header(tmp_path: Path) -> None:
    headers = [
        path.parent for folder in sys.path for path in Path(folder).glob("nvidia/*/include/cuda.h")
    ]
    if not headers:
        pytest.skip("cuda.h is not installed (extra cuda13)")
    (tmp_path / "offsets.cpp").write_text(_OFFSETS)
    command = ["g++", f"-I{headers[0]}", "offsets.cpp", "-o", "offsets"]
    subprocess.run(command, cwd=tmp_path, check=True)
    printed = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True)
    assert list(map(int, printed.stdout.split())) == [
        *(getattr(Config, name).offset for name, _ in Config._fields_),
        ctypes.sizeof(Config),
        ctypes.sizeof(EdgeData),
        EdgeData.type.offset,
        driver._PROGRAMMATIC,
        Attribute.id.offset,
        Attribute.value.offset,
        ctypes.sizeof(Attribute),
        driver._PROGRAMMATIC_STREAM_SERIALIZATION,
        *(0, 4, 8),
        driver._CLUSTER_DIMENSION,
        driver._MAP_BYTES,
        driver._MAP_ALIGNMENT,
        driver._DATA_TYPES[HALF],
        driver._DATA_TYPES[FLOAT],
        driver._NOT_INTERLEAVED,
        driver._SWIZZLE_128B,
        driver._L2_128B,
        driver._ZEROS,
    ]


class FakeDriver:
    """Remembers launches as C would read them, and answers `status`."""

    def __init__(self) -> None:
        self.status = 0
        self.calls: list[SimpleNamespace] = []
        prototype = ctypes.CFUNCTYPE(
            ctypes.c_int,
            ctypes.POINTER(Config),
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.c_void_p,
        )
        self.cuLaunchKernelEx = prototype(self._launch)

    def _launch(self, config: "ctypes._Pointer[Config]", function: int, p: object, _: None) -> int:
        given = config.contents
        attributes = [given.attributes[i] for i in range(given.attribute_count)]
        self.calls.append(
            SimpleNamespace(
                function=function,
                grid=tuple(given.grid),
                block=tuple(given.block),
                shared_bytes=given.shared_bytes,
                stream=given.stream,
                attributes={each.id: tuple(each.value[:3]) for each in attributes},
                first=ctypes.cast(p[0], ctypes.POINTER(ctypes.c_int))[0],  # type: ignore[index]
            )
        )
        return self.status


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    library = FakeDriver()
    monkeypatch.setattr(driver, "_library", lambda: library)
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy())
    return library


def test_a_launch_says_that_it_may_overlap(fake: FakeDriver) -> None:
    launch_kernel(
        0xF00, (3, 2, 1), (64, 1, 1), 512, [np.int32(7).tobytes()], 0xBEEF, dependent=True
    )
    (call,) = fake.calls
    assert (call.function, call.stream, call.shared_bytes) == (0xF00, 0xBEEF, 512)
    assert (call.grid, call.block, call.first) == ((3, 2, 1), (64, 1, 1), 7)
    assert call.attributes == {6: (1, 0, 0)}
    fake.status = 700
    with pytest.raises(DriverError, match="700"):
        launch_kernel(0xF00, (1, 1, 1), (1, 1, 1), 0, [bytes(4)], 0)


@pytest.mark.parametrize("dependent", [False, True])
def test_a_launch_says_what_blocks_are_a_cluster(fake: FakeDriver, *, dependent: bool) -> None:
    launch_kernel(
        0xF00, (4, 6, 1), (64, 1, 1), 0, [bytes(4)], 0, dependent=dependent, cluster=(2, 3, 1)
    )
    assert fake.calls[0].attributes == {4: (2, 3, 1), **({6: (1, 0, 0)} if dependent else {})}


def test_a_device_launches_clusters_by_the_driver_or_says_why_not(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = CudaDevice(cache=CACHE)
    monkeypatch.setattr(device, "overlaps", False)
    kernel, stream = device.load(instantiate("lrn.cu", "lrn", t="float")), device.stream()
    launched = kernel, (4, 1, 1), (32, 1, 1), 0, (np.int32(1),), stream
    device.launch(*launched, dependent=True, cluster=(4, 1, 1))
    assert fake.calls[0].attributes == {4: (4, 1, 1)}
    for status in (801, 912):  # no clusters; not so large
        fake.status = status
        with pytest.raises(LaunchError, match=rf"CUDA error {status} .*clusters \(4, 1, 1\)"):
            device.launch(*launched, cluster=(4, 1, 1))
    with pytest.raises(LaunchError, match="no threads"):
        device.launch(*launched, cluster=(0, 1, 1))


def test_a_device_of_sm_90_launches_dependents_by_the_driver_and_all_else_by_cupy(
    fake: FakeDriver,
) -> None:
    device = CudaDevice(cache=CACHE)
    stream = device.stream()
    kernel = device.load(instantiate("lrn.cu", "lrn", t="float"))
    device.launch(kernel, (1, 1, 1), (32, 1, 1), 0, (np.int32(1),), stream)
    assert not fake.calls
    arguments = (np.int32(5), np.float32(1), 0x1234, bytes(12))
    device.launch(kernel, (1, 1, 1), (32, 1, 1), 0, arguments, stream, dependent=True)
    (call,) = fake.calls
    assert (call.function, call.first) == (kernel.function.kernel.ptr, 5)
    for status, error in ((1, LaunchError), (700, FaultError)):
        fake.status = status
        with pytest.raises(error, match=str(status)):
            device.launch(kernel, (1, 1, 1), (32, 1, 1), 0, arguments, stream, dependent=True)


class FakeEncoder:
    """Answers with `status`, and for a tensor map returns the function's name and its arguments."""

    def __init__(self) -> None:
        self.status = 0
        pointer, enum, u32 = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32
        head, tail = (pointer, enum, u32, pointer, pointer, pointer), (enum,) * 4
        tiled = ctypes.CFUNCTYPE(enum, *head, pointer, pointer, *tail)
        im2col = ctypes.CFUNCTYPE(enum, *head, pointer, pointer, u32, u32, pointer, *tail)
        self.cuTensorMapEncodeTiled = tiled(self._tiled)
        self.cuTensorMapEncodeIm2col = im2col(self._im2col)

    def _tiled(self, to: int, *given: int) -> int:
        kind, rank, address, dims, strides, box, steps, *enums = given
        return self._answer(
            to, kind, rank, address, dims, strides, [*_u32(box, 2), *_u32(steps, 2), *enums]
        )

    def _im2col(self, to: int, *given: int) -> int:
        kind, rank, address, dims, strides, lower, upper, row, rows, steps, *enums = given
        corners = [
            number for at in (lower, upper) for number in (ctypes.c_int * 2).from_address(at)
        ]
        return self._answer(
            to,
            kind,
            rank,
            address,
            dims,
            strides,
            [*corners, row, rows, *_u32(steps, 4), *enums],
        )

    def _answer(
        self, to: int, kind: int, rank: int, address: int, dims: int, strides: int, rest: list[int]
    ) -> int:
        assert to % 64 == 0
        numbers = [
            *(kind, address),
            *(ctypes.c_uint64 * rank).from_address(dims),
            *(ctypes.c_uint64 * (rank - 1)).from_address(strides),
            *rest,
        ]
        told = " ".join(map(str, numbers)).encode()
        ctypes.memmove(to, told.ljust(128), 128)
        return self.status


def _u32(at: int, count: int) -> list[int]:
    return list((ctypes.c_uint32 * count).from_address(at))


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> FakeEncoder:
    library = FakeEncoder()
    monkeypatch.setattr(driver, "_library", lambda: library)
    driver.encoded.cache_clear()
    return library


@pytest.mark.usefixtures("encoder")
@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (MATRIX, "6 256 40 50 96 64 32 1 1 0 3 2 0"),
        (IMAGES, "7 256 8 7 9 2 32 224 2016 -1 -3 -1 0 32 64 1 1 2 1 0 3 2 0"),
    ],
)
def test_a_tensor_map_is_made_of_what_its_description_says(tensor: TensorMap, told: str) -> None:
    made = driver.encoded(tensor.at(0x100))
    assert len(made) == 128
    assert made.decode().strip() == told


def test_a_map_without_an_address_and_one_that_the_driver_refuses_are_errors(
    encoder: FakeEncoder,
) -> None:
    with pytest.raises(TypeError, match="the tensor map of x has no address yet"):
        driver.encoded(MATRIX)
    encoder.status = 1
    with pytest.raises(DriverError, match="cuTensorMapEncodeTiled: CUDA error 1"):
        driver.encoded(MATRIX.at(0x100))
    with pytest.raises(DriverError, match="cuTensorMapEncodeIm2col: CUDA error 1"):
        driver.encoded(IMAGES.at(0x100))


def test_a_device_passes_the_drivers_map_and_says_which_launch_it_refused(
    fake: FakeDriver, encoder: FakeEncoder
) -> None:
    encoder.cuLaunchKernelEx = fake.cuLaunchKernelEx  # type: ignore[attr-defined]
    device = CudaDevice(cache=CACHE)
    kernel, stream = device.load(instantiate("lrn.cu", "lrn", t="float")), device.stream()
    place = (1, 1, 1), (32, 1, 1), 0, (MATRIX.at(0x100),), stream
    device.launch(kernel, *place, dependent=True)
    (call,) = fake.calls
    assert call.first == int.from_bytes(b"6 25", "little")
    encoder.status = 1
    driver.encoded.cache_clear()
    for dependent in (False, True):
        with pytest.raises(LaunchError, match=r"lrn.*cuTensorMapEncodeTiled"):
            device.launch(kernel, *place, dependent=dependent)


class FakeGraphs:
    """A driver's answer about the edges of a graph: two full and three programmatic edges."""

    TYPES: tuple[int, ...] = (0, 1, 1, 0, 1)

    def __init__(self, status: int = 0) -> None:
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 5)
        self.status, self.graphs = status, list[int]()
        self.cuGraphGetEdges_v2 = prototype(self._edges)

    def _edges(self, graph: int, start: int, to: int, edges: int, count: int) -> int:
        self.graphs.append(graph)
        ctypes.c_size_t.from_address(count).value = len(self.TYPES)
        if edges:
            assert start
            assert to
            array = (EdgeData * len(self.TYPES)).from_address(edges)
            for edge, kind in zip(array, self.TYPES, strict=True):
                edge.type = kind
        return self.status


def test_a_graphs_programmatic_edges_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeGraphs()
    monkeypatch.setattr(driver, "_library", lambda: library)
    assert programmatic_edges(0xABC) == 3
    assert library.graphs == [0xABC] * 2
    library.TYPES = ()
    assert programmatic_edges(0xABC) == 0
    library.status = 400
    with pytest.raises(DriverError, match="cuGraphGetEdges_v2: CUDA error 400"):
        programmatic_edges(0xABC)


def test_a_device_counts_the_edges_of_its_own_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeGraphs()
    monkeypatch.setattr(driver, "_library", lambda: library)
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy())
    device = CudaDevice(cache=CACHE)
    with device.capture(device.stream()) as graph:
        pass
    assert isinstance(graph, CudaGraph)
    graph.cupy.graph = 0xABC
    assert device.early_launches(graph) == 3
    assert library.graphs == [0xABC] * 2
    library.status = 1
    with pytest.raises(DeviceError, match="cannot be counted"):
        device.early_launches(graph)


def test_an_older_device_launches_all_by_cupy(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = CudaDevice(cache=CACHE)
    kernel = device.load(instantiate("lrn.cu", "lrn", t="float"))
    monkeypatch.setattr(device, "overlaps", False)
    device.launch(kernel, (1, 1, 1), (32, 1, 1), 0, (np.int32(1),), device.stream(), dependent=True)
    assert not fake.calls
