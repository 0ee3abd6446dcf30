"""The client's requests, and its report of each answer."""

import asyncio
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from loadtest.client import batch_sizes
from loadtest.images import SAMPLES
from loadtest.journal import MIXED_UP
from service.batching.queue import BatchRecord
from service.telemetry.metrics import Metrics
from tests.loadtest.conftest import SHORT
from tests.support import PATIENCE_S
from tests.support.command_line import Run
from tests.support.servers.scripted_server import ReceivedRequests, answer, honest, scripted


@pytest.mark.usefixtures("counted")
def test_images_take_turns_with_their_types_and_the_extra_headers(loadtest: Run) -> None:
    with scripted() as seen:
        options = ("--clients", "1", "--header", "Authorization: Bearer x y")
        assert loadtest(seen.url, *SHORT, *options)[0] == 0
    # The first request only shows whether the server answers.
    digits = [int(body) for body in seen.bodies[1:]]
    assert digits == [n % 10 for n in range(len(digits))]
    assert {head["Content-Type"] for head in seen.headers} == {"image/png"}
    assert {head["Authorization"] for head in seen.headers} == {"Bearer x y"}


@pytest.mark.usefixtures("counted")
def test_the_model_is_in_the_path(loadtest: Run) -> None:
    with scripted(path="/under/v1/models/a b/classify") as seen:
        assert loadtest(f"{seen.url}/under/", *SHORT, "--model", "a b")[0] == 0
        assert len(seen.bodies) > 1


@pytest.mark.usefixtures("counted")
def test_samples_are_sent_with_their_types(loadtest: Run) -> None:
    async def any_image(_: bytes, __: int) -> web.Response:
        return answer(1)

    with scripted(any_image) as seen:
        assert loadtest(seen.url, *SHORT, "--images", SAMPLES)[0] == 0
    kinds = {head["Content-Type"] for head in seen.headers}
    assert kinds == {"image/png", "image/jpeg", "image/webp"}


def test_an_answer_that_belongs_to_another_image_is_an_error(loadtest: Run) -> None:
    async def swaps(body: bytes, number: int) -> web.Response:
        await asyncio.sleep(0.002)
        return answer((int(body) + (number > 10 and number % 50 == 0)) % 10)

    with scripted(swaps) as seen:
        status, out, _ = loadtest(seen.url, *SHORT, "--rate", "500", "--verify")
        assert status == 1
        assert re.search(rf"errors: {MIXED_UP} ×\d", out)
        # A single one is enough, whatever share of errors is allowed.
        load = ("--rate", "500", "--verify", "--max-errors", "1")
        assert loadtest(seen.url, *SHORT, *load)[0] == 1
        status, out, _ = loadtest(seen.url, *SHORT, "--rate", "500")
    assert status == 0
    assert MIXED_UP not in out


def test_every_kind_of_error_is_counted(loadtest: Run, tmp_path: Path) -> None:
    async def troubled(body: bytes, number: int) -> web.Response:
        match number % 5 if number else 0:
            case 1:
                return answer(1, status=429)
            case 2:
                return web.Response(text="hello")
            case 3:
                await asyncio.sleep(PATIENCE_S)
            case 4:
                return web.Response(status=503)
        return await honest(body, number)

    with scripted(troubled) as seen:
        options = ("--rate", "200", "--timeout", "1s", "--json", tmp_path / "it.json")
        status, out, _ = loadtest(seen.url, *SHORT, *options)
    assert status == 1
    (load,) = json.loads((tmp_path / "it.json").read_text())["loads"]
    assert set(load["errors"]) >= {"429", "503", "bad answer", "timed out"}
    assert sum(load["errors"].values()) + load["answered"] == load["requests"]
    assert load["error_share"] > 0.75
    for kind, count in load["errors"].items():
        assert f"{kind} ×{count}" in out


def test_the_deadline_is_sent_and_504_is_counted_apart(loadtest: Run, tmp_path: Path) -> None:
    async def refuses_every_third(body: bytes, number: int) -> web.Response:
        return answer(0, status=504) if number % 3 == 2 else await honest(body, number)

    def deadlines(seen: ReceivedRequests) -> list[str | None]:
        return [headers.get("X-Timeout-Ms") for headers in seen.headers]

    load = (*SHORT, "--rate", "100", "--json", tmp_path / "it.json")
    with scripted(refuses_every_third) as seen:
        status, out, _ = loadtest(seen.url, *load, "--deadline", "62.5ms")
    assert deadlines(seen)[0] is None, "the first request has none"
    assert set(deadlines(seen)[1:]) == {"62.5"}
    (written,) = json.loads((tmp_path / "it.json").read_text())["loads"]
    assert written["refused"] > 0
    assert written["errors"] == {}
    assert status == 0
    assert f"{written['refused']} refused in time" in out
    with scripted(refuses_every_third) as seen:
        status, out, _ = loadtest(seen.url, *load)
    assert set(deadlines(seen)) == {None}
    assert status == 1
    assert "errors: 504" in out


def test_a_refused_connection_is_one_clear_line(loadtest: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    status, out, error = loadtest(f"http://127.0.0.1:{port}", *SHORT)
    assert (status, out) == (1, "")
    where = f"cannot reach http://127.0.0.1:{port}/v1/classify"
    assert error == f"Error: {where}: connection refused; check the address and the server\n"


def test_a_server_that_does_not_answer_is_one_clear_line(loadtest: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        status, _, error = loadtest(url, *SHORT, "--timeout", "200ms")
    assert status == 1
    assert error == f"Error: {url}/v1/classify did not answer within 0.2 s (--timeout)\n"


@pytest.mark.parametrize(
    ("response", "says"),
    [
        (lambda: answer(1, status=429), "answers 0.png with status 429: {"),
        (lambda: web.Response(text="<html>"), "not a valid answer for one image: b'<html>'"),
    ],
)
def test_a_server_that_refuses_the_first_image_is_one_clear_line(
    loadtest: Run, response: Callable[[], web.Response], says: str
) -> None:
    async def refuses(_: bytes, __: int) -> web.Response:
        return response()

    with scripted(refuses) as seen:
        status, out, error = loadtest(seen.url, *SHORT)
    assert (status, out) == (1, "")
    (line,) = error.splitlines()
    assert says in line


def ran(size: int) -> BatchRecord:
    return BatchRecord(size, compute_s=0.001, failed=False)


def test_sizes_are_read_off_what_the_service_exposes() -> None:
    metrics = Metrics(max_batch=4)
    name = 'the "other"'
    digits, other = metrics.model("digits", "1"), metrics.model(name, "1")
    for size in (1, 1, 2, 4):
        digits.counts.batch(ran(size))
    before = metrics.exposition().decode()
    digits.counts.batch(ran(3))
    other.counts.batch(ran(1))
    after = metrics.exposition().decode()
    assert batch_sizes(before, "digits") == {1: 2, 2: 1, 3: 0, 4: 1}
    assert batch_sizes(after, "digits") - batch_sizes(before, "digits") == {3: 1}
    assert batch_sizes(after) - batch_sizes(before) == {1: 1, 3: 1}
    assert batch_sizes(after, name) == {1: 1, 2: 0, 3: 0, 4: 0}
    assert not batch_sizes(after, "unknown")


@pytest.mark.parametrize(
    "text",
    [None, "<html>", "up 1\n", "convoy_batch_size_bucket 1\n"],
    ids=["none", "html", "other metrics", "no labels"],
)
def test_without_convoys_metrics_there_are_no_batch_sizes(text: str | None) -> None:
    assert not batch_sizes(text)
