"""The engine decodes JPEG files: scores are bit-identical to those of the CPU's pixels."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cusim.device import CusimDevice
from kernels.device.device import Device
from kernels.image.place import Kind, kind_of
from kernels.tuning.heuristic import heuristic
from models import BUILT_IN_MODEL, DeviceKind, EngineError, load_classifier
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.engine import Image, Pixels
from models.engines.open_engine import open_engine
from models.preprocessing import normalised
from service.images.decode_pool import NotForDeviceError
from service.images.prepare import ImageLimits, prepare_image
from tests.support.kernels.jpegs import encoded, scene
from tests.support.kernels.mutations import replaced
from tests.support.models.engines import pixels
from tests.support.networks import SQUEEZENET, needs_shared, photographs


@pytest.fixture(scope="module")
def digits() -> Classifier:
    return load_classifier(BUILT_IN_MODEL)


@pytest.fixture(scope="module")
def engine(device: Device, digits: Classifier) -> Iterator[CudaEngine]:
    engine = CudaEngine(digits, device, max_batch=2, choose=heuristic(device), takes=Kind.JPEG)
    engine.warm_up()
    yield engine
    engine.close()


FILES = [
    encoded(scene(61, 45, 1)[..., 0], quality=90),
    encoded(scene(150, 90, 2)[..., 1], quality=60, restart_marker_blocks=3),  # decoded at 1/2
]


def both(data: bytes, classifier: Classifier) -> tuple[Pixels, Image]:
    """Return a file's pixels, and the file prepared for a device."""
    decoding = prepare_image(data, classifier.preprocessing, ImageLimits())
    assert decoding.file is not None
    return decoding.run(), decoding.file()


def broken(data: bytes) -> bytes:
    """Return a file that libjpeg decodes with a warning: its compressed data is cut off, and ends
    properly."""
    return data[: len(data) * 2 // 3] + b"\xff\xd9"


def test_files_have_the_scores_of_their_pixels_alone_and_together(
    engine: CudaEngine, digits: Classifier
) -> None:
    every = [both(data, digits) for data in FILES]
    expected = engine.run([here for here, _ in every]).scores
    assert len(np.unique(expected, axis=0)) == len(FILES)
    for here, file in every:
        scores = engine.run([here]).scores
        found = engine.run([file])
        assert kind_of(file) is Kind.JPEG
        assert found.flags is not None
        assert found.flags.tolist() == [0]
        assert found.scores.tobytes() == scores.tobytes()
    together = engine.run([file for _, file in every])
    assert together.scores.tobytes() == expected.tobytes()


def test_a_file_that_is_flagged_leaves_its_neighbours_of_every_kind_as_they_are(
    engine: CudaEngine, digits: Classifier
) -> None:
    _, odd = both(broken(FILES[0]), digits)
    plain = pixels(digits, 1)[0]
    decoding = prepare_image(FILES[1], digits.preprocessing, ImageLimits())
    assert decoding.unresized is not None
    others: list[Image] = [
        plain,
        normalised(plain[None], digits.preprocessing)[0],
        decoding.unresized(),
        both(FILES[1], digits)[1],
    ]
    for image in others:
        beside = engine.run([plain, np.asarray(image)]).scores
        if kind_of(image) in (Kind.TENSOR, Kind.JPEG):  # as arrays they are no pixels
            beside = engine.run([plain, image]).scores
        for batch, place in (([odd, image], 1), ([image, odd], 0)):
            found = engine.run(batch)
            assert found.flags is not None
            assert found.flags[place] == 0
            assert found.flags[1 - place] != 0
            assert found.scores[place].tobytes() == beside[1].tobytes()


def test_batches_without_files_have_no_flags(engine: CudaEngine, digits: Classifier) -> None:
    images = pixels(digits, 2)
    assert engine.takes is Kind.JPEG
    assert engine.run(images).flags is None
    assert engine.run([normalised(images, digits.preprocessing)[0], images[1]]).flags is None


def test_an_engine_that_decodes_nothing_says_nothing_of_a_file(
    device: Device, digits: Classifier
) -> None:
    engine = CudaEngine(digits, device, max_batch=1, choose=heuristic(device))
    engine.warm_up()
    black = np.zeros(digits.preprocessing.image_shape, np.uint8)
    found = engine.run([both(FILES[0], digits)[1]])
    assert found.flags is None
    assert found.scores.tobytes() == engine.run([black]).scores.tobytes()
    engine.close()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("flags[blockIdx.y] != 0) return;", "true) return;", "scores differ"),
        ("entry.jpeg == 0) return;", "true) return;", "."),
    ],
    ids=["no pixels", "no coefficients"],
)
def test_the_self_test_catches_a_device_that_decodes_wrongly(
    old: str, new: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = replaced(tmp_path, "jpeg.cu", old, new)
    cusim = CusimDevice(source_root=root)
    monkeypatch.setattr("kernels.device.cuda_device.CudaDevice", lambda _: cusim)
    monkeypatch.setattr("models.engines.open_engine.has_driver", lambda: True)
    classifier = load_classifier(BUILT_IN_MODEL)
    engine = open_engine(classifier, device=DeviceKind.CUDA, max_batch=1, takes=Kind.JPEG)
    with pytest.raises(EngineError, match=rf"the self-test of digits.*{says}"):
        engine.warm_up()
    engine.close()
    cusim.close()


def test_a_colour_file_for_a_grey_model_is_made_grey_before_it_is_resized(
    digits: Classifier,
) -> None:
    decoding = prepare_image(encoded(scene(40, 40)), digits.preprocessing, ImageLimits())
    assert decoding.file is not None
    with pytest.raises(NotForDeviceError, match=r"components") as caught:
        decoding.file()
    assert caught.value.reason == "components"


@needs_shared
@pytest.mark.slow
def test_squeezenet_gives_photographs_the_scores_of_their_pixels(device: Device) -> None:
    classifier = load_classifier(SQUEEZENET, overrides={"preset": "caffe", "precision": "fp32"})
    simulated = device.architecture == "cusim"  # which takes seconds for an image
    files = photographs(67 if simulated else 1)
    assert len(files) >= (3 if simulated else 20)
    engine = CudaEngine(classifier, device, max_batch=1, choose=heuristic(device), takes=Kind.JPEG)
    engine.warm_up()
    for photograph in files:
        here, file = both(photograph.read_bytes(), classifier)
        found = engine.run([file])
        assert found.flags is not None
        assert found.flags.tolist() == [0]
        assert found.scores.tobytes() == engine.run([here]).scores.tobytes()
    engine.close()
