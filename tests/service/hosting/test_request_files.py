"""A device or a job decodes files, and leaves some files to threads. The outcomes are the same as
if threads decoded all files."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import combinations_with_replacement as combinations
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import Kind
from service.batching.policy import Urgency
from service.errors import Code, DeadlineError, EngineFailedError, ImageError
from service.fair_queue import Client
from service.hosting.pipeline import Pipeline
from service.hosting.request import ImageRequest, Outcome, Request
from service.images.decode_pool import DecodePool
from service.telemetry.counts import Phases
from service.telemetry.record import RequestRecord
from tests.support import PATIENCE_S
from tests.support.service.client import until
from tests.support.service.fakes import FakeDecoder, FakeEngine, make_repository, prepare_file

pytestmark = pytest.mark.anyio

# Of digits, and of what is none (x): decoded by the device, flagged by it, known by their header,
# of another format.
KINDS = [b"3", b"4f", b"5h", b"6n", b"xf", b"xh", b"xn"]
CLIENT = Client("someone", 1.0)


@asynccontextmanager
async def pipeline_of(engine: FakeEngine, **options: Any) -> AsyncIterator[Pipeline]:
    options = dict[str, Any](prepare=prepare_file, max_queue=64) | options
    repository = make_repository(engine, **options)
    await repository.warm_up()
    (pipeline,) = repository.models.values()
    yield pipeline
    assert (pipeline.admission.requests, pipeline.admission.images) == (0, 0)
    assert pipeline.admission.room.taken == 0
    assert await repository.close(PATIENCE_S)


class Ask:
    """Posts files, and records every outcome."""

    def __init__(self, pipeline: Pipeline, *files: bytes, urgency: Urgency | None = None) -> None:
        self.outcomes: list[Outcome] = []
        self.phases: Phases | None = None
        record = RequestRecord(b"1", "127.0.0.1", b"POST", b"/", b"", {}, CLIENT)
        self.call = Request(pipeline, record, self._note)
        self.call.open()
        self.call.hold(sum(map(len, files)), "it has more")
        wanted = ImageRequest(list(files), None)
        if urgency is not None:
            wanted = wanted._replace(urgency=urgency)
        try:
            self.call.infer(wanted)
        except Exception as error:  # noqa: BLE001  as an exchange does
            self.call.fail(error)

    def _note(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if not isinstance(outcome, Exception):
            self.phases = self.call.phases(outcome)
            self.call.finish(outcome)

    async def answer(self) -> list[int] | str:
        """Return the digits, or the error's text."""
        await until(lambda: bool(self.outcomes))
        (outcome,) = self.outcomes
        if isinstance(outcome, Exception):
            return f"{type(outcome).__name__}: {outcome}"
        return [int(row.scores.argmax()) for row in outcome.results]


def decoded(pipeline: Pipeline) -> dict[str, int]:
    return pipeline.metrics.counts.sum().decoded


@pytest.mark.parametrize("images", [1, 2, 3])
async def test_status_text_and_scores_are_those_of_a_server_whose_cpu_decodes(images: int) -> None:
    async with (
        pipeline_of(FakeEngine()) as here,
        pipeline_of(FakeDecoder()) as device,
        pipeline_of(FakeEngine(), decodes=True) as job,
    ):
        assert job.runner.decodes
        # In each order, but of three.
        several = product(KINDS, repeat=images) if images < 3 else combinations(KINDS, images)
        for files in several:
            expected = await Ask(here, *files).answer()
            assert await Ask(device, *files).answer() == expected, files
            assert await Ask(job, *files).answer() == expected, files
            assert isinstance(expected, list) == all(file[:1] != b"x" for file in files)
        assert decoded(here) == {}


async def test_a_flagged_image_wastes_one_place_and_runs_in_a_later_batch() -> None:
    engine = FakeDecoder()
    async with pipeline_of(engine) as pipeline:
        engine.kinds.clear()
        assert await Ask(pipeline, b"1", b"2f", b"3n", b"4h").answer() == [1, 2, 3, 4]
        assert sorted(engine.kinds[0]) == [Kind.PIXELS, Kind.PIXELS, Kind.JPEG, Kind.JPEG]
        assert engine.kinds[1:] == [[Kind.PIXELS]]
        assert decoded(pipeline) == {"": 1, "bad code": 1, "format": 1, "progressive": 1}


