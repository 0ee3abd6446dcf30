"""The start of an engine, and its use of the classifier."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from cusim.device import CusimBuffer, CusimDevice
from models import (
    BUILT_IN_MODEL,
    DeviceChoice,
    DeviceKind,
    EngineError,
    every_gpu,
    load_classifier,
    open_engine,
    open_engines,
)
from models.graph import Graph
from models.rewrite import RULES, RewriteResult, rewrite
from models.rewrite.rule import Rule
from models.session import open_session


@pytest.mark.parametrize(("kind", "times"), [(DeviceKind.CUDA, 1), (DeviceKind.CPU, 0)])
def test_a_start_rewrites_the_network_once_or_where_nobody_reads_it_never(
    kind: DeviceKind, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten: list[str] = []

    def counted(graph: Graph, *rules: tuple[Rule, ...]) -> RewriteResult:
        if rules == (RULES,):  # the second pass has those at a precision
            rewritten.append(graph.name)
        return rewrite(graph, *rules)

    device = CusimDevice()
    monkeypatch.setattr("models.classifier.rewrite", counted)
    monkeypatch.setattr("kernels.device.cuda_device.CudaDevice", lambda *_: device)
    monkeypatch.setattr("models.tuning.measured.DEFAULT_STORE", Path("no/such/tuning.json"))
    engine = open_engine(load_classifier(BUILT_IN_MODEL), device=kind, max_batch=2)
    engine.warm_up()
    engine.run(np.zeros((2, 32, 32, 1), np.uint8))
    assert len(rewritten) == times
    engine.close()
    device.close()


def images_of(n: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(1).integers(0, 256, (n, 32, 32, 1), np.uint8)


@pytest.mark.parametrize("threads", [1, 2])
def test_engines_on_the_cpu_share_the_sessions_of_one_thread(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions hold the weights; each engine has its own pool of threads."""
    opened: list[int] = []

    def counted(model: bytes, threads: int, *, exact: bool = False) -> ort.InferenceSession:
        opened.append(threads)
        return open_session(model, threads, exact=exact)

    monkeypatch.setattr("models.engines.onnxruntime_engine.open_session", counted)
    places = [DeviceChoice(DeviceKind.CPU)] * 3
    engines = open_engines(load_classifier(BUILT_IN_MODEL), places, max_batch=4, threads=threads)
    assert sorted(opened) == ([1] if threads == 1 else [1, 2, 2, 2])
    for engine in engines:
        engine.warm_up()
    images = images_of(4)
    expected = engines[0].run(images).scores
    with ThreadPoolExecutor(3) as pool:
        for scores in pool.map(lambda engine: engine.run(images).scores, [*engines] * 4):
            np.testing.assert_allclose(scores, expected, rtol=1e-5)
    engines[0].close()
    np.testing.assert_allclose(engines[1].run(images).scores, expected, rtol=1e-5)


def test_engines_on_one_gpu_share_weights_until_the_last_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = CusimDevice()
    allocated: list[int] = []
    allocate = device.allocate

    def counted(nbytes: int, *, constant: bool = False) -> CusimBuffer:
        allocated.append(nbytes)
        return allocate(nbytes, constant=constant)

    monkeypatch.setattr(device, "allocate", counted)
    asked: list[int] = []

    def open_device(number: int) -> CusimDevice:
        asked.append(number)
        return device

    monkeypatch.setattr("kernels.device.cuda_device.CudaDevice", open_device)
    places = [DeviceChoice(DeviceKind.CUDA, 1)] * 2
    one, other = open_engines(load_classifier(BUILT_IN_MODEL), places, max_batch=2)
    assert asked == [1], "one device is opened once"
    weights, work, again = allocated
    assert work == again
    assert weights > 1
    for engine in (one, other):
        engine.warm_up()
    images = images_of(2)
    expected = one.run(images).scores
    assert (other.run(images).scores == expected).all()
    one.close()
    assert (other.run(images).scores == expected).all()
    free = device.memory().free
    other.close()
    assert device.memory().free - free >= weights + work
    device.close()


def test_every_gpu_is_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.device.cuda_device.count_devices", lambda: 3)
    assert every_gpu() == [DeviceChoice(DeviceKind.CUDA, number) for number in range(3)]
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(EngineError, match=r"CuPy cannot be imported.*Use --device cpu"):
        every_gpu()
