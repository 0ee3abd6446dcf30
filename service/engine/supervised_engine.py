"""Supervises one engine: one thread calls the engine, and a watchdog limits the time of each call.

    WARMING ── READY ── RESTARTING ── READY, or FAILED

Only the thread calls the engine: to open it, warm it up, run batches and close it. The thread
decodes the files of a batch before it runs the batch (`service/engine/undecoded.py`). If a file
cannot be decoded, only this file fails. If a decoder hangs, the batch waits until its time limit.
Then another thread takes the engine, and the batch's other files go to the decode pool.

A model whose engine did not warm up is BROKEN if the server serves other models without it.

An engine that hangs is abandoned with its thread. An engine that keeps failing, or keeps returning
scores that are not finite, is closed. In both cases a new engine replaces it. FAILED is final.
After the device is lost, no new engine is opened, because only a new process can use the device.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import Enum, unique
from functools import partial
from math import inf
from operator import call
from threading import Lock
from time import monotonic, perf_counter
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from models import (
    DeviceLostError,
    Engine,
    EngineError,
    Image,
    OutputKind,
    Pixels,
    Results,
    as_vectors,
)
from service.batching.latency import Latency, measure
from service.engine.ranking import ScoreRow, rank, unscored
from service.engine.threads import ThreadPool, outcome_of
from service.engine.undecoded import NotHereError, Sample, Undecoded
from service.engine.watchdog import Bounds, Restarts
from service.errors import (
    DecoderLostError,
    EngineFailedError,
    ServiceError,
    ThreadLostError,
)

T = TypeVar("T")

# Batches that fail in a row before the engine is restarted.
_FAILURES = 5

# Seconds between two checks of scores. After `_FAILURES` batches in a row without a finite score,
# the engine scores random pixels, because clients may send numbers that no network can take. A
# blank image is no test: weights that overflow for bright pixels may give finite scores for black
# ones.
_LOOK_S = 0.05
_NOT_FINITE = "its scores for random pixels are not finite numbers"

# The number of tries to decode and to run a single image, to compare both times. Running is tried
# again if it takes longer than decoding, but less than `_CLOSE` times as long.
_TRIES = 3
_CLOSE = 3

# How often a long warm-up is logged.
_REMIND_S = 60.0

# After a batch shorter than _QUICK_S the event loop blocks on the next batch, for at most
# _PATIENCE_S, because a handover and a wake-up take longer.
_QUICK_S = 0.0001
_PATIENCE_S = 0.0005

_log = logging.getLogger("convoy")


class Probe(NamedTuple):
    """Holds an image, and the names of the tensors inside the network to return with its scores."""

    image: Image | Undecoded
    inner: Collection[str]
    averaged: bool = False  # over all positions: only vectors are wanted


Item = Image | Undecoded | Probe
"""One item of a batch."""


class JobResult(NamedTuple):
    """Holds the result or the error of each image of a batch."""

    results: Results | None  # of the images that were decoded; None if there are none
    failures: Mapping[int, Exception]  # of the other images, by their index in the batch
    decode_s: float
    # For each decoded image, the inner tensors that its request wants; empty if none is wanted.
    inner: Sequence[Mapping[str, NDArray[np.float32]]] = ()


class JobLostError(Exception):
    """Raised if a process crashed or exceeded its time limit before it had finished a batch."""

    def __init__(self, how: str, index: int | None, *, begun: bool = True) -> None:
        """`how` is a phrase such as "was stuck for 10.0 s". `index` is the image that the process
        was decoding, or None. `begun` says whether the process had begun the batch."""
        super().__init__(f"the process that ran this batch {how}")
        self.how, self.index, self.begun = how, index, begun


class Jobs(Protocol):
    """The interface of processes that run batches (`service/engine/job_processes.py`)."""

    lost: int
    """The number of processes that were lost so far."""

    @property
    def ready(self) -> int:
        """Return how many processes have an engine."""

    def post(self, items: Sequence[Item], bound_s: float) -> "asyncio.Future[JobResult] | None":
        """Run a batch in another process, and return a future of its result. Return None if no
        process can take it now. The future may raise JobLostError."""

    def renew(self) -> None:
        """Replace all processes by new ones, because their engines fail."""

    def close(self) -> None:
        """End all processes."""


@unique
class State(Enum):
    """Lists the states of a model or an engine. Requests are accepted only in the state READY.
    Error messages quote the values."""

    WARMING = "warming up"
    READY = "ready"
    RESTARTING = "restarting: its engine hung or failed"
    FAILED = "broken: its engine failed"
    BROKEN = "broken: its engine did not warm up"
    DRAINING = "shutting down"


class SupervisedEngine:
    """Runs batches on an engine, and replaces an engine that hangs or keeps failing. Not
    thread-safe: use it from one event loop."""

    def __init__(
        self,
        engine: Engine,
        image_shape: tuple[int, ...],
        output: OutputKind,
        *,
        name: str,
        on_change: Callable[["SupervisedEngine"], None],
        measure_s: float = 0.0,
        known: Latency | None = None,
        sample: Sample | None = None,
        bounds: Bounds | None = None,
        reopen: Callable[[], Engine] | None = None,
    ) -> None:
        """Supervise `engine`. Log lines call the engine `name`.

        Warming up measures L(n), the time of a batch of n images, for about `measure_s` seconds,
        unless `known` has these times. On a CPU, it also measures the decoding of `sample`, if
        there is one. `reopen` opens a new engine after the old one has exceeded the `bounds` or
        failed repeatedly. Without `reopen`, an engine that exceeds the bounds is FAILED, and an
        engine that fails repeatedly is kept. `on_change` is called when the state changes after the
        first warm-up.
        """
        self.engine = engine  # the engine that serves, or the last one that did
        self.state = State.WARMING
        self.restarts = 0  # tried so far
        self.failure: EngineError | None = None  # why it is FAILED
        self.warm_up_s = 0.0
        self.lost_to_decoders = 0  # threads so far
        self.jobs: Jobs | None = None  # set where other processes run its batches, too
        self._running = 0  # batches
        self.given_up = False  # if so, a failure is final
        self._probe = np.random.default_rng(0).integers(0, 256, image_shape, np.uint8)
        self._output = output
        self._name = name
        self._on_change = on_change
        self._measure_s, self._known, self._sample = measure_s, known, sample
        self._bounds = bounds or Bounds()
        self._reopen = reopen
        self._thread = _Thread(output)
        self._threads = [self._thread]  # those not yet closed, stuck ones included
        self._restarting: asyncio.Task[None] | None = None
        self._recent = Restarts()
        self._failures = 0  # in a row
        self._look = 0.0  # when to look at scores again
        self._odd = 0  # batches without a finite score, in a row
        self._examining: asyncio.Task[None] | None = None
        # From the last warm-up: L(n) for pixels, and the seconds to decode one image and to run it,
        # both 0 if they were not compared.
        self.measured = Latency.unknown(engine.max_batch)
        self.decode_s = self.run_s = 0.0
        self._expect(self.measured)

    async def warm_up(self) -> None:
        """Warm up the engine and measure it. Raises the engine's errors, and EngineError if the
        warm-up exceeds its time limit."""
        bound_s, started = self._bounds.warm_up_s or inf, monotonic()
        opened = self.engine
        try:
            await self._start(self._thread, lambda: opened, bound_s, self._known)
        except Exception as error:
            self.state = State.FAILED
            if isinstance(error, ThreadLostError):
                raise EngineError(f"{self._name} has not warmed up within {bound_s:g} s") from error
            raise
        self.warm_up_s = monotonic() - started
        self.state = State.READY

    async def run(self, images: Sequence[Item]) -> Sequence[ScoreRow]:
        """Return the scores of a batch, with the tensors inside the network that were requested for
        any of its images.

        If no other batch runs, the engine's thread runs a single image. Passing an image to the
        thread takes less time than passing it to a process.
        """
        if self.state in (State.RESTARTING, State.FAILED):
            raise EngineError(f"{self._name} is {self.state.value}")
        alone = len(images) == 1 and not self._running
        bound_s = self._batch_s[len(images) - 1]
        self._running += 1
        try:
            job = None if alone or self.jobs is None else self.jobs.post(images, bound_s)
            if job is None:
                rows = await self._run_here(images, bound_s)
            else:
                rows = await self._run_elsewhere(job, images, bound_s)
        finally:
            self._running -= 1
        self._failures = 0
        if (now := monotonic()) >= self._look:
            self._look = now + _LOOK_S
            self._odd = 0 if any(map(_may_be_right, rows)) else self._odd + 1
            if self._odd >= _FAILURES and self._examining is None:
                self._examining = asyncio.create_task(self._examine(self._thread))
        return rows

    async def _run_here(self, images: Sequence[Item], bound_s: float) -> Sequence[ScoreRow]:
        thread, size = self._thread, len(images)
        patience_s = _PATIENCE_S if thread.took_s < _QUICK_S else 0.0
        try:
            return await thread.pool.run(thread.run, images, bound_s, patience_s)
        except ThreadLostError:
            if thread is self._thread and (left := thread.leave_decoder()) is not None:
                engine, index = left
                self._leave(thread, engine)
                error = f"decoding took more than {bound_s:.1f} s; the image may be the cause"
                lost = ThreadLostError(f"the server gave up: {error}")
                return await self._without_one(images, index, lost, bound_s)
            self._replace(thread, f"it did not end a batch of size {size} within {bound_s:.1f} s")
            raise
        except DeviceLostError as error:
            self._replace(thread, str(error), lost=True)
            raise
        except Exception as error:
            self._failures += 1
            if self._failures == _FAILURES and self._reopen is not None:
                self._replace(thread, f"it failed on {_FAILURES} batches in a row: {error}")
            raise

    async def _run_elsewhere(
        self, job: "asyncio.Future[JobResult]", images: Sequence[Item], bound_s: float
    ) -> Sequence[ScoreRow]:
        try:
            return _rows(await job, self._output)
        except JobLostError as lost:
            if not lost.begun and not self._thread.closing:
                return await self._run_here(images, bound_s)
            if lost.index is None:
                raise EngineFailedError(f"{lost}; try again") from lost
            error = DecoderLostError(lost.how)
            return await self._without_one(images, lost.index, error, bound_s)
        except Exception as failure:
            _log.exception("a job process failed on a batch of size %d", len(images))
            self._failures += 1
            if self._failures == _FAILURES and self.jobs is not None:
                self._failures = 0
                _log.error("job processes failed on %d batches in a row: %s", _FAILURES, failure)
                self.jobs.renew()
            raise

    def _leave(self, stuck: "_Thread", engine: Engine) -> None:
        """Start a new thread with the same engine, because a decoder hung in the current thread."""
        self._thread = _Thread(self._output, engine)  # first: it raises if none can be started
        stuck.close()
        self._threads = [other for other in self._threads if other is not stuck] + [self._thread]
        self.lost_to_decoders += 1
        _log.error("%s continues in a new thread: a decoder hung in the old thread", self._name)

    async def _without_one(
        self, images: Sequence[Item], index: int, error: Exception, bound_s: float
    ) -> Sequence[ScoreRow]:
        """Return the rows of a batch after the decoder failed with `error` on the image `index`.
        Leave the other files to the decode pool, and run the images that are already decoded."""
        rows = [unscored(NotHereError()) for _ in images]
        rows[index] = unscored(error)
        others = [place for place, image in enumerate(images) if _undecoded(image) is None]
        if others:
            ran = await self._run_here([images[place] for place in others], bound_s)
            for place, row in zip(others, ran, strict=True):
                rows[place] = row
        return rows

    async def _examine(self, thread: "_Thread") -> None:
        """Run random pixels in the engine and in a job process, after several batches without a
        finite score. Replace the engine if it fails, and replace all job processes if one fails."""
        bound_s = self._batch_s[0]
        failure = await _failure(thread.pool.run(thread.run, [self._probe], bound_s))
        if self.jobs is not None:
            job = self.jobs.post([self._probe], bound_s)
            if job is not None and await _failure(self._run_elsewhere(job, [self._probe], bound_s)):
                self.jobs.renew()
        self._odd, self._examining = 0, None
        if failure and thread is self._thread and self.state is State.READY:
            self._replace(thread, failure)

    def close(self) -> "list[asyncio.Future[None]]":
        """Close the engine. Abandoned engines are closed when their calls return."""
        if self.jobs is not None:
            self.jobs.close()
        for task in (self._restarting, self._examining):
            if task is not None:
                task.cancel()
        return [thread.close() for thread in self._threads]

    def forget(self) -> None:
        """Drop references after closing. Otherwise the engine's memory and the thread's file
        descriptor would be freed only by the garbage collector."""
        self._on_change, self._reopen = _ignore, None

    async def _start(
        self,
        thread: "_Thread",
        opened: Callable[[], Engine],
        bound_s: float,
        known: Latency | None = None,
    ) -> None:
        """Let a thread open an engine and warm it up. Measure L(n), the time of a batch of n
        images, unless it is known. Raises the errors of these steps."""
        start = partial(thread.start, self._probe, self._measure_s, known, self._sample)
        starting = thread.pool.run(start, opened, bound_s)
        started = monotonic()
        while not (await asyncio.wait([starting], timeout=_REMIND_S))[0]:
            _log.warning("%s has been warming up for %d s", self._name, monotonic() - started)
        self.engine, self.measured, self.decode_s, self.run_s = starting.result()
        self._expect(self.measured.after(self.decode_s))

    def _expect(self, latency: Latency) -> None:
        """Set the time limit of each batch size from the expected time, `latency`."""
        sizes = range(1, self.engine.max_batch + 1)
        self._batch_s = [self._bounds.batch(latency, size) for size in sizes]

    def _replace(self, thread: "_Thread", why: str, *, lost: bool = False) -> None:
        """Abandon a thread, which closes its engine once its call returns. Start another thread
        with a new engine, unless the device is `lost`."""
        thread.close()
        if self.given_up:
            self._fail(EngineError(f"{self._name} is given up: {why}"))
        elif lost:
            self._fail(DeviceLostError(f"the device is lost: {why}"))
        elif self._reopen is None or not self._recent.another(monotonic()):
            self._fail(EngineError(f"{self._name} is given up for good: {why}"))
        else:
            _log.error("%s is restarted: %s", self._name, why)
            self.restarts += 1
            self._restarting = asyncio.create_task(self._restart(self._reopen))
            self._become(State.RESTARTING)

    async def _restart(self, reopen: Callable[[], Engine]) -> None:
        bound_s, started = self._bounds.restart(self.warm_up_s), monotonic()
        try:
            thread = _Thread(self._output)
            self._threads = [other for other in self._threads if not other.closed] + [thread]
            await self._start(thread, reopen, bound_s)
        except Exception as error:  # noqa: BLE001  the cause of `failure`
            self._fail(EngineError(f"{self._name} cannot be restarted: {error}"), error)
            return
        _log.warning("%s is ready again after %.1f s", self._name, monotonic() - started)
        self._thread, self._failures = thread, 0
        self._become(State.READY)

    def _fail(self, failure: EngineError, cause: Exception | None = None) -> None:
        failure.__cause__ = cause
        self.failure = failure
        self._become(State.FAILED)

    def _become(self, state: State) -> None:
        self.state = state
        self._on_change(self)


async def _failure(rows: Awaitable[Sequence[ScoreRow]]) -> str:
    """Return why a run of random pixels failed, or an empty string if it returned finite scores."""
    try:
        (row,) = await rows
    except EngineFailedError:
        return ""  # the process is lost, and another process replaces it
    except Exception as error:  # noqa: BLE001  libraries raise any kind
        return str(error) or type(error).__name__
    return "" if _is_finite(row) else _NOT_FINITE


def _rows(done: JobResult, output: OutputKind) -> Sequence[ScoreRow]:
    """Return one row of scores per image of a batch."""
    rows = [] if done.results is None else rank(done.results, output, done.decode_s)
    for row, inner in zip(rows, done.inner, strict=False):  # there may be none
        row.inner = inner
    for index, failure in sorted(done.failures.items()):
        rows.insert(index, unscored(failure))
    return rows


def _is_finite(row: ScoreRow) -> bool:
    return bool(np.isfinite(row.scores).all())


def _may_be_right(row: ScoreRow) -> bool:
    return row.error is not None or _is_finite(row)


def _ignore(_: SupervisedEngine) -> None:
    pass


class _Thread:
    """Owns an engine and the only thread that calls it. The thread runs `start`, `run` and
    `_close`.

    A call raises ThreadLostError if it exceeds its time limit, or if the thread dies. Later calls
    wait until the thread is free, which may never happen.
    """

    def __init__(self, output: OutputKind, engine: Engine | None = None) -> None:
        """Start the thread. If `engine` is given, it is already warm."""
        self.pool = ThreadPool("engine", 1, replaced=False)
        self.took_s = inf  # the last batch
        self._output = output
        self._engine = engine
        self._closing: asyncio.Future[None] | None = None
        self._decoding: int | None = None  # the place in its batch of the image that it decodes
        self._handover = Lock()  # of the engine, while a decoder may be stuck

    def start(
        self,
        probe: Pixels,
        measure_s: float,
        known: Latency | None,
        sample: Sample | None,
        opened: Callable[[], Engine],
    ) -> tuple[Engine, Latency, float, float]:
        """Open and warm up an engine. Return the engine to serve with, its L(n) measured on
        `probe`, the seconds to decode a `sample`, and the seconds to run one image. The last two
        are 0 if they were not measured.

        If L(n) is `known`, run only one image, because the device still serves the model's old
        version. Raises the engine's errors, and EngineError if the scores are not finite.
        """
        self._engine = opened()
        self._engine = engine = self._engine.warm_up()

        def seconds(n: int) -> float:
            started = perf_counter()
            rows = self.run([probe] * n)
            took_s = perf_counter() - started
            if not _is_finite(rows[0]):
                raise EngineError(f"{_NOT_FINITE}; check that the model's weights are finite")
            return took_s

        latency = known
        if latency is not None:
            seconds(1)
        else:  # without the event loop's own time, which is learnt while serving
            latency = measure(seconds, engine.max_batch, budget_s=measure_s)
        if sample is None or not engine.on_cpu:
            return engine, latency, 0.0, 0.0
        try:
            decode_s = min(_seconds(sample) for _ in range(3 * _TRIES))  # short ones
        except ServiceError:  # the limits allow no such image
            return engine, latency, 0.0, 0.0
        run_s = min(seconds(1) for _ in range(_TRIES))
        if decode_s < run_s < _CLOSE * decode_s:  # other programs may have had the core
            run_s = min(run_s, *(seconds(1) for _ in range(2 * _TRIES)))
        return engine, latency, decode_s, run_s

    def run(self, items: Sequence[Item]) -> Sequence[ScoreRow]:
        """Return one row of scores per image of a batch. The row of an image that could not be
        decoded has an error instead. Raises the engine's errors."""
        started = perf_counter()
        try:
            done = do_job(items, self._begin, self._begin_running)
            rows = _rows(done, self._output)
        except Exception:
            self.took_s = inf
            if self._engine is not None:  # it was not taken away
                _log.exception("the engine failed on a batch of size %d", len(items))
            raise
        self.took_s = perf_counter() - started
        return rows

    def _begin(self, index: int) -> bool:
        """Store the index of the image that is decoded next. Return False if another thread has
        taken the engine."""
        self._decoding = index
        return self._engine is not None

    def _begin_running(self) -> Engine:
        with self._handover:
            self._decoding = None
            engine = self._engine
        if engine is None:
            raise EngineError("the engine is not open")
        return engine

    def leave_decoder(self) -> tuple[Engine, int] | None:
        """Take the engine from the thread if the thread is decoding an image. Return the engine and
        the image's index in the batch. Otherwise, return None."""
        with self._handover:
            engine, index = self._engine, self._decoding
            if engine is None or index is None:
                return None
            self._engine = None
        return engine, index

    def close(self) -> "asyncio.Future[None]":
        """Close the engine and end the thread, as soon as the thread is free."""
        if self._closing is None:
            self._closing = self.pool.run(self._close, None)
            self.pool.close()
        return self._closing

    @property
    def closing(self) -> bool:
        """Return whether `close` was called."""
        return self._closing is not None

    @property
    def closed(self) -> bool:
        """Return whether the engine is closed."""
        return self._closing is not None and self._closing.done()

    def _close(self, _: None) -> None:
        try:
            if self._engine is not None:
                self._engine.close()
        except Exception:  # noqa: BLE001  an engine that failed may fail to close, too
            _log.exception("the engine could not be closed")


