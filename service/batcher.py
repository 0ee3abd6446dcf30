"""Dynamic batching: items that arrive apart travel together. No HTTP, no device, no timer.

    submit ── admit all or none ── waiting (bounded, FIFO) ── take up to max_batch ── run ── answers

One worker task runs one batch at a time. Idle, it dispatches what is there at once; while a batch
runs, arrivals collect, and the next batch is the largest available when it ends, oldest first. So
nobody ever waits for company, and batches grow by themselves as the load does.

A submit is resolved exactly once: by its answers, by EngineFailedError when a batch that carried
one of its items failed, or by ShuttingDownError when `close` ran out of time. A submit whose task
is cancelled leaves the queue at once; where its items are running already, their results are
thrown away and nobody else notices.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from service.errors import (
    EngineFailedError,
    QueueFullError,
    ServiceError,
    ShuttingDownError,
    TooManyImagesError,
)

T = TypeVar("T")
R = TypeVar("R")

# Weight of the newest batch in the moving average that Retry-After is estimated from.
_NEWEST = 0.25


@dataclass(frozen=True, slots=True)
class Answer(Generic[R]):
    """One item's result, and how it travelled."""

    result: R
    batch_size: int  # items in its batch
    queue_ms: float  # submit to dispatch
    compute_ms: float  # dispatch to result


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch that ended, for metrics."""

    size: int
    compute_ms: float
    queue_ms: tuple[float, ...]  # one an item
    failed: bool


@dataclass(eq=False, slots=True)
class _Request(Generic[T, R]):
    """One submit. Batches end in order, so `answers` are those of the first items."""

    items: tuple[T, ...]
    submitted: float  # clock seconds
    outcome: asyncio.Future[list[Answer[R]]]
    dispatched: int = 0  # how many of the items, from the front
    answers: list[Answer[R]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Batch(Generic[T, R]):
    """Items on their way: from each request in `parts` so many, in order."""

    dispatched: float  # clock seconds
    items: list[T] = field(default_factory=list)
    parts: list[tuple[_Request[T, R], int]] = field(default_factory=list)


def _ignore(_: BatchRecord) -> None:
    """The `on_batch` of those who do not want to know."""


class Batcher(Generic[T, R]):
    """Collects items into batches of at most `max_batch` for `run`, which is called one at a time.

    `run` gets the items oldest first and returns one result an item, in the same order. At most
    `max_queue` items wait. `on_batch` hears of every batch that ended. `clock` counts seconds.
    Used from one event loop, from the first `submit` on.
    """

    def __init__(
        self,
        run: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        max_batch: int,
        max_queue: int,
        on_batch: Callable[[BatchRecord], None] = _ignore,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if max_batch < 1 or max_queue < 1:
            raise ValueError(f"max_batch {max_batch} and max_queue {max_queue} must be at least 1")
        self._run = run
        self._max_batch = max_batch
        self._max_queue = max_queue
        self._on_batch = on_batch
        self._clock = clock
        # Requests with items not dispatched yet; ordered like a queue, and left from anywhere.
        self._waiting: OrderedDict[_Request[T, R], None] = OrderedDict()
        self._depth = 0
        self._running: _Batch[T, R] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()  # wakes the idle worker: an arrival, or `close`
        self._closing = False
        self._stopped = asyncio.Event()
        self._batch_s = 0.0  # moving average over the batches that succeeded

    @property
    def depth(self) -> int:
        """How many items wait."""
        return self._depth

    @property
    def in_flight(self) -> int:
        """How many items are in the running batch."""
        return len(self._running.items) if self._running else 0

    async def submit(self, items: Sequence[T]) -> list[Answer[R]]:
        """The answers of `items`, in order; they are admitted all or none.

        Raises TooManyImagesError for more than could ever wait, QueueFullError for more than there
        is room for now, ShuttingDownError once `close` was called or ran out of time, and
        EngineFailedError when a batch with one of them failed (the rest is then not run).
        """
        count = len(items)
        self._admit(count)
        if not count:
            return []
        loop = asyncio.get_running_loop()
        request: _Request[T, R] = _Request(tuple(items), self._clock(), loop.create_future())
        self._waiting[request] = None
        self._depth += count
        if self._worker is None:
            # An empty context: it serves everybody, so it takes on nothing of this first caller.
            self._worker = loop.create_task(self._work(), name="batcher", context=Context())
            # However it ends, even cancelled before its first step, nobody is left waiting.
            self._worker.add_done_callback(lambda _: self._stop())
        self._changed.set()
        try:
            return await request.outcome
        finally:
            self._leave(request)  # only a cancelled submit is still there

    async def close(self, timeout_s: float | None = None) -> None:
        """Refuse new work, finish what was accepted, then stop.

        What has not finished after `timeout_s` seconds (None: however long it takes) is failed
        with ShuttingDownError, and `run` is cancelled. Calling it again is harmless, and may
        shorten the wait of the first.
        """
        self._closing = True
        if self._worker is None:
            return
        self._changed.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._stopped.wait()
        except TimeoutError:
            # Not waited for: a `run` that resists being cancelled must not hold up the caller.
            self._worker.cancel()
            self._stop()

    def _admit(self, count: int) -> None:
        """Raise unless `count` more items may wait."""
        if self._closing:
            raise ShuttingDownError("the server is shutting down; send the request again")
        if count > self._max_queue:
            raise TooManyImagesError(
                f"{count} images in one request; at most {self._max_queue} can wait at once, "
                "so send them in several requests"
            )
        if self._depth + count > self._max_queue:
            retry_after_s = self.expected_wait_s()
            raise QueueFullError(
                f"{self._depth} of at most {self._max_queue} images are waiting and {count} more "
                f"came; try again in {retry_after_s:.1f} s",
                retry_after_s,
            )

    def expected_wait_s(self) -> float:
        """Seconds until all that is waiting or running now will have been run."""
        batch_s = self._batch_s
        batches = -(-self._depth // self._max_batch)
        if self._running:
            batches += 1
            # A batch that takes longer than those before it says more than they do.
            batch_s = max(batch_s, self._clock() - self._running.dispatched)
        return batches * batch_s

    async def _work(self) -> None:
        """Run batches until closed and drained; the only task of a batcher."""
        # Cancellation is asked about too, lest a `run` that swallowed it keeps this going.
        while not self._cancelled():
            batch = self._take()
            if batch.items:
                await self._carry(batch)
            elif self._closing:
                return
            else:
                # No await since looking, so nothing that changed is missed.
                self._changed.clear()
                await self._changed.wait()

    def _cancelled(self) -> bool:
        """Whether somebody wants the worker to end: `close` out of time, or the event loop."""
        return self._worker is not None and self._worker.cancelling() > 0

    def _take(self) -> _Batch[T, R]:
        """The next batch, taken off the queue: up to `max_batch` items, oldest first."""
        batch: _Batch[T, R] = _Batch(self._clock())
        while self._waiting and len(batch.items) < self._max_batch:
            request = next(iter(self._waiting))
            if request.outcome.done():
                # Cancelled in this very turn of the loop, so `submit` has not yet run on.
                self._leave(request)
                continue
            first = request.dispatched
            items = request.items[first : first + self._max_batch - len(batch.items)]
            batch.items += items
            batch.parts.append((request, len(items)))
            request.dispatched += len(items)
            self._depth -= len(items)
            if request.dispatched == len(request.items):
                del self._waiting[request]
        return batch

    async def _carry(self, batch: _Batch[T, R]) -> None:
        """Run one batch and resolve the requests that it completes or fails."""
        self._running = batch
        results: list[R] = []
        error: BaseException | None = None
        try:
            results = list(await self._run(batch.items))
            if len(results) != len(batch.items):
                raise ValueError(f"{len(results)} results for a batch of {len(batch.items)}")
        # BaseException: neither a stray CancelledError nor a panic in a native library may stop
        # the worker. What is meant for the worker or the process goes on upwards.
        except BaseException as raised:
            if self._ends_work(raised):
                raise
            error = raised
        self._running = None
        compute_s = self._clock() - batch.dispatched
        if error is None:
            self._batch_s += (compute_s - self._batch_s) * (_NEWEST if self._batch_s else 1.0)
            self._deliver(batch, results, compute_s * 1e3)
        else:
            for request, _ in batch.parts:
                failure = EngineFailedError("the engine failed on this batch; try again")
                failure.__cause__ = error
                self._fail(request, failure)
        self._report(batch, compute_s * 1e3, failed=error is not None)

    def _ends_work(self, error: BaseException) -> bool:
        """Whether what `run` raised is not about the batch but about this task or the process."""
        if isinstance(error, asyncio.CancelledError):
            return self._cancelled()
        return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)

    def _deliver(self, batch: _Batch[T, R], results: list[R], compute_ms: float) -> None:
        """Hand every result to the request that its item came from."""
        size = len(batch.items)
        remaining = iter(results)
        for request, count in batch.parts:
            queue_ms = (batch.dispatched - request.submitted) * 1e3
            for _ in range(count):
                request.answers.append(Answer(next(remaining), size, queue_ms, compute_ms))
            if len(request.answers) == len(request.items) and not request.outcome.done():
                request.outcome.set_result(request.answers)

    def _report(self, batch: _Batch[T, R], compute_ms: float, *, failed: bool) -> None:
        queue_ms = tuple(
            (batch.dispatched - request.submitted) * 1e3
            for request, count in batch.parts
            for _ in range(count)
        )
        try:
            self._on_batch(BatchRecord(len(batch.items), compute_ms, queue_ms, failed))
        except Exception as error:  # noqa: BLE001  an observer's fault must not stop the worker
            asyncio.get_running_loop().call_exception_handler(
                {"message": "on_batch raised", "exception": error}
            )

    def _leave(self, request: _Request[T, R]) -> None:
        """Take what is left of a request off the queue, if anything is."""
        if request in self._waiting:
            del self._waiting[request]
            self._depth -= len(request.items) - request.dispatched

    def _fail(self, request: _Request[T, R], failure: ServiceError) -> None:
        """Resolve a request with `failure`, unless it is resolved already."""
        self._leave(request)
        if not request.outcome.done():
            request.outcome.set_exception(failure)

    def _stop(self) -> None:
        """Take no more, and fail what still waits or runs, each with an exception of its own."""
        self._closing = True
        requests = list(self._waiting)
        if self._running:
            requests += [request for request, _ in self._running.parts]
            self._running = None
        for request in requests:
            self._fail(request, ShuttingDownError("the server shut down before this was done"))
        self._stopped.set()
