"""The engine resizes decoded images: scores are bit-identical to those of pixels resized here."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cusim.device import CusimDevice, Order
from kernels.device.device import Device
from kernels.image.decoded import PLACE_BYTES, DecodedImage, Resize
from kernels.image.place import Kind
from kernels.problems.interpolation import Interpolation
from kernels.problems.precision import Precision
from kernels.tuning.heuristic import heuristic
from models import BUILT_IN_MODEL, DeviceKind, EngineError, load_classifier
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.engine import Image, Pixels
from models.engines.onnxruntime_engine import OnnxRuntimeEngine, SessionModel
from models.engines.open_engine import open_engine
from models.preprocessing import normalised
from service.images.prepare import ImageLimits, prepare_image
from tests.support.kernels.mutations import replaced
from tests.support.models.engines import classifier_of, pixels, scores_by_steps
from tests.support.models.graphs import GraphBuilder
from tests.support.networks import SQUEEZENET, needs_shared, photographs

LIMITS = ImageLimits()
SAMPLES = sorted((BUILT_IN_MODEL.parent / "samples").iterdir())


@pytest.fixture(scope="module")
def digits() -> Classifier:
    return load_classifier(BUILT_IN_MODEL)


def resizing(classifier: Classifier, device: Device, max_batch: int) -> CudaEngine:
    engine = CudaEngine(
        classifier, device, max_batch=max_batch, choose=heuristic(device), takes=Kind.DECODED
    )
    engine.warm_up()
    return engine


def both(file: Path, classifier: Classifier) -> tuple[Pixels, Image]:
    """Return a file's pixels, and the remaining resize."""
    decoding = prepare_image(file.read_bytes(), classifier.preprocessing, LIMITS)
    assert decoding.unresized is not None
    return decoding.run(), decoding.unresized()


def shrunk(classifier: Classifier, seed: int, kind: Interpolation) -> DecodedImage:
    """Return a rotated image whose size differs from the network's."""
    height, width, channels = classifier.preprocessing.image_shape
    source = np.random.default_rng(seed).integers(0, 256, (41 + seed, 67, channels), np.uint8)
    resize = Resize(
        size=(height, width),
        box=(0.5, 0.0, 66.0, float(len(source))),
        crop=(0, 0, height, width),
        interpolation=kind,
        x_reversed=seed % 2 == 0,
        y_reversed=False,
        transposed=True,
        frame=(width, height),
        channels=tuple(range(channels)),
        paper=(0,) * channels,
    )
    return DecodedImage(source, resize)


def scores_of(engine: CudaEngine, images: Sequence[Image]) -> bytes:
    return engine.run(images).scores.tobytes()


def test_the_samples_have_the_scores_of_their_pixels_at_every_n(
    device: Device, digits: Classifier
) -> None:
    engine = resizing(digits, device, 4)
    files = [both(file, digits) for file in SAMPLES]
    assert all(isinstance(unresized, DecodedImage) for _, unresized in files)
    for n in range(1, 5):
        part = files[n : 2 * n]
        expected = scores_of(engine, [here for here, _ in part])
        assert scores_of(engine, [unresized for _, unresized in part]) == expected
        assert scores_by_steps(engine, [each for _, each in part]).tobytes() == expected
    engine.close()


