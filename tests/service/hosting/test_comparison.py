"""Versions are compared by the meaning of their scores: by the names of classes, and with
probabilities instead of logits."""

from dataclasses import replace

import numpy as np
import pytest

from models import OutputKind
from service.hosting.comparison import compare, relabelled
from service.hosting.model_info import ModelInfo
from service.hosting.recent import MOST_IMAGES, Example, Recent
from service.images.clip import Frames
from service.telemetry.metrics import Comparison
from tests.support.service.fakes import fake_info

CAT_DOG = replace(fake_info(output=OutputKind.PROBABILITIES), labels=("cat", "dog"))
DOG_CAT = replace(CAT_DOG, labels=("dog", "cat"))


def examples(*rows: list[float]) -> list[Example]:
    return [Example(b"a file", np.array(row, np.float32)) for row in rows]


def compared(
    old: ModelInfo, before: list[Example], new: ModelInfo, after: list[Example]
) -> Comparison:
    found = compare(old, before, new, after)
    assert found.largest_change is not None
    return found._replace(largest_change=round(found.largest_change, 6))


def test_the_share_of_equal_labels_and_the_largest_change_of_a_probability() -> None:
    before = examples([0.9, 0.1], [0.4, 0.6], [0.2, 0.8])
    after = examples([0.8, 0.2], [0.6, 0.4], [0.2, 0.8])
    assert compared(CAT_DOG, before, CAT_DOG, after) == (3, 2 / 3, 0.2)


def test_classes_are_matched_by_their_numbers_or_by_their_names() -> None:
    one, other = examples([0.9, 0.1]), examples([0.1, 0.9])
    assert compared(CAT_DOG, one, DOG_CAT, other) == (1, 1.0, 0.0)  # another order
    assert compared(CAT_DOG, one, DOG_CAT, one) == (1, 1.0, 0.0)  # corrected labels
    assert compared(CAT_DOG, one, CAT_DOG, other) == (1, 0.0, 0.8)
    unnamed = replace(CAT_DOG, labels=())
    assert compared(unnamed, one, unnamed, other) == (1, 0.0, 0.8)
    assert compared(unnamed, one, CAT_DOG, one) == (1, 1.0, 0.0)
    translated = replace(CAT_DOG, labels=("Katze", "Hund"))
    assert compared(CAT_DOG, one, translated, one) == (1, 1.0, 0.0)
    assert compared(CAT_DOG, one, translated, other) == (1, 0.0, 0.8)


def test_the_labels_that_changed_are_named() -> None:
    assert relabelled(CAT_DOG, CAT_DOG) == ""
    one = replace(CAT_DOG, labels=("cat", "Dog"))
    said = "1 class has another label, for example 'Dog' instead of 'dog'"
    assert relabelled(CAT_DOG, one) == said
    assert relabelled(CAT_DOG, replace(CAT_DOG, labels=())) == "2 classes have other labels"


def test_of_equal_scores_the_first_class_of_each_version_is_its_answer() -> None:
    before, after = examples([0.6, 0.4]), examples([0.5, 0.5])
    assert compared(CAT_DOG, before, CAT_DOG, after) == (1, 1.0, 0.1)
    assert compared(CAT_DOG, after, CAT_DOG, examples([0.4, 0.6])) == (1, 0.0, 0.1)


def test_a_new_class_counts_as_one_that_was_never_likely() -> None:
    three = replace(CAT_DOG, labels=("cat", "dog", "fox"))
    assert compared(CAT_DOG, examples([0.9, 0.1]), three, examples([0.5, 0.1, 0.4])) == (1, 1, 0.4)


def test_logits_are_compared_as_probabilities() -> None:
    logits = replace(CAT_DOG, output=OutputKind.LOGITS)
    rows = examples([1000.0 + np.log(0.9), 1000.0 + np.log(0.1)])
    found = compare(CAT_DOG, examples([0.9, 0.1]), logits, rows)
    assert list(found) == [1, 1.0, pytest.approx(0, abs=1e-4)]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_not_finite_agree_with_nothing(value: float) -> None:
    after = examples([0.9, value])
    assert compared(CAT_DOG, examples([0.9, 0.1]), CAT_DOG, after) == (1, 0.0, 1.0)


def test_without_images_nothing_is_claimed() -> None:
    assert compare(CAT_DOG, [], CAT_DOG, []) == Comparison(0, None, None)


def test_images_whose_scores_are_not_finite_are_not_kept() -> None:
    recent = Recent(examples([np.nan, 0.1], [0.9, 0.1]))
    recent.add(b"a file", np.array([np.inf, 0], np.float32))
    recent.add(b"another", np.array([1, 0], np.float32))
    assert [example.image for example in recent.examples] == [b"a file", b"another"]


def test_one_image_is_kept_in_a_while_and_the_last_of_them() -> None:
    recent = Recent()
    kept = 0
    for step in range(1000):  # of ten milliseconds
        image = recent.chosen([b"%d" % step, b"another"], step / 100)
        if image is not None:
            recent.add(image, np.zeros(2, np.float32))
            kept += 1
    assert 190 <= kept <= 210
    assert len(recent.examples) == MOST_IMAGES
    last = recent.examples[-1].image
    assert isinstance(last, bytes)
    assert int(last) > 990


def test_a_clip_of_several_images_is_kept_as_it_came() -> None:
    recent = Recent()
    clip = Frames([b"one", b"two"])
    assert recent.chosen([Frames([bytes(2**22), b"x"])], 0.0) is None
    image = recent.chosen([clip], 0.0)
    assert image is clip
    recent.add(clip, np.zeros(2, np.float32))
    assert recent.examples[-1].bytes == 6


def test_no_more_bytes_are_kept_than_a_bound() -> None:
    recent = Recent()
    assert recent.chosen([bytes(2**22 + 1)], 0.0) is None
    for step in range(20):
        image = recent.chosen([bytes(2**22)], float(step))
        assert image is not None
        recent.add(image, np.zeros(2, np.float32))
        assert sum(example.bytes for example in recent.examples) <= 2**24
    assert len(recent.examples) == 4
    recent = Recent(recent.examples)
    recent.add(bytes(2**22), np.zeros(2, np.float32))
    assert len(recent.examples) == 4


def test_what_is_kept_is_no_view_of_a_body_or_of_a_batch() -> None:
    recent = Recent()
    body, scores = np.ones((1, 4), np.uint8), np.ones(2, np.float32)
    image = recent.chosen([body[0]], 0.0)
    assert image is not None
    recent.add(image, scores)
    body[:] = scores[:] = 0
    (example,) = recent.examples
    assert np.asarray(example.image).all()
    assert example.scores.all()
    assert recent.chosen([], 1.0) is None