def do_job(
    items: Sequence[Item], begin: Callable[[int], bool], begin_running: Callable[[], Engine]
) -> JobResult:
    """Decode the files of a batch, and run the batch.

    `begin` is called with the index of each image before it is decoded, and returns whether to
    continue. `begin_running` returns the engine. Raises the errors of both functions and of the
    engine.

    All headers are read before any image is decoded. Each header after the first then takes a
    quarter of the time, because the code is in the processor's cache.
    """
    started = perf_counter()
    failures: dict[int, Exception] = {}
    decode_s = 0.0
    files = {index: file for index, item in enumerate(items) if (file := _undecoded(item))}
    if files:
        decoders = _each({index: file.read for index, file in files.items()}, failures, begin)
        pixels = _each(decoders, failures, begin)
        items = [
            _with(item, pixels[index]) if index in pixels else item
            for index, item in enumerate(items)
            if index in pixels or index not in files
        ]
        decode_s = perf_counter() - started
    engine = begin_running()
    if not items:
        return JobResult(None, failures, decode_s)
    results, n = _run(engine, items), len(items)
    if results.scores.shape != (n, engine.classes):
        raise EngineError(
            f"the engine returned scores of shape {results.scores.shape}, but {n} images and"
            f" {engine.classes} classes need ({n}, {engine.classes})"
        )
    wanted = _wanted(results, items) if results.inner else ()
    return JobResult(results._replace(inner={}), failures, decode_s, wanted)