def test_all_kinds_share_a_batch_whatever_lay_in_their_places_before(
    device: Device, digits: Classifier
) -> None:
    engine = resizing(digits, device, 4)
    here, first = both(SAMPLES[0], digits)
    images = pixels(digits, 3)
    tensor = normalised(images[2:], digits.preprocessing)[0]
    small = shrunk(digits, 3, Interpolation.LANCZOS)
    expected = engine.run([here, images[0], np.asarray(small), tensor]).scores
    assert len(np.unique(expected, axis=0)) == 4
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (1, 2, 0, 3)):
        batch = [[first, images[0], small, tensor][place] for place in order]
        assert (engine.run(batch).scores == expected[list(order)]).all()
    engine.close()


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_colours_in_either_order_and_precision_on_every_order_of_threads(
    precision: Precision,
) -> None:
    b = GraphBuilder(0, x=(3, 12, 9))
    flat = b.reshape("flat", b.conv("c", "x", 4, 3), (4 * 12 * 9,))
    classifier = replace(classifier_of(b.build(b.gemm("scores", flat, 7))), precision=precision)
    images = [
        shrunk(classifier, seed, kind)
        for seed, kind in enumerate((Interpolation.BICUBIC, Interpolation.NEAREST))
    ]
    for order in Order:
        cusim = CusimDevice(order=order, seed=2)
        engine = resizing(classifier, cusim, 2)
        expected = scores_of(engine, [np.asarray(image) for image in images])
        assert scores_of(engine, images) == expected
        engine.close()
        cusim.close()


def test_an_engine_that_does_not_resize_is_given_decoded_images_all_the_same(
    device: Device, digits: Classifier
) -> None:
    engine = CudaEngine(digits, device, max_batch=2, choose=heuristic(device))
    engine.warm_up()
    here, unresized = both(SAMPLES[0], digits)
    assert engine.takes is Kind.TENSOR
    assert Kind.DECODED not in {kind for kind, _ in engine._plans}
    assert scores_of(engine, [unresized]) == scores_of(engine, [here])
    engine.close()
    cpu = OnnxRuntimeEngine(SessionModel.of(digits), max_batch=2, threads=1)
    cpu.warm_up()
    expected = cpu.run(np.stack([here, here])).scores
    assert (cpu.run([unresized, here]).scores == expected).all()
    assert (cpu.run([unresized]).scores == expected[:1]).all()
    cpu.close()


def test_a_closed_engine_gives_back_the_memory_of_its_places_too(
    device: Device, digits: Classifier
) -> None:
    free = []
    for _ in range(2):
        engine = resizing(digits, device, 1)
        assert engine._images.nbytes == PLACE_BYTES
        engine.close()
        free.append(device.memory().free)
    assert free[0] == free[1]


def test_a_model_of_clips_or_of_too_many_pixels_resizes_here(digits: Classifier) -> None:
    p = digits.preprocessing
    assert p.resizable
    assert not replace(p, frames=4).resizable
    assert replace(p, height=1024, width=3072).resizable
    assert not replace(p, height=1024, width=3073).resizable


def test_the_self_test_catches_a_device_that_resizes_wrongly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = replaced(tmp_path, "resize.cu", "row[1 + tap] * from", "row[1] * (255 - tap) * from")
    cusim = CusimDevice(source_root=root)
    monkeypatch.setattr("kernels.device.cuda_device.CudaDevice", lambda _: cusim)
    monkeypatch.setattr("models.engines.open_engine.has_driver", lambda: True)
    classifier = load_classifier(BUILT_IN_MODEL)
    right = open_engine(classifier, device=DeviceKind.CUDA, max_batch=1).warm_up()
    right.close()
    engine = open_engine(classifier, device=DeviceKind.CUDA, max_batch=1, takes=Kind.DECODED)
    with pytest.raises(EngineError, match="the self-test of digits"):
        engine.warm_up()
    engine.close()
    cusim.close()


@needs_shared
@pytest.mark.slow
def test_squeezenet_gives_photographs_the_scores_of_their_pixels(device: Device) -> None:
    classifier = load_classifier(SQUEEZENET, overrides={"preset": "caffe", "precision": "fp32"})
    simulated = device.architecture == "cusim"  # which takes seconds for an image
    files = photographs(40 if simulated else 1)
    assert len(files) >= (5 if simulated else 20)
    engine = resizing(classifier, device, 1)
    for photograph in files:
        here, unresized = both(photograph, classifier)
        assert isinstance(unresized, DecodedImage)
        assert scores_of(engine, [unresized]) == scores_of(engine, [here])
    engine.close()
