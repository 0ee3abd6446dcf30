"""A GPU's engine is tested before it serves; the simulator replaces the GPU."""

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cusim.device import CusimDevice
from cusim.streams import CusimStream
from kernels.device.device import DeviceError, FaultError
from models import (
    BUILT_IN_MODEL,
    DeviceKind,
    DeviceLostError,
    Engine,
    EngineError,
    load_classifier,
    open_engine,
)
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.engine import Batch, Results, Scores
from models.engines.onnxruntime_engine import OnnxRuntimeEngine, SessionModel
from models.engines.prove import check_images
from models.engines.tolerance import relative_error, score_tolerance
from tests.support.models.engines import H200_CHOICE, opened
from tests.support.networks import SQUEEZENET, needs_shared

MAX_BATCH = 3


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[CusimDevice]:
    device = CusimDevice()
    monkeypatch.setattr("kernels.device.cuda_device.CudaDevice", lambda *_: device)
    monkeypatch.setattr("models.tuning.measured.DEFAULT_STORE", Path("no/such/tuning.json"))
    yield device
    device.close()


def opened_on(kind: DeviceKind) -> Engine:
    return open_engine(load_classifier(BUILT_IN_MODEL), device=kind, max_batch=MAX_BATCH)


def wrong(scores: Scores) -> Scores:
    return scores * np.float32(1.0001)


def not_a_number(scores: Scores) -> Scores:
    return np.full_like(scores, np.nan)


def wrong_at_two(scores: Scores) -> Scores:
    return wrong(scores) if len(scores) == 2 else scores


def another_images(scores: Scores) -> Scores:
    return np.roll(scores, 1, axis=0)


def with_the_others(scores: Scores) -> Scores:
    mixed: Scores = scores + np.float32(1e-3) * (scores.mean(axis=0) - scores[0])
    return mixed


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    run, spoil = CudaEngine.run, request.param

    def running(self: CudaEngine, images: Batch) -> Results:
        return Results(spoil(run(self, images).scores))

    monkeypatch.setattr(CudaEngine, "run", running)


@pytest.mark.parametrize("kind", [DeviceKind.AUTO, DeviceKind.CUDA])
def test_the_gpu_serves_where_every_batch_size_is_right(kind: DeviceKind) -> None:
    engine = opened_on(kind).warm_up()
    assert "simulator" in engine.device
    assert engine.fallback_reason == ""
    assert engine.run(check_images(2, (32, 32, 1))).scores.shape == (2, engine.classes)
    engine.close()


@pytest.mark.parametrize("spoiled", [wrong, not_a_number], indirect=True)
def test_wrong_scores_make_auto_take_the_cpu_and_say_why_and_cuda_fail(
    spoiled: None, caplog: pytest.LogCaptureFixture
) -> None:
    why = r"the self-test of digits on .* fails at batch size 1: .*; at most \S+ is allowed"
    engine = opened_on(DeviceKind.AUTO)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "convoy"):
        engine = engine.warm_up()
    assert engine.device.startswith("cpu")
    assert re.fullmatch(why, engine.fallback_reason)
    (record,) = caplog.records
    assert record.getMessage() == f"digits runs on the CPU: {engine.fallback_reason}"
    images = check_images(2, (32, 32, 1))
    cpu = opened_on(DeviceKind.CPU)
    assert (engine.run(images).scores == cpu.run(images).scores).all()
    engine.close()
    cpu.close()

    engine = opened_on(DeviceKind.CUDA)
    with pytest.raises(EngineError, match=why):
        engine.warm_up()
    engine.close()


