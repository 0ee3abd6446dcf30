"""Requests with recorded answers of Triton 2.51: except for a table of differences, Convoy's
answers are the same."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.servers.several_models import convoy_serve
from tests.support.service.beside_triton import RECORDED, REQUESTS, ask, make_repository

TRITONS: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text(encoding="utf-8"))

# What Convoy answers otherwise, and why no client breaks.
OTHERWISE = {
    "a priority": "1 is above the default, and needs an API key that has it; the answer says so",
    "a timeout of a microsecond": "a deadline is kept, which Triton does where its policy says so",
    "all in binary, and one by name": "as the extension says, and clients read by its header",
    "classes, and all in binary": "as the extension says, and clients read by its header",
    "an output twice": "it is refused with a sentence, as no client wants one twice",
    "a tensor in binary and in JSON": "what is in binary counts",
    "more images than a batch has": "they are divided",
}


@pytest.fixture(scope="module")
def convoys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    models = make_repository(tmp_path_factory.mktemp("beside") / "models")
    with convoy_serve(models, "--device", "cpu") as port:
        yield dict(ask(f"127.0.0.1:{port}"))


def test_every_request_is_recorded() -> None:
    assert list(TRITONS) == list(REQUESTS)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_answered_as_by_triton(convoys: dict[str, dict[str, Any]], name: str) -> None:
    tritons, own = TRITONS[name], convoys[name]
    same = (_is_refused(tritons) and _is_refused(own)) or own == tritons
    assert same == (name not in OTHERWISE), own


def _is_refused(answer: dict[str, Any]) -> bool:
    return bool(answer["status"] >= 400)
