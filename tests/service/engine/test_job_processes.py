"""Batches run in other processes. A crash or a hang there makes only one image or one batch
fail."""

import asyncio
import errno
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from models import Batch, EngineError, OutputKind, Pixels, Results
from service.engine import job_processes, supervised_engine
from service.engine.job_processes import JobParent, JobProcesses, _JobProcess
from service.engine.ranking import ScoreRow
from service.engine.supervised_engine import Item, Probe, State, SupervisedEngine
from service.engine.undecoded import NotHereError, Undecoded
from service.engine.watchdog import Bounds
from service.errors import DecoderLostError, ImageError
from tests.support import PATIENCE_S
from tests.support.service.client import until
from tests.support.service.fakes import FakeEngine, decode_digit

pytestmark = pytest.mark.anyio

ELSEWHERE = 100  # is added to the scores of another process


@dataclass(eq=False)
class File(Undecoded):
    """A file that contains a digit, or a word that selects the behaviour of the decoder."""

    file: bytes
    expected_s: float = 0.001

    def read(self) -> Callable[[], Pixels]:
        if b"large" in self.file:
            raise NotHereError
        return partial(decode, self.file)


def decode(data: bytes) -> Pixels:
    if b"crashes" in data:
        os.kill(os.getpid(), signal.SIGKILL)
    if b"hangs" in data:
        time.sleep(100 * PATIENCE_S)
    if b"odd" in data:
        raise OddError(1, 2)
    if b"unreadable" in data:
        raise UnreadableError
    return decode_digit(data)


class OddError(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"odd {one} {two}")


class UnreadableError(Exception):
    """An exception that can be unpickled only in the process that raises it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return unreadable, (os.getpid(),)


def unreadable(process: int) -> UnreadableError:
    if os.getpid() != process:
        raise MemoryError
    return UnreadableError()


class OtherEngine(FakeEngine):
    """An engine in another process, which its scores show. A 9 kills its process, and an 8 makes it
    fail. Its inner values have two positions."""

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        digits = {int(np.asarray(image).flat[0]) for image in images}
        if 9 in digits:
            os.kill(os.getpid(), signal.SIGKILL)
        if 8 in digits:
            raise EngineError("it takes no 8")
        results = super().run(images, inner)
        positions = {name: np.stack([v, v + 2], axis=1) for name, v in results.inner.items()}
        return results._replace(scores=results.scores + ELSEWHERE, inner=positions)


class OddEngine(OtherEngine):
    """An engine that has no finite scores for a 7."""

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        results = super().run(images, inner)
        sevens = [int(np.asarray(image).flat[0]) == 7 for image in images]
        results.scores[sevens] = np.nan
        return results


class NeverFiniteEngine(FakeEngine):
    """An engine whose weights are broken."""

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        results = super().run(images, inner)
        return results._replace(scores=np.full_like(results.scores, np.nan))


class SleepingEngine(FakeEngine):
    """An engine that waits in each batch, as if other programs had the core."""

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        time.sleep(0.02)
        return super().run(images, inner)


class Unopened:
    """An engine that cannot be opened."""

    def __call__(self) -> FakeEngine:
        raise EngineError("no memory")


@pytest.fixture(scope="module")
def parent() -> Iterator[JobParent]:
    forked = JobParent.fork()
    assert forked is not None
    yield forked
    forked.close()


@pytest.fixture(autouse=True)
def _cores_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs change nothing in these tests."""
    monkeypatch.setattr(job_processes, "_CROWDED", 0.0)


@asynccontextmanager
async def engine_of(
    parent: JobParent, opened: Any = OtherEngine, most: int = 3
) -> AsyncIterator[tuple[SupervisedEngine, JobProcesses]]:
    """Return an engine whose batches of several images run in other processes."""
    engine = SupervisedEngine(
        FakeEngine(max_batch=64),
        (1, 1, 1),
        OutputKind.LOGITS,
        name="the engine",
        on_change=lambda _: None,
        bounds=Bounds(batch_s=10 * PATIENCE_S),
    )
    await engine.warm_up()
    jobs = JobProcesses(parent, (Unopened() if opened is Unopened else opened, File), most)
    engine.jobs = jobs
    try:
        yield engine, jobs
    finally:
        await asyncio.wait(engine.close())


