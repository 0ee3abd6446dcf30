"""Engines that hang or fail repeatedly are abandoned, and replaced or finally given up."""

import asyncio
import threading
from collections.abc import Collection, Sequence

import httpx
import numpy as np
import pytest

from models import Batch, EngineError, Images, Pixels, Results, Scores
from service.engine import supervised_engine
from service.engine.runner import EngineRunner
from service.engine.supervised_engine import State
from service.engine.watchdog import Bounds
from service.errors import Code, EngineFailedError, ShuttingDownError, ThreadLostError
from service.fair_queue import ANYONE
from service.hosting.admission import Reservation
from service.hosting.pipeline import Pipeline
from service.hosting.repository import Repository
from service.hosting.request import ImageRequest, Outcome, Request, Scored
from service.telemetry.record import RequestRecord
from tests.support import PATIENCE_S
from tests.support.service.client import PATH, digits, error_of, metric, serving, until
from tests.support.service.fakes import FakeEngine, make_repository, one_hot

# For ever, in a test; `expire` is when it has passed.
HUNG = Bounds(batch_s=1000)


class HangingEngine(FakeEngine):
    """Hangs on its first batch until `free` is set. Then this batch's images all get the class
    0."""

    def __init__(self) -> None:
        super().__init__(max_batch=2)
        self.free = threading.Event()
        self.ended = threading.Event()

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        """Return scores. For the first batch, wait for `free` before."""
        first = not self.batches
        super().run(images, inner)
        if first:
            self.free.wait(PATIENCE_S)
            return Results(one_hot(np.zeros((len(images), 1, 1, 1), np.uint8)))
        return Results(one_hot(np.asarray(images)))

    def close(self) -> None:
        """Record that the engine was closed."""
        super().close()
        self.ended.set()


class Engines:
    """Opens engines: first engines that hang, and then good engines. A gate may delay each
    opening."""

    def __init__(self, hanging: int, gate: threading.Event | None = None) -> None:
        self.first = HangingEngine()
        self.opened: list[FakeEngine] = [self.first]
        self._hanging = hanging
        self._gate = gate

    def reopen(self) -> FakeEngine:
        if self._gate is not None:
            self._gate.wait(PATIENCE_S)
        hangs = len(self.opened) < self._hanging
        self.opened.append(HangingEngine() if hangs else FakeEngine(max_batch=2))
        return self.opened[-1]

    def free(self) -> None:
        for engine in self.opened:
            if isinstance(engine, HangingEngine):
                engine.free.set()


async def post(client: httpx.AsyncClient, digit: int) -> httpx.Response:
    return await client.post(PATH, content=str(digit).encode())


async def ready(pipeline: Pipeline) -> None:
    await until(lambda: pipeline.runner.state is State.READY)


# --- what hangs ----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_batch_that_hangs_is_answered_500_who_waits_503_and_then_all_is_well() -> None:
    gate = threading.Event()
    engines = Engines(1, gate)
    async with serving(engines.first, bounds=HUNG, reopen=engines.reopen) as (client, pipeline):
        stuck = asyncio.create_task(post(client, 1))
        await until(lambda: engines.first.batches == [1])
        waiting = [asyncio.create_task(post(client, digit)) for digit in (2, 3, 4)]
        await until(lambda: pipeline.admission.images == 4)
        # The event loop does not hang.
        assert (await client.get("/v2/health/live")).status_code == 200
        assert (await client.get("/v2/health/ready")).status_code == 200
        expire(pipeline)
        assert "failed" in error_of(await stuck, 500)
        for refused in await asyncio.gather(*waiting):
            assert "restarting" in error_of(refused, 503)
            assert int(refused.headers["retry-after"]) >= 1
        assert pipeline.runner.state is State.RESTARTING
        for refused in (await client.get("/v2/health/ready"), await post(client, 5)):
            assert "restarting" in error_of(refused, 503)
            assert int(refused.headers["retry-after"]) >= 1
        assert (await client.get("/v2/health/live")).status_code == 200
        assert await metric(client, "convoy_engine_restarts_total") == 1
        assert await metric(client, "convoy_ready") == 0
        assert await metric(client, "convoy_failed_batches_total") == 1

        gate.set()
        await ready(pipeline)
        assert [digits(await post(client, digit)) for digit in (6, 7)] == [[6], [7]]
        assert engines.opened[1].batches == [1, 1]
        assert engines.opened[1].threads.isdisjoint(engines.first.threads)
        # The stuck one ends at last: it is closed, and its scores are discarded.
        assert not engines.first.closed
        engines.free()
        assert engines.first.ended.wait(PATIENCE_S)
        assert engines.first.batches == [1], "what waited never got there"
        assert digits(await post(client, 8)) == [8]
        assert await metric(client, "convoy_engine_restarts_total") == 1
        assert not engines.opened[1].closed
    assert engines.opened[1].closed