async def test_a_flagged_image_is_decoded_in_its_clients_turn_and_stays_admitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the bound on images and the turns for decoding limit a client that sends many such
    images."""
    posted: list[tuple[float, Client]] = []
    post = DecodePool.post

    def noting(self: DecodePool, decoding: object, then: object, client: Client, left: object):  # type: ignore[no-untyped-def]
        posted.append((decoding.cost.seconds, client))  # type: ignore[attr-defined]
        return post(self, decoding, then, client, left)  # type: ignore[arg-type]

    monkeypatch.setattr(DecodePool, "post", noting)
    gate = threading.Event()
    engine = FakeDecoder()
    async with pipeline_of(engine) as pipeline:
        engine.kinds.clear()
        engine._gate = gate
        asked = Ask(pipeline, b"7f")
        await until(lambda: len(engine.kinds) == 1)
        gate.set()
        await until(lambda: len(engine.kinds) == 2 or bool(asked.outcomes))
        assert pipeline.admission.images in (0, 1)
        assert await asked.answer() == [7]
        assert [client for _, client in posted] == [CLIENT, CLIENT]
        assert engine.kinds == [[Kind.JPEG], [Kind.PIXELS]]


async def test_bytes_of_files_stay_reserved_until_no_device_needs_them() -> None:
    gate = threading.Event()
    engine = FakeDecoder()
    async with pipeline_of(engine) as pipeline:
        engine.kinds.clear()
        engine._gate = gate
        for file, kind in ((b"7", Kind.JPEG), (b"7n", Kind.PIXELS)):
            gate.clear()
            asked = Ask(pipeline, file)
            await until(lambda kind=kind: engine.kinds[-1:] == [[kind]])  # type: ignore[misc]
            assert pipeline.admission.room.taken == (1 if kind is Kind.JPEG else 0)
            assert pipeline.admission.images == 1
            gate.set()
            assert await asked.answer() == [7]


async def test_an_engine_that_no_longer_decodes_leaves_all_files() -> None:
    """After the engine has restarted on the CPU, the pipeline still passes files to it that were
    prepared before."""
    gate = threading.Event()
    engine = FakeDecoder(gate=None)
    async with pipeline_of(engine) as pipeline:
        engine._gate = gate
        first = Ask(pipeline, b"1")
        await until(lambda: [Kind.JPEG] in engine.kinds)
        second = Ask(pipeline, b"2")
        await until(lambda: pipeline.runner.batcher.depth == 1)
        engine.run = lambda images, inner=(): FakeEngine.run(engine, images, inner)  # type: ignore[method-assign]
        engine.takes = Kind.TENSOR
        gate.set()
        assert await first.answer() == [1]
        assert await second.answer() == [2]
        assert decoded(pipeline) == {"": 1, "engine": 1}


async def test_a_flagged_image_that_can_no_longer_be_in_time_is_late() -> None:
    engine = FakeDecoder(delay_s=0.2)
    async with pipeline_of(engine) as pipeline:
        urgency = Urgency(asyncio.get_running_loop().time() + 0.3)
        answer = await Ask(pipeline, b"7f", urgency=urgency).answer()
        assert isinstance(answer, str)
        assert answer.startswith(DeadlineError.__name__)


@pytest.mark.parametrize("decodes", [False, True])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_request_has_one_outcome_whatever_is_flagged_fails_or_leaves(
    seed: int, *, decodes: bool
) -> None:
    draw = random.Random(seed)

    async def client(pipeline: Pipeline, engine: FakeEngine) -> None:
        for _ in range(4):
            files = [draw.choice(KINDS[: draw.choice((4, 7))]) for _ in range(draw.choice((1, 3)))]
            asked = Ask(pipeline, *files)
            engine.failing = draw.random() < 0.1
            if draw.random() < 0.3:
                for _ in range(draw.randrange(8)):
                    await asyncio.sleep(draw.choice((0, 0.001)))
                if not asked.outcomes:
                    asked.call.abandon(Code.CLIENT_LEFT)
                    await asyncio.sleep(0.01)
                    assert asked.outcomes == []
                    continue
            answer = await asked.answer()
            if isinstance(answer, list):
                assert answer == [int(file[:1]) for file in files]
            else:
                kind = answer.partition(":")[0]
                assert kind in (EngineFailedError.__name__, ImageError.__name__)
                assert kind == EngineFailedError.__name__ or any(f[:1] == b"x" for f in files)

    async def main() -> None:
        engine = FakeEngine(max_batch=4) if decodes else FakeDecoder(max_batch=4)
        async with pipeline_of(engine, decodes=decodes) as pipeline:
            assert pipeline.runner.decodes == decodes
            await asyncio.gather(*(client(pipeline, engine) for _ in range(4)))
            await until(lambda: pipeline.admission.requests == 0)

    asyncio.run(main())