def files(*digits: object) -> list[Item]:
    return [File(str(digit).encode()) for digit in digits]


def seen(rows: Sequence[ScoreRow]) -> list[tuple[int, bool] | Exception]:
    """Return for each image its error, or its digit and whether it ran in another process."""
    return [
        row.error or (int(row.scores.argmax()), bool(row.scores.min() >= ELSEWHERE)) for row in rows
    ]


async def started(engine: SupervisedEngine, jobs: JobProcesses, processes: int = 1) -> None:
    """Wait until this many processes wait for batches."""

    async def ready() -> bool:
        if sum(each.is_open and not each.has for each in jobs._all) >= processes:
            return True
        ran = [engine.run(files(1, 2)) for _ in range(processes)]
        await asyncio.gather(*ran)
        return False

    while not await ready():
        await asyncio.sleep(0.01)


async def test_a_batch_runs_elsewhere_and_an_image_that_is_alone_here(parent: JobParent) -> None:
    async with engine_of(parent) as (engine, jobs):
        assert seen(await engine.run(files(1, 2))) == [(1, False), (2, False)], "none has started"
        await started(engine, jobs)
        assert seen(await engine.run(files(1, 2))) == [(1, True), (2, True)]
        assert seen(await engine.run(files(3))) == [(3, False)]
        alone, beside = await asyncio.gather(engine.run(files(4)), engine.run(files(5)))
        assert (seen(alone), seen(beside)) == ([(4, False)], [(5, True)])


async def test_files_arrays_and_values_inside_come_as_they_are_asked(parent: JobParent) -> None:
    async with engine_of(parent) as (engine, jobs):
        await started(engine, jobs)
        pixels = np.full((1, 1, 1), 7, np.uint8)
        asked: list[Item] = [Probe(File(b"6"), ["features"]), pixels]
        asked.append(Probe(pixels, ["features"], averaged=True))
        first, second, third = await engine.run(asked)
        assert [value for value, _ in map(tuple, seen([first, second, third]))] == [6, 7, 7]  # type: ignore[arg-type]
        assert first.inner["features"].tolist() == [[6, 2], [8, 4]]
        assert second.inner == {}
        assert third.inner["features"].tolist() == [8, 3]


async def test_what_is_wrong_with_an_image_is_its_own_outcome(parent: JobParent) -> None:
    async with engine_of(parent) as (engine, jobs):
        await started(engine, jobs)
        broken, good, large, odd = seen(await engine.run(files("x", 1, "2 large", "3 odd")))
        assert isinstance(broken, ImageError)
        assert good == (1, True)
        assert isinstance(large, NotHereError)
        assert isinstance(odd, Exception)
        assert str(odd) == "OddError: odd 1 2"
        assert jobs.lost == 0


