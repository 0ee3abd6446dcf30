"""Answers of models whose scores are not logits (several labels, one score), and warnings."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from models import Images, OutputKind, Scores
from service.api.app import create_app
from service.api.schemas import ClassifyAnswer
from service.hosting.repository import Repository
from tests.support import PATIENCE_S
from tests.support.service.client import PATH, AppClient, error_of
from tests.support.service.fakes import CLASSES, LABELS, FakeEngine, decode_digit, fake_info, free

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def served(
    scores: Callable[[Images], Scores], classes: int = CLASSES, **info: Any
) -> AsyncIterator[AppClient]:
    """Serve a model whose scores the function `scores` computes."""
    engine = FakeEngine(scores=scores)
    engine.classes = classes
    repository = Repository(max_batch=8, max_queue=32, max_body_bytes=100_000, decode_threads=2)
    repository.add(replace(fake_info(), **info), [engine], free(decode_digit), None)
    await repository.warm_up()
    async with AppClient(create_app(repository)) as client:
        yield client
    await repository.close(PATIENCE_S)


def up_to(images: Images) -> Scores:
    """Return the score 0.9 for the digit, 0.6 for the next lower digit, and 0.2 for the digit below
    that."""
    scores = np.zeros((len(images), CLASSES), np.float32)
    for row, digit in zip(scores, images[:, 0, 0, 0] % CLASSES, strict=True):
        for below, value in enumerate((0.9, 0.6, 0.2)):
            if digit >= below:
                row[digit - below] = value
    return scores


def nothing(images: Images) -> Scores:
    return np.full((len(images), CLASSES), 0.1, np.float32)


async def found(client: AppClient, query: str = "") -> list[tuple[str, float]]:
    answer = await client.post(f"{PATH}{query}", content=b"7")
    assert answer.status_code == 200, answer.text
    TypeAdapter(ClassifyAnswer).validate_python(answer.json(), strict=True)
    (result,) = answer.json()["results"]
    return [(each["label"], each["probability"]) for each in result["predictions"]]


async def test_a_multi_label_model_answers_every_label_above_the_threshold() -> None:
    several: dict[str, Any] = {"output": OutputKind.INDEPENDENT, "is_multi_label": True}
    async with served(up_to, **several) as client:
        assert await found(client) == [("seven", 0.9), (LABELS[6], 0.6)]
        assert await found(client, "?threshold=0.2") == [
            ("seven", 0.9),
            (LABELS[6], 0.6),
            (LABELS[5], 0.2),
        ]
        assert await found(client, "?threshold=0.95") == []
        assert len(await found(client, "?threshold=0")) == CLASSES
        assert await found(client, "?top_k=1") == [("seven", 0.9)]
        assert await found(client, "?top_k=2&threshold=0.1") == [("seven", 0.9), (LABELS[6], 0.6)]
        (described,) = (await client.get("/v1/models")).json()["models"]
        assert (described["output"], described["multi_label"]) == (
            "independent-probabilities",
            True,
        )
    async with served(nothing, **several) as client:
        assert await found(client) == []


async def test_a_threshold_works_for_classes_that_exclude_each_other_too() -> None:
    async with served(up_to, output=OutputKind.PROBABILITIES) as client:
        assert len(await found(client)) == 5
        assert await found(client, "?threshold=0.5") == [("seven", 0.9), (LABELS[6], 0.6)]


@pytest.mark.parametrize("value", ["1.1", "-0.1", "nan", "inf", "much", ""])
async def test_a_threshold_is_a_probability(value: str) -> None:
    async with served(up_to) as client:
        answer = await client.post(f"{PATH}?threshold={value}", content=b"7")
        assert "threshold must be a number from 0 to 1" in error_of(answer, 422)


async def test_one_score_answers_yes_and_no_everywhere() -> None:
    def score(images: Images) -> Scores:
        return np.full((len(images), 1), 2.0, np.float32)

    async with served(score, 1, labels=("no", "yes")) as client:
        assert await found(client) == [("yes", 0.880797), ("no", 0.119203)]
        (described,) = (await client.get("/v1/models")).json()["models"]
        assert (described["classes"], described["multi_label"]) == (2, False)
        assert error_of(await client.post(f"{PATH}?top_k=3", content=b"7"), 422)
        pixels = {"name": "image", "datatype": "UINT8", "shape": [1, 1, 1, 1], "data": [7]}
        path = "/v2/models/fake/infer"
        raw = (await client.post(path, json={"inputs": [pixels]})).json()["outputs"][0]
        assert (raw["shape"], raw["data"]) == ([1, 1], [2.0])  # as in the file
        asked = {"name": raw["name"], "parameters": {"classification": 2}}
        body = {"inputs": [pixels], "outputs": [asked]}
        classified = (await client.post(path, json=body)).json()["outputs"][0]
        assert classified["data"] == ["0.880797:1:yes", "0.119203:0:no"]


async def test_an_answer_carries_the_warning_that_its_model_has() -> None:
    async with served(up_to, warning="answers of fake are probably wrong") as client:
        answer = (await client.post(PATH, content=b"7")).json()
        assert answer["warning"] == "answers of fake are probably wrong"
        TypeAdapter(ClassifyAnswer).validate_python(answer, strict=True)
        document = (await client.get("/openapi.json")).json()
        properties = document["components"]["schemas"]["ClassifyAnswer"]
        assert "warning" in properties["properties"]
        assert "warning" not in properties["required"]
    async with served(up_to) as client:
        assert "warning" not in (await client.post(PATH, content=b"7")).json()