def _each(
    calls: Mapping[int, Callable[[], T]],
    failures: dict[int, Exception],
    begin: Callable[[int], bool],
) -> dict[int, T]:
    """Call each function in `calls`, whose keys are the images' indices. Return the results by
    index, and add the errors to `failures`. Stop when `begin` returns False, which means that a
    call took too long."""
    results = {}
    for index, function in calls.items():
        if not begin(index):
            break
        result, error = outcome_of(call, function)
        if error is None:
            results[index] = result
        else:
            failures[index] = error
    return results


def _undecoded(item: Item) -> Undecoded | None:
    image = item.image if isinstance(item, Probe) else item
    return image if isinstance(image, Undecoded) else None


def _with(item: Item, image: Pixels) -> Item:
    return item._replace(image=image) if isinstance(item, Probe) else image


def _seconds(function: Callable[[], object]) -> float:
    started = perf_counter()
    function()
    return perf_counter() - started


def _run(engine: Engine, items: Sequence[Item]) -> Results:
    probes = [item for item in items if isinstance(item, Probe)]
    if not probes:
        return engine.run(items)  # type: ignore[arg-type]  # there are images alone
    images: Any = [item.image if isinstance(item, Probe) else item for item in items]
    return engine.run(images, sorted({name for probe in probes for name in probe.inner}))


def _wanted(results: Results, items: Sequence[Item]) -> Sequence[Mapping[str, NDArray[np.float32]]]:
    """Return copies of the tensors inside the network that each image's request wants. The tensors
    of the whole batch, which may have more than 100 MB, are then freed."""
    wanted: list[Mapping[str, NDArray[np.float32]]] = []
    for index, item in enumerate(items):
        names, averaged = (item.inner, item.averaged) if isinstance(item, Probe) else ((), False)
        own = {name: results.inner[name][index : index + 1] for name in names}
        wanted.append(
            {
                name: np.array((as_vectors(value) if averaged else value)[0])
                for name, value in own.items()
            }
        )
    return wanted