@pytest.mark.anyio
async def test_who_was_let_in_and_is_still_decoded_is_told_too() -> None:
    gate = threading.Event()
    engines = Engines(1, gate)
    decoding = threading.Event()

    def decode(data: bytes) -> Pixels:
        if data == b"2":
            decoding.wait(PATIENCE_S)
        return np.full((1, 1, 1), int(data), np.uint8)

    async with serving(engines.first, decode=decode, bounds=HUNG, reopen=engines.reopen) as (
        client,
        pipeline,
    ):
        late = asyncio.create_task(post(client, 2))
        await until(lambda: pipeline.admission.images == 1)
        stuck = asyncio.create_task(post(client, 1))
        await until(lambda: engines.first.batches == [1])
        expire(pipeline)
        error_of(await stuck, 500)
        decoding.set()
        assert "restarting" in error_of(await late, 503)
        gate.set()
        await ready(pipeline)
        engines.free()


@pytest.mark.anyio
async def test_a_request_that_is_partly_in_the_batch_that_hangs_is_answered_500() -> None:
    engines = Engines(1)
    async with serving(engines.first, bounds=HUNG, reopen=engines.reopen) as (client, pipeline):
        files = [("file", (f"{n}.png", str(n).encode(), "image/png")) for n in (1, 2, 3)]
        stuck = asyncio.create_task(client.post(PATH, files=files))
        await until(lambda: engines.first.batches == [2])
        expire(pipeline)
        error_of(await stuck, 500)
        await ready(pipeline)
        assert digits(await client.post(PATH, files=files)) == [1, 2, 3]
        engines.free()


@pytest.mark.anyio
async def test_an_engine_that_hangs_again_and_again_is_given_up_for_good() -> None:
    engines = Engines(9)
    repository = make_repository(engines.first, bounds=HUNG, reopen=engines.reopen)
    await repository.warm_up()
    pipeline = only(repository)
    failure = asyncio.create_task(repository.failure())
    for _ in range(2):
        await hang(pipeline, engines.opened)
        assert pipeline.runner.state is State.RESTARTING
        assert not failure.done()
        await ready(pipeline)
    await hang(pipeline, engines.opened)
    assert pipeline.runner.state is State.FAILED
    assert "a batch of size 1 within 1000.0 s" in str(await failure)
    assert len(engines.opened) == 3
    assert not await repository.close(0.01), "three are stuck"
    engines.free()
    assert await repository.close(PATIENCE_S)
    assert all(engine.closed for engine in engines.opened)


@pytest.mark.anyio
@pytest.mark.parametrize("opens", [False, True])
async def test_a_restart_that_fails_is_the_end(opens: bool) -> None:
    def fail() -> FakeEngine:
        raise EngineError("no memory")

    def reopen() -> FakeEngine:
        if opens:
            return FakeEngine(warm_up=fail)
        return fail()

    engine = HangingEngine()
    repository = make_repository(engine, bounds=HUNG, reopen=reopen)
    await repository.warm_up()
    await hang(only(repository), [engine])
    assert "cannot be restarted: no memory" in str(await repository.failure())
    assert only(repository).runner.state is State.FAILED
    engine.free.set()
    assert await repository.close(PATIENCE_S)


@pytest.mark.anyio
async def test_a_restart_without_a_thread_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    engine = HangingEngine()
    repository = make_repository(engine, bounds=HUNG, reopen=FakeEngine)
    await repository.warm_up()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        await hang(only(repository), [engine])
        failure = await asyncio.wait_for(repository.failure(), PATIENCE_S)
    assert "cannot be restarted: can't start new thread" in str(failure)
    assert only(repository).runner.state is State.FAILED
    engine.free.set()
    assert await repository.close(PATIENCE_S)


