"""The engine runs on a device that computes nothing."""

from benchmarks.networks.null_device import NullDevice
from models import BUILT_IN_MODEL, load_classifier
from tests.support.models.engines import opened, pixels


def test_a_batch_ends_though_nothing_is_computed() -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    engine = opened(digits, NullDevice(), max_batch=2)
    for n in (1, 2):
        assert engine.run(pixels(digits, n)).scores.shape == (n, digits.classes)
    engine.close()
