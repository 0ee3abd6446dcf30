"""Dynamic batching: combines items of separate requests into batches. No HTTP, no device.

    post ── waiting (by due time) ── policy ── run ── outcomes
                             refuse ┘  └ look again at a time

One worker task runs one batch at a time. The policy (`service/batching/policy.py`) decides what to
dispatch when and which requests cannot meet their deadlines; the batcher carries that out.

Each posted request gets exactly one outcome: its results; EngineFailedError if a batch with one of
its items failed; DeadlineError once it cannot be in time; or ShuttingDownError if `close` ran out
of time. Outcomes are callbacks, not futures: waking a task costs more than everything else here. A
withdrawn request leaves the queue at once; results of its running items are discarded.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from math import inf
from typing import Generic, NamedTuple, TypeVar

from service.batching.alarm import Alarm
from service.batching.device_turns import Turn, Turns
from service.batching.dispatcher import Dispatcher
from service.batching.latency import Latency
from service.batching.policy import NO_HURRY, Urgency, due
from service.batching.queue import Answered, OnOutcome, Request, Waiting
from service.callbacks import call_safely
from service.errors import (
    DeadlineError,
    EngineFailedError,
    ServiceError,
    ShuttingDownError,
)

T = TypeVar("T")
R = TypeVar("R")

# Timers of asyncio and uvloop count whole milliseconds.
_TIMER_ERROR_S = 0.001


class BatchRecord(NamedTuple):
    """One batch that ended, for metrics."""

    size: int
    compute_s: float
    failed: bool


@dataclass(eq=False, slots=True)
class _Batch(Generic[T, R]):
    """A running batch; `parts` says how many of its items are from which request, in order."""

    dispatched: float  # clock seconds
    items: list[T]
    parts: list[tuple[Request[T, R], int]]


class Batcher(Generic[T, R]):
    """Collects items into batches of at most `max_batch` for `run`, which runs one at a time.

    `run` takes items in the order in which they are due and returns one result for each, in the
    same order. The caller bounds how many items wait. `latency` is what is known of L(n); it
    learns. Batchers with the same `turns` share one device, in proportion to `weight`. `on_batch`
    is called with every ended batch. `clock` returns seconds. Used from one event loop.
    """

    def __init__(
        self,
        run: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        max_batch: int,
        latency: Latency | None = None,
        turns: Turns | None = None,
        weight: float = 1.0,
        on_batch: Callable[[BatchRecord], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
        timer_error_s: float = _TIMER_ERROR_S,
    ) -> None:
        if max_batch < 1:
            raise ValueError(f"max_batch {max_batch} must be at least 1")
        self._run = run
        self._max_batch = max_batch
        self._dispatcher = Dispatcher(latency or Latency.unknown(max_batch))
        self._changed = asyncio.Event()  # wakes the idle worker
        self._turn: Turn | None = turns.join(self._changed.set, weight) if turns else None
        self._on_batch = on_batch
        self._clock = clock
        self._alarm = Alarm(self._on_alarm, clock, timer_error_s)
        self._waiting: Waiting[T, R] = Waiting()
        self._running: _Batch[T, R] | None = None
        self._undelivered: list[tuple[_Batch[T, R], list[R], float]] = []
        self._worker: asyncio.Task[None] | None = None
        self._closing = False
        self._stopped = asyncio.Event()

    @property
    def depth(self) -> int:
        """Number of waiting items."""
        return self._waiting.depth

    @property
    def in_flight(self) -> int:
        """Number of items in the running batch."""
        return len(self._running.items) if self._running else 0

    @property
    def busy_until(self) -> float:
        """When the running batch should be done, in clock seconds; 0 where none runs."""
        return self._dispatcher.batch_ends if self._running else 0.0

    @property
    def latency(self) -> Latency:
        """Measured latency by batch size; may be set."""
        return self._dispatcher.latency

    @latency.setter
    def latency(self, latency: Latency) -> None:
        self._dispatcher.latency = latency

    def post(
        self, items: Sequence[T], then: OnOutcome[R], urgency: Urgency = NO_HURRY
    ) -> Request[T, R]:
        """Queue `items`, all or none; `then` is called once with the outcome, after this returns.

        Raises DeadlineError if they cannot be expected to meet their deadline, and
        ShuttingDownError after `close`. If a batch with some of the items fails, the rest is not
        run.
        """
        count = len(items)
        if self._closing:
            raise ShuttingDownError("the server is shutting down; send the request again")
        now = self._clock()
        if urgency.deadline < inf:
            self.check_deadline(count, urgency)
        request = Request(
            self._waiting, tuple(items), now, then, due(now, urgency), urgency.deadline, count
        )
        loop = asyncio.get_running_loop()
        if not count:
            loop.call_soon(self._tell, request, Answered([], 0, 0.0, 0.0))
            return request
        self._waiting.enter(request)
        if not self._dispatcher.short:
            self._dispatcher.arrived(now, count)
        if self._worker is None:
            # An empty context: the task must not inherit context variables of its first request.
            self._worker = loop.create_task(self._work(), name="batcher", context=Context())
            # Runs even if the task is cancelled before its first step.
            self._worker.add_done_callback(lambda _: self._end())
        self._changed.set()
        if urgency.deadline < inf and self._running:
            loop.call_soon(self._on_alarm, now)
        return request

    def fail_waiting(self, failure: Callable[[], ServiceError]) -> None:
        """Fail the waiting requests, except those with items in the running batch."""
        running = [request for request, _ in self._running.parts] if self._running else []
        for request in self._waiting.all():
            if request not in running:
                self._fail(request, failure())

    async def close(self, timeout_s: float | None = None) -> None:
        """Refuse new requests, finish accepted ones, then stop.

        After `timeout_s` seconds (None: no limit) the rest fails with ShuttingDownError, and `run`
        is cancelled. A second call may shorten the wait of the first.
        """
        self._closing = True
        if self._worker is None:
            return
        self._changed.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._stopped.wait()
        except TimeoutError:
            # Not awaited: `run` may ignore its cancellation.
            self._worker.cancel()
            self._stop()

    def check_deadline(self, count: int, urgency: Urgency) -> None:
        """Raise DeadlineError if `count` items that arrive now could not meet their deadline."""
        if urgency.deadline == inf:
            return
        now = self._clock()
        ahead = self._waiting.ahead_of(due(now, urgency))
        others_until = self._turn.busy_until if self._turn else None
        done = self._dispatcher.completion(now, ahead, count, others_until)
        if done > urgency.deadline:
            raise DeadlineError(done - now, urgency.deadline - now)

    def expected_wait_s(self) -> float:
        """Seconds until all items that wait or run now will be done."""
        wait_s = self._dispatcher.wait_s(self._clock(), self.depth)
        return wait_s / self._turn.share if self._turn else wait_s

    async def _work(self) -> None:
        """Run batches until closed and drained."""
        # `run` may have swallowed a cancellation, so check for one.
        while not self._cancelled():
            if self._dispatcher.short:
                await self._gather()
            # No await between here and the wait, so no change is missed.
            self._changed.clear()
            now = self._clock()
            size = self._look(now) if self._waiting or not self._alone() else 0
            if size:
                items, parts = self._waiting.take(size)
                if items:
                    await self._carry(_Batch(now, items, parts))
            elif self._closing and not self._waiting:
                return
            else:
                await self._changed.wait()

    async def _gather(self) -> None:
        """Let the event loop read what has arrived before a short batch begins.

        During the batch it would compete with the engine's thread for the GIL, at a multiple of the
        cost. At least once: short batches may otherwise leave the event loop no turn.
        """
        depth = 0
        while depth < min(self.depth, self._max_batch):
            depth = self.depth
            await asyncio.sleep(0)

    def _alone(self) -> bool:
        """Whether no other model uses the device."""
        return self._turn is None or self._turn.alone

    def _look(self, now: float) -> int:
        """Carry out the policy's refusals and timer; returns how many items to dispatch."""
        requests, claims = self._waiting.claims()
        decision = self._dispatcher.decide(now, self.depth, claims)
        size = decision.dispatch
        if self._closing and not self._running and not size:
            size = min(self.depth, self._max_batch)  # nothing more can arrive
        others_until = None
        if self._turn and not self._turn.alone and not self._running:
            if not size:
                self._turn.let_go()
            elif not self._turn.take():
                others_until, size = self._turn.busy_until, 0
                decision = self._dispatcher.decide(now, self.depth, claims, others_until)
        for place in decision.refused:
            request = requests[place]
            done = self._dispatcher.completion(now, 0, request.left, others_until)
            self._fail(request, DeadlineError(done - now, request.deadline - now))
        self._alarm.cancel()
        if not size and decision.look_again < inf:
            exact = not self._running and others_until is None
            self._alarm.set(decision.look_again, exact=exact)
        return size

    def _on_alarm(self, now: float) -> None:
        if self._running:
            self._look(now)
        else:
            self._changed.set()

    def _cancelled(self) -> bool:
        """Whether `close` or the event loop has cancelled the worker."""
        return self._worker is not None and self._worker.cancelling() > 0

    async def _carry(self, batch: _Batch[T, R]) -> None:
        """Run one batch and deliver its outcome."""
        self._running = batch
        self._dispatcher.dispatched(batch.dispatched, len(batch.items))
        if self._turn:
            self._turn.until = self._dispatcher.batch_ends
        if self._waiting.deadlines:
            self._look(batch.dispatched)  # some may now be too late
        results: list[R] = []
        error: BaseException | None = None
        try:
            results = list(await self._run(batch.items))
            if len(results) != len(batch.items):
                raise ValueError(f"{len(results)} results for a batch of {len(batch.items)}")
        # BaseException: a stray CancelledError or a native library's panic must not stop the
        # worker. Errors meant for the worker or the process propagate.
        except BaseException as raised:
            if self._ends_work(raised):
                raise
            error = raised
        self._running = None
        now = self._clock()
        compute_s = now - batch.dispatched
        self._dispatcher.answered(now, self.depth, failed=error is not None)
        if self._turn:
            self._turn.spent(compute_s)
        if error is None:
            self._undelivered.append((batch, results, compute_s))
            if self._dispatcher.short:
                self._deliver()
            else:  # start the next batch before answers are made of this one
                asyncio.get_running_loop().call_soon(self._deliver)
        else:
            for request, _ in batch.parts:
                failure = EngineFailedError("the engine failed on this batch; try again")
                failure.__cause__ = error
                self._fail(request, failure)
        call_safely(self._on_batch, BatchRecord(len(batch.items), compute_s, error is not None))

    def _ends_work(self, error: BaseException) -> bool:
        """Whether an error from `run` is meant for the worker or the process, not the batch."""
        if isinstance(error, asyncio.CancelledError):
            return self._cancelled()
        return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)

    def _deliver(self) -> None:
        """Deliver results to their requests, in the order of the batches."""
        undelivered, self._undelivered = self._undelivered, []
        for batch, results, compute_s in undelivered:
            size = len(batch.items)
            first = 0
            for request, count in batch.parts:
                own = results[first : first + count]
                first += count
                if count < len(request.items):
                    request.results += own
                    own = request.results
                    if len(own) < len(request.items):
                        continue
                queue_s = batch.dispatched - request.submitted
                self._tell(request, Answered(own, size, queue_s, compute_s))

    def _fail(self, request: Request[T, R], failure: ServiceError) -> None:
        """Fail a request, unless it has its outcome."""
        self._waiting.leave(request)
        self._tell(request, failure)

    def _tell(self, request: Request[T, R], outcome: Answered[R] | ServiceError) -> None:
        then, request.then = request.then, None
        if then is not None:
            call_safely(then, outcome)

    def _stop(self) -> None:
        """Refuse more and fail all that waits or runs, each with its own exception."""
        self._closing = True
        parts, self._running = self._running.parts if self._running else [], None
        for request in [*self._waiting.all(), *(request for request, _ in parts)]:
            self._fail(request, ShuttingDownError("the server shut down before this was done"))
        self._alarm.cancel()
        self._stopped.set()

    def _end(self) -> None:
        """The worker has ended, and with it the last `run`: the device is free."""
        self._stop()
        if self._turn:
            self._turn.let_go()
