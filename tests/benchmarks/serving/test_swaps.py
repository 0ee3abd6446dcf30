"""Versions differ in every score but in no label, and the real server swaps them without losing a
request."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving import swaps
from benchmarks.serving.swaps import (
    Clients,
    first_version,
    scores_of,
    swapping,
    vectors_of,
    write_version,
)
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


def test_an_embedding_of_another_image_is_found_out(tmp_path: Path) -> None:
    images = load_images(SAMPLES)[:2]
    expected = first_version(tmp_path, images)
    one, other = vectors = vectors_of(tmp_path, images)
    clients = Clients("http://127.0.0.1:1", "127.0.0.1:1", images, expected, vectors)
    assert clients.judged(2, 0, one, embeds=True).kind == "ok"
    assert clients.judged(2, 0, other, embeds=True).kind == "mixed up"
    assert clients.judged(2, 0, expected[0][0], embeds=True).kind == "mixed up"
    assert clients.embeddings == 1


class Answering:
    """Loads the given version, or refuses it."""

    def __init__(self, *answers: Exception | None) -> None:
        self._answers = list(answers)

    async def load(self, _: int) -> None:
        answer = self._answers.pop(0)
        if answer is not None:
            raise answer


def test_a_bad_version_that_is_served_is_a_failure_and_one_that_is_refused_is_none(
    tmp_path: Path,
) -> None:
    first_version(tmp_path, load_images(SAMPLES)[:3])
    no = swaps._RefusedError(422, "no")

    async def change(*answers: Exception | None) -> swaps.Swaps:
        clients: Any = Answering(*answers)
        async with swapping(clients, tmp_path, 0.0, 2, len(answers), bad=3) as done:
            while len(done.took_s) < len(answers):
                await asyncio.sleep(0.01)
        return done

    right = asyncio.run(change(None, no, None))
    assert (right.refused, right.failures) == (1, [])
    wrong = asyncio.run(change(no, None))
    assert wrong.refused == 0
    assert wrong.failures == ["HTTP 422: no", "the server accepted version 3 with factor -1.0"]
