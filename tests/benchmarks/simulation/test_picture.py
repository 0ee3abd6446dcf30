"""The picture of batches over time."""

from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.simulation import picture
from benchmarks.simulation.schedulers import CONVOY


@pytest.mark.parametrize("policy", picture.POLICIES)
def test_batches_follow_each_other_and_carry_items_that_have_come(policy: str) -> None:
    runs = picture.runs_of(policy)
    assert all(run.ended <= following.began for run, following in pairwise(runs))
    assert all(max(run.arrivals) <= run.began for run in runs)
    assert sum(len(run.arrivals) for run in runs) == 3000


def test_the_sentences_beside_the_picture_are_true() -> None:
    mean = {policy: picture.mean_ms(picture.runs_of(policy)) for policy in picture.POLICIES}
    assert mean[CONVOY] < 0.95 * min(mean[policy] for policy in mean if policy != CONVOY)


def test_the_picture_has_the_pixels_of_its_size(tmp_path: Path) -> None:
    picture.draw(tmp_path / "batching.png")
    with Image.open(tmp_path / "batching.png") as drawn:
        assert drawn.size == (900, 500)
