"""The engine runs on a device that computes nothing, and what it adds is measured there."""

from pathlib import Path

import numpy as np

from benchmarks.networks import host
from benchmarks.networks.null_device import NullDevice
from benchmarks.rows import read
from models import BUILT_IN_MODEL, load_classifier
from tests.support.models.engines import opened, pixels


def test_a_batch_ends_though_nothing_is_computed() -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    engine = opened(digits, NullDevice(), max_batch=2)
    for n in (1, 2):
        assert engine.run(pixels(digits, n)).scores.shape == (n, digits.classes)
    engine.close()


def test_every_n_is_measured_and_written_down(tmp_path: Path) -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    calls = host.measure(digits, (1, 3), calls=100)
    assert [call.n for call in calls] == [1, 3]
    for call in calls:
        assert 0 < call.floor_us < call.p50_us
        assert call.p20_us <= call.p50_us <= call.p80_us
    file = tmp_path / "host.json"
    host.main(["--calls", "40", "--record", str(file)])
    assert [row["n"] for row in read(file)] == list(host.BATCHES)
    assert np.all([row["p50_us"] > 0 for row in read(file)])
