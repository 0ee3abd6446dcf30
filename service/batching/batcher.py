"""Dynamic batching: items that arrive apart travel together. No HTTP, no device.

    post ── waiting (by due moment) ── policy ── run ── answers
                               refuse ┘  └ look again at a moment

One worker task runs one batch at a time. What goes when is the policy's decision, and when somebody
can no longer make a deadline too (see `service/batching/policy.py`); the batcher knows how. Idle,
it dispatches at once what is there, unless more is sure to come that pays for waiting.

What was posted is told of its end exactly once: of its answers, of EngineFailedError when a batch
that carried one of its items failed, of DeadlineError once it cannot be in time, or of
ShuttingDownError when `close` ran out of time. By a call, not a future: a task that is woken for
each request costs more than all else that is done for it here. Withdrawn, it leaves the queue at
once; where its items are running already, their results are thrown away and nobody else notices.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from math import inf
from typing import Generic, NamedTuple, TypeVar

from service.batching.alarm import Alarm
from service.batching.dispatcher import Dispatcher
from service.batching.latency import Latency
from service.batching.policy import NO_HURRY, Urgency, due
from service.batching.turns import Turn, Turns
from service.batching.waiting import Answered, Request, Then, Waiting
from service.callbacks import call_safely
from service.errors import (
    DeadlineError,
    EngineFailedError,
    ServiceError,
    ShuttingDownError,
)

T = TypeVar("T")
R = TypeVar("R")

# How much too early or too late a timer of an event loop may be: asyncio and uvloop count whole
# milliseconds.
_TIMER_ERROR_S = 0.001


class BatchRecord(NamedTuple):
    """One batch that ended, for metrics."""

    size: int
    compute_s: float
    failed: bool


@dataclass(eq=False, slots=True)
class _Batch(Generic[T, R]):
    """Items on their way: from each request in `parts` so many, in order."""

    dispatched: float  # clock seconds
    items: list[T]
    parts: list[tuple[Request[T, R], int]]


class Batcher(Generic[T, R]):
    """Collects items into batches of at most `max_batch` for `run`, which is called one at a time.

    `run` gets the items in the order in which they are due and returns one result an item, in the
    same order. The caller bounds how many may wait. `latency` is what is known of L(n); it learns.
    Batchers with the same `turns` run one batch at a time among them, sharing by `weight`.
    `on_batch` hears of every batch that ended. `clock` counts seconds. Used from one event loop,
    from the first `post` on.
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
        """How many items wait."""
        return self._waiting.depth

    @property
    def in_flight(self) -> int:
        """How many items are in the running batch."""
        return len(self._running.items) if self._running else 0

    @property
    def busy_until(self) -> float:
        """When the running batch should be done, in clock seconds; 0 where none runs."""
        return self._dispatcher.batch_ends if self._running else 0.0

    @property
    def latency(self) -> Latency:
        """What is known of how long batches take; may be set once it is measured."""
        return self._dispatcher.latency

    @latency.setter
    def latency(self, latency: Latency) -> None:
        self._dispatcher.latency = latency

    def post(self, items: Sequence[T], then: Then[R], urgency: Urgency = NO_HURRY) -> Request[T, R]:
        """Have `items` run, all or none; `then` is told what becomes of them, not before this ends.

        Raises DeadlineError where they cannot be expected to be done by their deadline, and
        ShuttingDownError once `close` was called. `then` is told the same of a deadline that comes
        to be too soon, and of a `close` that runs out of time; and EngineFailedError when a batch
        with one of them failed (the rest is then not run).
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
            # An empty context: it serves everybody, so it takes on nothing of this first caller.
            self._worker = loop.create_task(self._work(), name="batcher", context=Context())
            # However it ends, even cancelled before its first step, nobody is left waiting.
            self._worker.add_done_callback(lambda _: self._end())
        self._changed.set()
        if urgency.deadline < inf and self._running:
            loop.call_soon(self._on_alarm, now)
        return request

    def fail_waiting(self, failure: Callable[[], ServiceError]) -> None:
        """Fail whoever waits, each with a failure of their own; whose items run too, waits on."""
        running = [request for request, _ in self._running.parts] if self._running else []
        for request in self._waiting.all():
            if request not in running:
                self._fail(request, failure())

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

    def check_deadline(self, count: int, urgency: Urgency) -> None:
        """Raise DeadlineError if `count` items that came now could not be expected in time."""
        if urgency.deadline == inf:
            return
        now = self._clock()
        ahead = self._waiting.ahead_of(due(now, urgency))
        others_until = self._turn.busy_until if self._turn else None
        done = self._dispatcher.completion(now, ahead, count, others_until)
        if done > urgency.deadline:
            raise DeadlineError(done - now, urgency.deadline - now)

    def expected_wait_s(self) -> float:
        """Seconds until all that is waiting or running now will have been run."""
        wait_s = self._dispatcher.wait_s(self._clock(), self.depth)
        return wait_s / self._turn.share if self._turn else wait_s

    async def _work(self) -> None:
        """Run batches until closed and drained; the only task of a batcher."""
        # Cancellation is asked about too, lest a `run` that swallowed it keeps this going.
        while not self._cancelled():
            if self._dispatcher.short:
                await self._gather()
            # No await from here to the wait, so nothing that changes is missed.
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
        """Let the event loop read what has come already, where it takes longer than a batch.

        It would compete with the engine's thread for the interpreter, at a multiple of the time.
        Once in any case: such batches may end without it having had a turn.
        """
        depth = 0
        while depth < min(self.depth, self._max_batch):
            depth = self.depth
            await asyncio.sleep(0)

    def _alone(self) -> bool:
        """Whether no other model ever runs on the device."""
        return self._turn is None or self._turn.alone

    def _look(self, now: float) -> int:
        """Refuse whom the policy refuses, look again when it says; how many items to dispatch."""
        requests, claims = self._waiting.claims()
        decision = self._dispatcher.decide(now, self.depth, claims)
        size = decision.dispatch
        if self._closing and not self._running and not size:
            size = min(self.depth, self._max_batch)  # whoever is left waits for no company
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
        """Whether somebody wants the worker to end: `close` out of time, or the event loop."""
        return self._worker is not None and self._worker.cancelling() > 0

    async def _carry(self, batch: _Batch[T, R]) -> None:
        """Run one batch and resolve the requests that it completes or fails."""
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
        # BaseException: neither a stray CancelledError nor a panic in a native library may stop
        # the worker. What is meant for the worker or the process goes on upwards.
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
            else:  # the next batch should be on its way before answers are made of this one
                asyncio.get_running_loop().call_soon(self._deliver)
        else:
            for request, _ in batch.parts:
                failure = EngineFailedError("the engine failed on this batch; try again")
                failure.__cause__ = error
                self._fail(request, failure)
        call_safely(self._on_batch, BatchRecord(len(batch.items), compute_s, error is not None))

    def _ends_work(self, error: BaseException) -> bool:
        """Whether what `run` raised is not about the batch but about this task or the process."""
        if isinstance(error, asyncio.CancelledError):
            return self._cancelled()
        return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)

    def _deliver(self) -> None:
        """Hand every result to the request that its item came from, in the order of the batches."""
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
        """Tell a request of `failure`, unless it was told already."""
        self._waiting.leave(request)
        self._tell(request, failure)

    def _tell(self, request: Request[T, R], outcome: Answered[R] | ServiceError) -> None:
        then, request.then = request.then, None
        if then is not None:
            call_safely(then, outcome)

    def _stop(self) -> None:
        """Take no more, and fail what still waits or runs, each with an exception of its own."""
        self._closing = True
        parts, self._running = self._running.parts if self._running else [], None
        for request in [*self._waiting.all(), *(request for request, _ in parts)]:
            self._fail(request, ShuttingDownError("the server shut down before this was done"))
        self._alarm.cancel()
        self._stopped.set()

    def _end(self) -> None:
        """The worker has ended, and with it the last `run`: only now the device is free."""
        self._stop()
        if self._turn:
            self._turn.let_go()
