"""Answers: valid answers, and answers that may belong to the same image."""

import json
from typing import Any

import pytest

from loadtest.answers import PHASES, Answer, BadAnswerError, read_answer, same_image


def body(predictions: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "results": [{"predictions": predictions}], **more}).encode()


def test_an_answer_has_probabilities_and_phases() -> None:
    timing = {**{name: n + 0.5 for n, name in enumerate(PHASES)}, "total": 12.5}
    answer = read_answer(body([{"index": 3, "label": "x", "probability": 0.75}], timing_ms=timing))
    assert answer == Answer({3: 0.75}, (0.5, 1.5, 2.5, 3.5, 4.5), "m")
    assert read_answer(body([{"index": 3, "probability": 1}])).phases_ms == ()


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"OK",
        b"[]",
        b'"results"',
        b"{}",
        b'{"results":[]}',
        b'{"results":[{"predictions":[]}]}',
        b'{"results":[{"predictions":[{}]}]}',
        b'{"results":[{"predictions":[{"index":null,"probability":1}]}]}',
        b'{"results":[{"predictions":7}]}',
        b'{"results":[{"predictions":[{"index":1,"probability":1}]}' * 2 + b"]}",
        body([{"index": 1, "probability": 1}], results=[{}, {}]),
        body([{"index": 1, "probability": 1}], timing_ms={"receive": 1}),
    ],
)
def test_other_bodies_are_bad_answers(wrong: bytes) -> None:
    with pytest.raises(BadAnswerError):
        read_answer(wrong)


def same(one: dict[int, float], other: dict[int, float]) -> bool:
    verdict = same_image(Answer(one, ()), Answer(other, ()))
    assert same_image(Answer(other, ()), Answer(one, ())) is verdict
    return verdict


def test_an_image_may_change_a_little_with_its_batch_but_not_become_another() -> None:
    first = {1: 0.50, 2: 0.30, 3: 0.10}
    assert same(first, first)
    assert same(first, {1: 0.505, 2: 0.295, 3: 0.10})
    assert not same(first, {1: 0.60, 2: 0.20, 3: 0.10})
    assert not same(first, {2: 0.50, 1: 0.30, 3: 0.10})
    assert not same(first, {7: 0.50, 8: 0.30, 9: 0.10})


def test_near_ties_at_the_end_of_the_list_may_change_places() -> None:
    assert same({1: 0.50, 2: 0.101, 3: 0.100}, {1: 0.50, 3: 0.101, 4: 0.100})
    assert not same({1: 0.50, 2: 0.20, 3: 0.100}, {1: 0.50, 3: 0.100, 4: 0.100})