@pytest.mark.anyio
async def test_a_restart_that_hangs_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.engine.watchdog._RESTART_LEAST_S", 0.05)
    monkeypatch.setattr("service.engine.watchdog._RESTART_TIMES", 0.0)
    gate = threading.Event()
    engines = Engines(1, gate)
    repository = make_repository(engines.first, bounds=HUNG, reopen=engines.reopen)
    await repository.warm_up()
    await hang(only(repository), engines.opened)
    assert "cannot be restarted" in str(await repository.failure())
    gate.set()
    engines.free()
    assert await repository.close(PATIENCE_S)
    assert engines.opened[1].closed, "even what was opened too late"


@pytest.mark.anyio
async def test_with_nothing_to_restart_it_is_the_end() -> None:
    engine = HangingEngine()
    repository = make_repository(engine, bounds=HUNG)
    await repository.warm_up()
    await hang(only(repository), [engine])
    assert "for good" in str(await repository.failure())
    engine.free.set()
    assert await repository.close(PATIENCE_S)


@pytest.mark.anyio
async def test_a_hang_while_draining_ends_the_draining_and_starts_nothing() -> None:
    engines = Engines(1)
    repository = make_repository(engines.first, bounds=HUNG, reopen=engines.reopen)
    await repository.warm_up()
    pipeline = only(repository)
    stuck = asyncio.create_task(score(pipeline))
    await until(lambda: engines.first.batches == [1])
    late = Reservation(pipeline.admission)
    waiting = [asyncio.create_task(score(pipeline)) for _ in range(3)]
    await until(lambda: pipeline.admission.images == 4)
    pipeline.runner.refuse()
    expire(pipeline)
    outcomes = await asyncio.gather(stuck, *waiting, return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "EngineFailedError",
        *["ShuttingDownError"] * 3,
    ]
    with pytest.raises(ShuttingDownError):
        await score(pipeline, late)
    assert pipeline.runner.state is State.DRAINING
    assert engines.opened == [engines.first]
    engines.free()
    assert await repository.close(PATIENCE_S)
    assert engines.first.closed


@pytest.mark.anyio
async def test_a_signal_during_a_restart_is_obeyed() -> None:
    gate = threading.Event()
    engines = Engines(1, gate)
    repository = make_repository(engines.first, bounds=HUNG, reopen=engines.reopen)
    await repository.warm_up()
    await hang(only(repository), engines.opened)
    assert await repository.drain(PATIENCE_S)
    assert only(repository).runner.state is State.DRAINING
    gate.set()
    engines.free()
    assert await repository.close(PATIENCE_S)
    assert only(repository).runner.state is State.DRAINING
    assert all(engine.closed for engine in engines.opened)


# --- what fails ----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_an_engine_that_fails_five_times_in_a_row_is_restarted_and_not_before() -> None:
    engine, second = FakeEngine(), FakeEngine()
    async with serving(engine, reopen=lambda: second) as (client, pipeline):
        for failures in (4, 4, 5):
            engine.failing = True
            for _ in range(failures):
                error_of(await post(client, 1), 500)
            engine.failing = False
            if failures == 4:
                assert digits(await post(client, 2)) == [2], "one that works counts them afresh"
        await ready(pipeline)
        assert digits(await post(client, 3)) == [3]
        assert second.batches == [1]
        await until(lambda: engine.closed)
        assert await metric(client, "convoy_engine_restarts_total") == 1


@pytest.mark.anyio
async def test_one_that_fails_and_cannot_be_opened_again_is_kept() -> None:
    engine = FakeEngine()
    async with serving(engine) as (client, pipeline):
        engine.failing = True
        for _ in range(12):
            error_of(await post(client, 1), 500)
        engine.failing = False
        assert pipeline.runner.state is State.READY
        assert digits(await post(client, 3)) == [3]


# --- what gives no numbers -----------------------------------------------------------------------


def not_a_number(images: Images) -> Scores:
    return one_hot(images) * np.float32(np.nan)


@pytest.mark.anyio
async def test_an_engine_that_gives_no_numbers_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_engine, "_LOOK_S", 0.0)
    engine, second = FakeEngine(scores=not_a_number), FakeEngine()
    async with serving(engine, reopen=lambda: second) as (client, pipeline):
        for _ in range(5):
            error_of(await post(client, 1), 500)
        await until(lambda: engine.closed)
        await ready(pipeline)
        assert digits(await post(client, 3)) == [3]


