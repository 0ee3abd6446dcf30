"""With SqueezeNet's embedding, a cropped or darker photograph is nearest to its original."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from models import DeviceKind, Inner, as_vectors, load_classifier, open_engine
from service.hosting.vectors import normalise
from service.images.prepare import ImageLimits, prepare_image
from tests.support import ROOT

DATA = ROOT.parent / "shared" / "data"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data, which is absent"),
]


def bright(image: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(factor)


def cropped(image: Image.Image, left: float, top: float) -> Image.Image:
    """Return the central part, with 90% of each side."""
    width, height = image.size
    return image.crop(
        (int(left * width), int(top * height), int((left + 0.9) * width), int((top + 0.9) * height))
    )


CHANGES: Mapping[str, Callable[[Image.Image], Image.Image]] = {
    "middle": lambda image: cropped(image, 0.05, 0.05),
    "upper left": lambda image: cropped(image, 0, 0),
    "lower right": lambda image: cropped(image, 0.1, 0.1),
    "darker": lambda image: bright(image, 0.7),
    "brighter": lambda image: bright(image, 1.3),
    "middle and darker": lambda image: bright(cropped(image, 0.05, 0.05), 0.8),
}


def test_a_changed_photograph_is_nearest_to_itself() -> None:
    classifier = load_classifier(DATA / "squeezenet1.1-fp16.onnx", overrides={"preset": "caffe"})
    assert isinstance(classifier.embedding, Inner)
    name = classifier.embedding.name
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=1, threads=1)
    limits = ImageLimits(2**24, 10**8)

    def vector(file: bytes) -> NDArray[np.float32]:
        pixels = prepare_image(file, classifier.preprocessing, limits).run()
        found = as_vectors(engine.run([pixels], [name]).inner[name])
        unit: NDArray[np.float32] = normalise(found)[0]
        return unit

    def changed(path: Path, change: Callable[[Image.Image], Image.Image]) -> bytes:
        file = io.BytesIO()
        change(Image.open(path).convert("RGB")).save(file, "JPEG", quality=90)
        return file.getvalue()

    paths = sorted((DATA / "images").glob("*.JPEG"))
    assert len(paths) == 200
    known = np.stack([vector(path.read_bytes()) for path in paths])
    for change in CHANGES.values():
        asked = np.stack([vector(changed(path, change)) for path in paths])
        nearest = (asked @ known.T).argmax(axis=1)
        assert (nearest == np.arange(200)).mean() >= 0.95
    engine.close()
