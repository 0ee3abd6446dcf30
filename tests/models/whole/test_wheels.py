"""Classifiers in packages from PyPI, as other projects exported them.

None of the packages is in the dev extra: run `pip install --no-deps rapidocr-onnxruntime` (15 MB)
and then `make test-all`.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from models import DeviceKind, UnsupportedModelError, load_classifier, open_engine
from models.engines.original import Original
from models.engines.prove import check_images
from models.engines.tolerance import relative_error, score_tolerance
from models.preprocessing import normalised
from tests.support.models.reference import run_reference

_RAPIDOCR = find_spec("rapidocr_onnxruntime")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_RAPIDOCR is None, reason="needs rapidocr-onnxruntime, not installed"),
]

SIZES = {"preset": "imagenet", "height": 48, "width": 192}


def file(name: str) -> Path:
    assert _RAPIDOCR is not None
    assert _RAPIDOCR.origin is not None
    (path,) = (Path(_RAPIDOCR.origin).parent / "models").glob(f"*{name}*.onnx")
    return path


def test_paddles_classifier_with_a_batch_of_minus_one_has_its_own_scores_at_every_n() -> None:
    path = file("_cls_")
    classifier = load_classifier(path, overrides=SIZES)
    assert classifier.network.no_kernels == ""
    images = check_images(4, classifier.preprocessing.image_shape)
    expected = np.stack([Original(path, classifier).run(image) for image in images])
    allowed = score_tolerance(classifier, expected.min())
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=4)
    engine.warm_up()
    assert engine.max_batch == 4
    for n in range(1, 5):
        assert relative_error(engine.run(images[:n]).scores, expected[:n]) < allowed
    engine.close()
    graph = classifier.rewritten.graph
    tensors = {graph.inputs[0]: normalised(images, classifier.preprocessing)}
    (scores,) = run_reference(graph, tensors).values()
    assert relative_error(scores.reshape(expected.shape), expected) < allowed


@pytest.mark.parametrize("name", ["_det_", "_rec_"])
def test_paddles_detector_and_reader_are_no_classifiers(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"gives .* values per image|has parts that"):
        load_classifier(file(name), overrides=SIZES)