@pytest.mark.anyio
async def test_a_model_that_gives_no_numbers_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_engine, "_LOOK_S", 0.0)
    async with serving(FakeEngine(scores=not_a_number)) as (client, pipeline):
        for _ in range(5):
            error_of(await post(client, 1), 500)
        await until(lambda: pipeline.runner.state is State.FAILED)
        assert "random pixels are not finite numbers" in pipeline.runner.failure
        for path in ("/healthz", "/v2/health/ready", "/v2/models/fake/ready"):
            assert (await client.get(path)).status_code == 503


@pytest.mark.anyio
async def test_a_model_of_finite_scores_in_the_dark_alone_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervised_engine, "_LOOK_S", 0.0)
    engine = FakeEngine(
        scores=lambda images: np.where(images[:, 0, 0] == 0, one_hot(images), np.nan)
    )
    async with serving(engine) as (client, pipeline):
        assert digits(await post(client, 0)) == [0]
        for digit in range(1, 6):
            error_of(await post(client, digit), 500)
        await until(lambda: pipeline.runner.state is State.FAILED)
        assert (await client.get("/v2/models/fake/ready")).status_code == 503


@pytest.mark.anyio
async def test_images_that_no_network_can_take_replace_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervised_engine, "_LOOK_S", 0.0)
    engine = FakeEngine(
        scores=lambda images: np.where(images[:, 0, 0] == 9, np.inf, one_hot(images))
    )
    async with serving(engine) as (client, pipeline):
        for _ in range(12):
            error_of(await post(client, 9), 500)
        assert digits(await post(client, 3)) == [3]
        assert pipeline.runner.state is State.READY
        assert len(engine.batches) == 12 + 2 + 1  # of which two are of random pixels


# --- warming up ----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_warm_up_is_bounded_only_where_a_setting_says_so() -> None:
    gate = threading.Event()
    repository = make_repository(
        FakeEngine(warm_up=lambda: gate.wait(PATIENCE_S)), bounds=Bounds(warm_up_s=0.05)
    )
    with pytest.raises(EngineError, match=r"has not warmed up within 0\.05 s"):
        await repository.warm_up()
    assert only(repository).runner.state is State.FAILED
    assert not await repository.close(0.01)
    gate.set()
    assert await repository.close(PATIENCE_S)


@pytest.mark.anyio
async def test_a_warm_up_that_lasts_is_mentioned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("service.engine.supervised_engine._REMIND_S", 0.01)
    gate = threading.Event()
    repository = make_repository(FakeEngine(warm_up=lambda: gate.wait(PATIENCE_S)))
    warming = asyncio.create_task(repository.warm_up())
    await until(lambda: "warming up for" in caplog.text)
    assert not repository.ready
    gate.set()
    await warming
    assert repository.ready
    await repository.close(PATIENCE_S)


def only(repository: Repository) -> Pipeline:
    (pipeline,) = repository.models.values()
    return pipeline


def expire(pipeline: Pipeline, engine: int = 0) -> None:
    """Pretend that the engine's current work has taken more time than it may."""
    runner = pipeline.runner
    assert isinstance(runner, EngineRunner)
    for seconds in (0, 1001):
        runner._engines[engine]._thread.pool.look(seconds)


async def score(pipeline: Pipeline, held: Reservation | None = None) -> Scored:
    """Return the scores of a blank image."""
    held = held or Reservation(pipeline.admission)
    ended: asyncio.Future[Scored] = asyncio.get_running_loop().create_future()

    def settle(outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            ended.set_exception(outcome)
        else:
            ended.set_result(outcome)

    record = RequestRecord(b"1", "127.0.0.1", b"POST", b"/", b"", {}, ANYONE)
    request = Request(pipeline, record, settle)
    request._reservation = held
    try:
        request.infer(ImageRequest([], [np.zeros((1, 1, 1), np.uint8)]))
        return await ended
    finally:
        request.abandon(Code.CLIENT_LEFT)


async def hang(pipeline: Pipeline, engines: Sequence[FakeEngine]) -> None:
    """Score an image on which the last engine hangs, and check that the image fails."""
    stuck = asyncio.create_task(score(pipeline))
    await until(lambda: engines[-1].batches == [1])
    expire(pipeline)
    with pytest.raises(EngineFailedError) as caught:
        await stuck
    assert isinstance(caught.value.__cause__, ThreadLostError)
