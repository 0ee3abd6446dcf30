"""The start of an engine on a GPU: the order of compilation, and the streams that it creates."""

import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from cusim.device import CusimDevice
from kernels.device import cuda_device
from kernels.device.compile import Cubin, Resources
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import Argument, CompileError, Device, Dim3, Instantiation, Kernel
from kernels.tuning.heuristic import heuristic
from models.engines.cuda_engine import CudaEngine
from models.errors import EngineError
from models.schedule.branches import streams
from tests.support.kernels.fake_cupy import FakeCupy
from tests.support.kernels.null_device import NullDevice, flags_of
from tests.support.models.engines import branching, pixels

THREADS = 3


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    """A GPU whose kernels only report that the results are ready, without NVRTC."""
    cupy = FakeCupy()

    def launch(
        _: CudaDevice,
        kernel: Kernel,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        arguments: Sequence[Argument],
        stream: Any,
        **how: Any,
    ) -> None:
        flags = flags_of(kernel, grid, arguments)
        if flags is not None:
            cupy.ask(stream.cupy.ptr, lambda: flags.fill(1))

    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(CudaDevice, "launch", launch)
    monkeypatch.setattr(cuda_device, "compile_kernel", compiled)
    return cupy


def compiled(instantiation: Instantiation, *_: object) -> Cubin:
    return Cubin(str(instantiation).encode(), instantiation.kernel, Resources(0, 0, 0, 0, 0))


def engine_on(device: Device, **how: Any) -> CudaEngine:
    return CudaEngine(
        branching(),
        device,
        max_batch=2,
        choose=heuristic(device),
        pays=lambda *_: True,
        threads=THREADS,
        **how,
    )


def test_kernels_are_compiled_at_once_in_threads_before_the_first_is_loaded(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(THREADS, timeout=30)  # breaks where they take turns
    begun: list[Instantiation] = []
    lock = threading.Lock()

    def compiling(instantiation: Instantiation, *rest: object) -> Cubin:
        with lock:
            begun.append(instantiation)
            first = len(begun) <= THREADS
        if first:
            together.wait()
        return compiled(instantiation)

    shown: list[int] = []

    def progress(every: Collection[Instantiation]) -> Iterator[Instantiation]:
        for instantiation in every:
            yield instantiation
            shown.append(len(cupy.loaded))  # once it is compiled

    monkeypatch.setattr(cuda_device, "compile_kernel", compiling)
    engine = engine_on(CudaDevice(), progress=progress)
    kernels = list(dict.fromkeys(begun))
    assert len(kernels) > 2 * THREADS
    assert set(begun[: len(kernels)]) == set(kernels)
    assert shown == [0] * len(kernels)
    assert sorted(cupy.loaded) == sorted(str(kernel).encode() for kernel in kernels)
    engine.close()


def test_a_kernel_that_does_not_compile_is_named_once_the_others_are_compiled(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: set[str] = set()

    def compiling(instantiation: Instantiation, *_: object) -> Cubin:
        if instantiation.kernel == "top_k":
            raise CompileError(instantiation, "the compiler's log")
        done.add(instantiation.source)
        return compiled(instantiation)

    monkeypatch.setattr(cuda_device, "compile_kernel", compiling)
    with pytest.raises(EngineError, match=r"top_k.* does not compile:\nthe compiler's log"):
        engine_on(CudaDevice())
    assert len(done) > 2


@pytest.mark.parametrize("make", [CusimDevice, NullDevice])
def test_other_devices_compile_by_the_same_call(make: type[CusimDevice | NullDevice]) -> None:
    device = make()
    kernels = [Instantiation("bounds.cu", name) for name in ("one", "other")]  # of no source
    assert sorted(map(str, device.compile(kernels, 2))) == ["one", "other"]


def test_no_stream_is_made_or_dropped_in_a_capture_and_none_outlives_the_engine(
    cupy: FakeCupy,
) -> None:
    engine = engine_on(CudaDevice())
    beside = max(max(streams(plan.after)) for plan in engine.plans.values())
    assert beside > 0
    before = list(cupy.streams)
    assert before == ["created"] * (1 + beside)
    engine.warm_up()
    graphs = cupy.streams[len(before) :]
    assert len(graphs) >= 4
    assert graphs == ["capture", "captured"] * (len(graphs) // 2)
    image, _ = pixels(branching(), 2)
    assert engine.run([image, np.zeros_like(image)]).scores.shape == (2, 7)
    engine.close()
    assert cupy.streams[len(before) + len(graphs) :] == ["destroyed"] * beside
    del engine
    assert cupy.streams.count("destroyed") == 1 + beside