@pytest.mark.parametrize("kind", [DeviceKind.AUTO, DeviceKind.CUDA])
@pytest.mark.parametrize("spoiled", [wrong_at_two, another_images, with_the_others], indirect=True)
def test_scores_that_depend_on_the_batch_make_the_batch_one_and_a_line_says_why(
    spoiled: None, kind: DeviceKind, caplog: pytest.LogCaptureFixture
) -> None:
    engine = opened_on(kind)
    assert engine.max_batch == MAX_BATCH
    caplog.clear()
    with caplog.at_level(logging.WARNING, "convoy"):
        engine.warm_up()
    assert "simulator" in engine.device
    assert (engine.max_batch, engine.fallback_reason) == (1, "")
    (record,) = caplog.records
    why = (
        r"digits on .* runs one image at a time: at batch size 2, scores differ .*; at most \S+ is"
        " allowed"
    )
    assert re.fullmatch(why, record.getMessage())
    engine.close()


def test_where_no_gpu_answers_auto_takes_the_cpu_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(_: int) -> CusimDevice:
        raise DeviceError("no CUDA device can be used: no driver")

    monkeypatch.setattr("kernels.device.cuda_device.CudaDevice", none)
    for driver, why in (
        (True, "no CUDA device can be used: no driver. Use --device cpu where there is no GPU"),
        (False, "this machine has no NVIDIA driver"),
    ):
        monkeypatch.setattr("models.engines.open_engine.has_driver", lambda driver=driver: driver)
        engine = opened_on(DeviceKind.AUTO).warm_up()
        assert engine.device.startswith("cpu")
        assert engine.fallback_reason == why
        engine.close()
    with pytest.raises(EngineError, match="no CUDA device can be used"):
        opened_on(DeviceKind.CUDA)


def test_a_device_that_is_lost_in_the_self_test_is_left_for_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = opened_on(DeviceKind.AUTO)
    monkeypatch.setattr(CudaEngine, "_capture", capture_and(lambda: lose(monkeypatch)))
    engine = engine.warm_up()
    assert engine.device.startswith("cpu")
    assert "illegal" in engine.fallback_reason
    engine.close()


def test_a_lost_device_is_named_so_by_whatever_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened_on(DeviceKind.CUDA)
    engine.warm_up()
    lose(monkeypatch)
    with pytest.raises(DeviceLostError, match="illegal"):
        engine.run(check_images(1, (32, 32, 1)))
    with pytest.raises(DeviceLostError, match="cannot be closed"):
        engine.close()
    engine.close()  # which it is now


def lose(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, every call that waits reports that the device is lost, as CUDA's calls do."""

    def failing(self: Any) -> None:
        raise FaultError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    monkeypatch.setattr(CusimStream, "synchronize", failing)
    monkeypatch.setattr(CusimDevice, "synchronize", failing)


def capture_and(then: Callable[[], None]) -> Callable[[CudaEngine], None]:
    capture = CudaEngine._capture

    def capturing(self: CudaEngine) -> None:
        capture(self)
        then()

    return capturing


@needs_shared
def test_a_trained_networks_error_lies_well_within_what_is_allowed(gpu: CusimDevice) -> None:
    squeezenet = load_classifier(SQUEEZENET, overrides={"preset": "caffe", "precision": "fp32"})
    images = check_images(1, squeezenet.preprocessing.image_shape)
    reference = OnnxRuntimeEngine(SessionModel.of(squeezenet), max_batch=1)
    expected = reference.run(images).scores
    engine = opened(squeezenet, gpu)
    error = relative_error(engine.run(images).scores, expected)
    allowed = score_tolerance(squeezenet, expected.min(), H200_CHOICE)
    assert error < allowed / 4
    assert allowed < 1e-2
    engine.close()
    reference.close()


def test_check_images_differ_and_are_the_same_again() -> None:
    images = check_images(8, (2, 16, 16, 3))
    assert len({image.tobytes() for image in images}) == 8
    assert (images == check_images(8, (2, 16, 16, 3))).all()


def test_the_tolerance_is_that_of_both_sides(gpu: CusimDevice) -> None:
    digits: Classifier = load_classifier(BUILT_IN_MODEL)
    scores = np.ones((1, 10), np.float32)
    assert 1e-6 < score_tolerance(digits, scores.min(), H200_CHOICE) < 1e-4
