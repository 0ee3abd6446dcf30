"""Versions differ in every score and in no label, and the real server changes them without loss."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.serving import swaps
from benchmarks.serving.swaps import Clients, first_version, scores_of, write_version
from loadtest.images import SAMPLES, load_images


def test_versions_differ_in_every_score_and_in_no_label(tmp_path: Path) -> None:
    images = load_images(SAMPLES)[:3]
    even, odd = first_version(tmp_path, images)
    for one, other in zip(even, odd, strict=True):
        assert np.allclose(other, one * swaps._FACTOR, atol=1e-4)
        assert one.argmax() == other.argmax()
    write_version(tmp_path, 2)
    for one, other in zip(even, scores_of(tmp_path, images), strict=True):
        assert np.array_equal(one, other)


def test_an_answer_with_the_scores_of_another_version_is_found_out(tmp_path: Path) -> None:
    images = load_images(SAMPLES)[:1]
    expected = first_version(tmp_path, images)
    clients = Clients("http://127.0.0.1:1", "127.0.0.1:1", images, expected)
    assert clients.judged(2, 0, expected[0][0]).kind == "ok"
    assert clients.judged(3, 0, expected[0][0]).kind == "mixed up"
    assert clients.judged(3, 0, expected[1][0]).kind == "ok"
    assert clients.versions == {2: 1, 3: 1}


@pytest.mark.slow
def test_the_real_server_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert swaps.main(["--swaps", "4", "--every", "1", "--rounds", "2", "--rate", "20"]) == 0
    assert "failed: none" in capsys.readouterr().out
