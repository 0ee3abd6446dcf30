"""The stages and counts in ARCHITECTURE.md, compared with the trace of a real request."""

import asyncio
import re
import sys
import threading
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from models import BUILT_IN_MODEL, DeviceKind
from service.api.app import create_app
from service.batching.latency import Latency
from service.batching.policy import SHORT_WITH_DECODING_S
from service.hosting.finding import decoder
from service.hosting.loading import OpenModel, open_models
from service.hosting.presets import PHOTOGRAPHS
from service.hosting.repository import Repository
from service.settings import Settings
from tests.support import PATIENCE_S
from tests.support.servers.listening import listening, post
from tests.support.service.client import until

ROOT = Path(__file__).parents[3]
PACKAGES = tuple(f"{ROOT}/{name}/" for name in ("service", "models", "kernels"))
MAX_STAGES = 14

# Of the table: | 1 | `http/connection.py` | `Connection.buffer_updated` | ...
_ROW = re.compile(r"^\| \d+ \| `([\w/]+\.py)` \| `([\w.]+)` \|", re.MULTILINE)


@pytest.fixture(scope="module")
def stages() -> list[tuple[str, str]]:
    found = _ROW.findall((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert found, "ARCHITECTURE.md has no table of stages"
    return [(file, function) for file, function in found]


def test_the_stages_are_few(stages: list[tuple[str, str]]) -> None:
    assert len(stages) <= MAX_STAGES


class Step(NamedTuple):
    """A call of a function in a thread."""

    thread: int
    file: str
    function: str


@pytest.fixture(scope="module")
def steps() -> list[Step]:
    for _ in range(20):  # a busy machine may find at start that decoding takes less than running
        if calls := asyncio.run(traced()):
            return calls
    pytest.fail("the built-in model's images are never decoded where they run")


async def traced() -> list[Step]:
    """Return Convoy's calls for a request with one image, from its first byte to its answer. Return
    nothing if the engine's thread does not decode the image."""
    calls: list[Step] = []

    def record(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGES):
            file = path.removeprefix(f"{ROOT}/")
            calls.append(Step(threading.get_ident(), file, frame.f_code.co_qualname))

    settings = Settings(device=DeviceKind.CPU, max_batch=2)
    threading.setprofile(record)  # of threads that start from now on: those of the repository
    try:
        repository = Repository(
            max_batch=2,
            max_queue=8,
            max_body_bytes=2**20,
            decode_threads=1,
            sample=PHOTOGRAPHS[0].read_bytes(),
            measure_s=0.01,
        )
        (opened,) = open_models(settings, None)
        assert isinstance(opened, OpenModel)
        repository.add(opened.info, opened.engines, decoder(opened.preprocessing, settings))
        await repository.warm_up()
        (pipeline,) = repository.models.values()
        if not pipeline.runner.decodes:
            await repository.close(PATIENCE_S)
            return []
        # However busy this machine is: the model is a quick one.
        pipeline.runner.batcher.learn(Latency.measured({1: 0.001}, 2), 0, SHORT_WITH_DECODING_S)
        app = create_app(repository)
        image = min((BUILT_IN_MODEL.parent / "samples").iterdir()).read_bytes()
        async with listening(app, endpoints=app.endpoints) as server:
            client = await server.send(b"")
            await until(lambda: bool(server.connections))
            calls.clear()
            sys.setprofile(record)
            try:
                client.send(post(image))
                reply = await client.reply()
            finally:
                sys.setprofile(None)
            passed = calls.copy()  # to close the engine is no part of it
        await repository.close(PATIENCE_S)
    finally:
        threading.setprofile(None)
    assert reply.status == 200
    return passed


def test_a_request_passes_the_stages_in_their_order(
    stages: list[tuple[str, str]], steps: list[Step]
) -> None:
    calls = [(step.file.removeprefix("service/"), step.function) for step in steps]
    missed = [stage for stage in stages if stage not in calls]
    assert not missed, f"a request does not pass {missed}"
    place = 0
    for stage in stages:
        assert stage in calls[place:], f"{stage} comes earlier than ARCHITECTURE.md says"
        place = calls.index(stage, place) + 1


def test_the_way_of_a_request_is_as_long_as_the_page_says(steps: list[Step]) -> None:
    """Each number on the page is at least the traced number, and at most a fourth larger, because
    some paths vary."""
    page = " ".join((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split())
    (numbers,) = re.findall(
        r"runs code of at most (\d+) files and (\d+) classes. During the request, calls go from one"
        r" file to another at most (\d+) times, and from one thread to another at most (\d+) times",
        page,
    )
    files = {step.file for step in steps}
    classes = {
        (step.file, step.function.partition(".")[0])
        for step in steps
        if "." in step.function.partition(".<locals>")[0]
    }
    threads = [
        [step.file for step in steps if step.thread == thread]
        for thread in {step.thread for step in steps}
    ]
    hops = sum(here != there for way in threads for here, there in pairwise(way))
    found_all = len(files), len(classes), hops, handovers(steps)
    for stated, found in zip(map(int, numbers), found_all, strict=True):
        assert found <= stated <= 1.25 * found


def handovers(steps: list[Step]) -> int:
    """Return how often a thread posts to another thread: to the engine's thread, and back to the
    event loop's thread.

    The calls that post are counted, because the order of calls in different threads is not fixed.
    """
    posts = ("ThreadPool.post", "ThreadPool.settle")
    return sum(step.function in posts for step in steps)