async def test_where_other_programs_crowd_the_cores_all_processes_share_the_batches(
    parent: JobParent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that sleeps in its batches gets as little of a core as one that has to wait."""
    async with engine_of(parent, SleepingEngine, most=2) as (engine, jobs):
        await engine.run(files(1, 2))
        (first,) = jobs._all
        assert first.core_share == 1.0, "it has run nothing"
        await started(engine, jobs)
        for _ in range(12):
            await engine.run(files(1, 2))
        assert first.core_share < 0.5
        monkeypatch.setattr(job_processes, "_CROWDED", 0.5)
        await asyncio.gather(*(engine.run(files(n, n)) for n in (1, 2)))
        await until(lambda: len(jobs._all) == 2 and jobs._all[1].is_open)
        _, last = jobs._all
        batches = [asyncio.ensure_future(engine.run(files(n, n))) for n in (1, 2)]
        await asyncio.sleep(0)
        assert (first.has, last.has) == (1, 1)
        await asyncio.gather(*batches)


async def test_processes_are_in_sessions_of_their_own(parent: JobParent) -> None:
    """Otherwise Linux would give them and the server one part of the cores together."""
    async with engine_of(parent, most=2) as (engine, jobs):
        await started(engine, jobs)
        sessions = {os.getsid(int(child)) for child in children_of(parent)}
        assert sessions == set(map(int, children_of(parent)))
        assert os.getsid(0) not in sessions


@pytest.mark.parametrize("how", ["crashes", "hangs"])
async def test_a_lost_decoder_is_named_and_the_others_are_decoded_elsewhere(
    how: str, parent: JobParent
) -> None:
    async with engine_of(parent) as (engine, jobs):
        await started(engine, jobs)
        pixels = np.full((1, 1, 1), 7, np.uint8)
        running = asyncio.ensure_future(engine.run([*files(1, f"2 {how}", 3), pixels]))
        if how == "hangs":
            await expire(jobs, decoding=1)
        rows = await running
        good, bad, other, array = seen(rows)
        assert isinstance(bad, DecoderLostError)
        assert "the image may be the cause" in str(bad)
        assert isinstance(good, NotHereError)
        assert isinstance(other, NotHereError)
        assert array == (7, False)
        assert jobs.lost == 1
        await started(engine, jobs)
        assert seen(await engine.run(files(4, 5))) == [(4, True), (5, True)]


async def expire(jobs: JobProcesses, decoding: int) -> None:
    """Pretend that the processes that decode image number `decoding` of their batch have used more
    time than they may."""

    stuck: list[_JobProcess] = []

    def found() -> bool:
        stuck[:] = [each for each in jobs._all if each._progress[0] == decoding]
        return bool(stuck)

    await until(found)
    for process in stuck:
        process._look(0)


async def test_a_process_that_is_lost_while_it_runs_costs_its_batch(parent: JobParent) -> None:
    async with engine_of(parent) as (engine, jobs):
        await started(engine, jobs, processes=2)
        lost, other = await asyncio.gather(
            engine.run(files(1, 9)), engine.run(files(2, 3)), return_exceptions=True
        )
        assert "ended" in str(lost)
        assert not isinstance(other, BaseException)
        assert seen(other) == [(2, True), (3, True)]
        assert jobs.lost == 1


async def test_a_process_has_its_next_batch_while_it_runs_one(parent: JobParent) -> None:
    async with engine_of(parent, most=1) as (engine, jobs):
        await started(engine, jobs)
        (process,) = jobs._all
        for _ in range(3):  # each half of its memory is first, or last
            batches = [asyncio.ensure_future(engine.run(files(n, n + 1))) for n in (1, 3, 5)]
            await asyncio.sleep(0)
            assert process.has == 2
            first, second, third = [seen(await batch) for batch in batches]
            assert first == [(1, True), (2, True)]
            assert second == [(3, True), (4, True)]
            assert third == [(5, False), (6, False)], "it takes no third one"
            await engine.run(files(1, 2))


async def test_the_last_process_starts_and_works_where_the_others_are_full(
    parent: JobParent,
) -> None:
    async with engine_of(parent, most=2) as (engine, jobs):
        await started(engine, jobs)
        await asyncio.gather(*(engine.run(files(n, n)) for n in (1, 2)))
        assert len(jobs._all) == 1
        await asyncio.gather(*(engine.run(files(n, n)) for n in (1, 2, 3)))
        first, last = jobs._all
        await until(lambda: last.is_open)
        batches = [asyncio.ensure_future(engine.run(files(n, n))) for n in range(1, 6)]
        has = []
        for _ in batches:
            await asyncio.sleep(0)
            has.append((first.has, last.has))
        assert max(has) == (2, 2)
        assert [seen(await batch)[0] for batch in batches] == [
            *((n, True) for n in range(1, 5)),
            (5, False),
        ]
        batches = [asyncio.ensure_future(engine.run(files(n, n))) for n in (1, 2)]
        await asyncio.sleep(0)
        assert (first.has, last.has) == (2, 0)
        await asyncio.gather(*batches)


@pytest.mark.parametrize("how", ["crashes", "hangs"])
async def test_the_next_batch_of_a_lost_process_is_run_by_the_server(
    how: str, parent: JobParent
) -> None:
    async with engine_of(parent, most=1) as (engine, jobs):
        await started(engine, jobs)
        lost = asyncio.ensure_future(engine.run(files(1, 2, f"3 {how}")))
        following = asyncio.ensure_future(engine.run(files(4, 5)))
        if how == "hangs":
            await expire(jobs, decoding=2)
        assert isinstance(seen(await lost)[2], DecoderLostError)
        assert seen(await following) == [(4, False), (5, False)]
        assert jobs.lost == 1


async def test_the_bound_of_a_batch_begins_after_the_one_before(parent: JobParent) -> None:
    async with engine_of(parent, most=1) as (engine, jobs):
        await started(engine, jobs)
        (process,) = jobs._all
        first = jobs.post(files(1, 2), bound_s=20 * PATIENCE_S)
        second = jobs.post(files(3, 4), bound_s=10 * PATIENCE_S)
        assert first is not None
        assert second is not None
        assert process._bound_s == 20 * PATIENCE_S
        read_all(process, answers=2, at_most=50, until=first)
        assert not second.done()
        assert process._bound_s == 10 * PATIENCE_S
        await second


@pytest.mark.parametrize("at_most", [3, 50, 2**18])
async def test_answers_arrive_together_or_in_pieces(parent: JobParent, at_most: int) -> None:
    async with engine_of(parent, most=1) as (engine, jobs):
        await started(engine, jobs)
        (process,) = jobs._all
        posted = [jobs.post(files(n, n + 1), bound_s=PATIENCE_S) for n in (1, 3)]
        first, second = (batch for batch in posted if batch is not None)
        read_all(process, answers=2, at_most=at_most, until=second)
        for batch, digits in ((first, [1, 2]), (second, [3, 4])):
            results = (await batch).results
            assert results is not None
            assert results.scores.argmax(axis=1).tolist() == digits


def read_all(
    process: _JobProcess, answers: int, at_most: int, until: "asyncio.Future[Any]"
) -> None:
    """Wait until `answers` answers of the same length have arrived. Then read `at_most` bytes at a
    time until `until` is done."""
    data = b""
    while len(data) < 8 or len(data) < answers * (8 + int.from_bytes(data[:8], sys.byteorder)):
        with suppress(BlockingIOError):
            data = process._connection.recv(2**20, socket.MSG_PEEK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.engine.job_processes._READ_BYTES", at_most)
        while not until.done():
            process._on_readable()


async def test_an_engine_that_keeps_failing_elsewhere_is_opened_anew(parent: JobParent) -> None:
    async with engine_of(parent, most=1) as (engine, jobs):
        await started(engine, jobs)
        (process,) = jobs._all
        for _ in range(5):
            with pytest.raises(EngineError, match="it takes no 8"):
                await engine.run(files(1, 8))
        assert process not in jobs._all
        await started(engine, jobs)
        assert seen(await engine.run(files(1, 2))) == [(1, True), (2, True)]


async def test_several_processes_that_are_replaced_together_count_as_one_failure(
    parent: JobParent,
) -> None:
    async with engine_of(parent, most=4) as (engine, jobs):
        await started(engine, jobs, processes=3)
        ended = set(jobs._all)
        jobs.renew()
        assert jobs.lost == len(ended) >= 3
        assert not jobs._all
        await engine.run(files(1, 2))
        assert len(jobs._all) == 1


async def test_a_process_whose_answer_cannot_be_read_is_ended(parent: JobParent) -> None:
    async with engine_of(parent, most=1) as (engine, jobs):
        await started(engine, jobs)
        with pytest.raises(Exception, match=r"sent an answer that cannot be read \(MemoryError\)"):
            await asyncio.wait_for(engine.run(files(1, "2 unreadable")), PATIENCE_S)
        assert jobs.lost == 1
        await started(engine, jobs)
        assert seen(await engine.run(files(1, 2))) == [(1, True), (2, True)]


async def test_images_that_no_network_can_take_end_no_process(
    parent: JobParent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised_engine, "_LOOK_S", 0.0)
    async with engine_of(parent, OddEngine, most=1) as (engine, jobs):
        await started(engine, jobs)
        for _ in range(12):
            await engine.run(files(7, 7))
            await until(lambda: engine._examining is None)
        assert seen(await engine.run(files(1, 2))) == [(1, True), (2, True)]
        assert jobs.lost == 0


async def test_processes_whose_scores_are_never_finite_are_ended(
    parent: JobParent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised_engine, "_LOOK_S", 0.0)
    async with engine_of(parent, NeverFiniteEngine, most=1) as (engine, jobs):
        while not any(process.is_open for process in jobs._all):
            await engine.run(files(1, 2))
            await asyncio.sleep(0.01)
        for _ in range(5):
            await engine.run(files(1, 2))
        await until(lambda: jobs.lost > 0)
        assert engine.state is State.READY


async def test_after_three_losses_the_server_does_the_work(parent: JobParent) -> None:
    async with engine_of(parent, most=1) as (engine, jobs):
        for _ in range(3):
            await started(engine, jobs)
            with pytest.raises(Exception, match="ended"):
                await engine.run(files(1, 9))
        for _ in range(3):
            assert seen(await engine.run(files(1, 2))) == [(1, False), (2, False)]
        assert not jobs._all


async def test_without_an_engine_elsewhere_the_server_does_the_work(parent: JobParent) -> None:
    async with engine_of(parent, Unopened, most=1) as (engine, jobs):
        assert seen(await engine.run(files(1, 2))) == [(1, False), (2, False)]
        await until(lambda: jobs.lost == 1)
        assert seen(await engine.run(files(1, 2))) == [(1, False), (2, False)]


async def test_without_another_process_the_server_does_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fork = os.fork
    forked: list[bool] = []

    def fork_once() -> int:
        if forked:
            raise BlockingIOError(errno.EAGAIN, "too many processes")
        forked.append(True)
        return fork()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", fork_once)
        parent = JobParent.fork()
    assert parent is not None
    async with engine_of(parent) as (engine, jobs):
        for lost in (1, 2):
            assert seen(await engine.run(files(1, 2))) == [(1, False), (2, False)]
            await until(lambda lost=lost: jobs.lost == lost)  # type: ignore[misc]
    parent.close()


async def test_a_process_that_cannot_begin_ends_alone(parent: JobParent) -> None:
    async with engine_of(parent) as (engine, jobs):
        await started(engine, jobs)
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:  # the file with the setup is missing
                socket.send_fds(parent._control, [bytes(3), b"\xff"], [theirs.fileno(), 0])
            ours.settimeout(PATIENCE_S)
            assert ours.recv(1) == b""
        assert seen(await engine.run(files(1, 2))) == [(1, True), (2, True)]
        assert jobs.lost == 0


def test_a_parent_that_does_not_read_blocks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        parent = JobParent(ours, process=0)
        while not caplog.messages:
            parent.end(1)
        with pytest.raises(BlockingIOError):
            parent.start(theirs, theirs.fileno(), theirs.fileno())
    (message,) = caplog.messages
    assert "the process that forks job processes does not listen" in message


def test_a_setup_that_cannot_be_shared_leaves_no_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> NoReturn:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "dup", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="too many open files"):
        job_processes._file_of((OtherEngine, File))
    assert os.listdir("/proc/self/fd") == before


async def test_a_batch_of_many_bytes_runs_here(parent: JobParent) -> None:
    async with engine_of(parent) as (engine, jobs):
        await started(engine, jobs)
        large = [File(b"1" + bytes(2**20)), File(b"2" + bytes(2**20))]
        assert seen(await engine.run(large)) == [(1, False), (2, False)]
        fitting = [File(b"1" + bytes(2**20 - 1)), File(b"2" + bytes(2**20 - 1))]
        assert seen(await engine.run(fitting)) == [(1, True), (2, True)]


async def test_a_batch_with_a_long_description_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = job_processes._packed(files(1, 2))
    assert packed is not None
    for most, fits in ((len(packed[0]), True), (len(packed[0]) - 1, False)):
        monkeypatch.setattr(job_processes, "_MOST_ASKED", most)
        assert (job_processes._packed(files(1, 2)) is not None) is fits


async def test_processes_end_with_their_model(parent: JobParent) -> None:
    async with engine_of(parent) as (engine, jobs):
        await started(engine, jobs, processes=2)
        assert await engine.run(files(1, 2))
        before = children_of(parent)
        assert len(before) >= 2
        hung = asyncio.ensure_future(engine.run(files(1, "2 hangs")))
        await asyncio.sleep(0)
    await asyncio.wait([hung])
    with pytest.raises(Exception, match="was ended"):
        raise hung.exception() or AssertionError(seen(hung.result()))
    await until(lambda: not children_of(parent))


def children_of(parent: JobParent) -> set[str]:
    """Return the processes that the parent has forked and that still run."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, ppid = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(ppid) == parent.process and state != "Z":
            found.add(stat.parent.name)
    return found
