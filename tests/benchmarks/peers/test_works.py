"""The inputs of all servers, and the equal results of peers and Convoy."""

import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.gpu.carried import data
from benchmarks.peers.comparison import settings_of
from benchmarks.peers.servers.work import Model, answer
from benchmarks.peers.works import DIGITS, INT8, SQUEEZENET, TRAINED, Task, squeezenet, tasks
from service.hosting.catalogue import Entry, pulled
from service.images.prepare import ImageLimits, prepare_image


def task_of(work: str, folder: Path) -> Task:
    if work != DIGITS and pulled(TRAINED) is None and data() is None:
        pytest.skip(f"needs SqueezeNet: convoy pull {TRAINED}")
    return tasks([work], folder)[work]


def model_of(work: str, task: Task, folder: Path) -> Model:
    return Model(settings_of(work, task, 1, 0, folder, {}))


@pytest.mark.parametrize(("work", "images"), [(DIGITS, 10), (SQUEEZENET, 3), (INT8, 3)])
def test_a_peer_sees_the_pixels_that_convoy_sees_and_answers_the_same(
    tmp_path: Path, work: str, images: int
) -> None:
    task = task_of(work, tmp_path)
    model = model_of(work, task, tmp_path)
    assert task.classifier is not None
    assert len(task.cases) == images
    for case in task.cases:
        pixels = model.decode(case.image)
        expected = prepare_image(case.image, task.classifier.preprocessing, ImageLimits()).run()
        np.testing.assert_array_equal(pixels, expected)
        first = model.answer(model.scores([pixels] * 3)[2])["predictions"][0]
        assert first["index"] == case.best[0]
        assert first["probability"] == pytest.approx(case.best[1], abs=task.within)


def test_a_crop_that_cannot_lie_in_the_middle_lies_where_convoys_does(tmp_path: Path) -> None:
    task = task_of(DIGITS, tmp_path)
    assert task.classifier is not None
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (480, 500), np.uint8)
    Image.fromarray(noise).save(file, "PNG")  # 33 × 32 before the crop
    np.testing.assert_array_equal(
        model_of(DIGITS, task, tmp_path).decode(file.getvalue()),
        prepare_image(file.getvalue(), task.classifier.preprocessing, ImageLimits()).run(),
    )


def test_a_model_that_is_not_here_is_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def download(name: str, entry: Entry, _: object) -> Path:
        assert (name, entry.preset) == (TRAINED, "imagenet")
        return tmp_path

    for name, found in {"pulled": lambda _: None, "data": lambda: None, "pull": download}.items():
        monkeypatch.setattr(f"benchmarks.peers.works.{name}", found)
    assert squeezenet() == (tmp_path, "imagenet")


@pytest.mark.parametrize("logits", [True, False])
def test_the_five_likeliest_come_first(logits: bool) -> None:
    scores = np.random.default_rng(0).permutation(1000).astype(np.float32) / np.float32(100)
    found = answer(scores, logits=logits)["predictions"]
    order = np.argsort(-scores)[:5]
    weights: Any = np.exp(scores.astype(np.float64)) if logits else scores
    expected = weights[order] / (weights.sum() if logits else 1)
    assert [each["index"] for each in found] == order.tolist()
    np.testing.assert_allclose([each["probability"] for each in found], expected, atol=1e-6)


def test_settings_can_travel_in_a_variable(tmp_path: Path) -> None:
    given = asdict(settings_of(DIGITS, task_of(DIGITS, tmp_path), 2, 80, tmp_path, {"a": 1}))
    assert (given["threads"], given["port"], given["side"]) == (2, 80, 32)
    assert (given["channels"], given["logits"]) == ("grey", True)
