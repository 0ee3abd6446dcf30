"""Combines the items of separate requests into batches. An item is usually an image.

    post ── waiting (in order) ── policy ─┬─ run on engine 0 ─┬─ outcomes
                           refuse ┘  └ look │        ...        │
                                      again └─ run on engine k ─┘

Each engine has a consumer, a task that runs one batch at a time. An idle consumer asks the policy
(`service/batching/policy.py`) how many items to dispatch and when, and which requests cannot meet
their deadlines. The consumer then follows the policy's decision. An arrival wakes the consumer that
has been idle longest.

Each posted request gets exactly one outcome: its results or an error. EngineFailedError means that
a batch with one of its items failed. DeadlineError means that the request cannot meet its deadline.
ShuttingDownError means that `close` ran out of time. The outcome is passed to a callback. A future
would wake a task, which takes longer than all of the batcher's own work. A withdrawn request leaves
the queue at once, and the results of its running items are discarded. The items of one request may
run on several engines at once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import inf
from typing import Any, Generic, TypeVar

from service.batching.alarm import Alarm
from service.batching.company import Company
from service.batching.device_turns import DeviceTurn, DeviceTurns
from service.batching.dispatcher import Dispatcher
from service.batching.latency import Latency
from service.batching.policy import NO_HURRY, SHORT_S, Decision, Urgency, due
from service.batching.queue import (
    Backlog,
    Batch,
    BatchRecord,
    BatchResult,
    OnOutcome,
    Part,
    Posted,
    call_safely,
)
from service.errors import DeadlineError, EngineFailedError, ServiceError, ShuttingDownError
from service.fair_queue import ANYONE, Client

T = TypeVar("T")
R = TypeVar("R")

# Timers of asyncio and uvloop count whole milliseconds.
_TIMER_ERROR_S = 0.001

# Iterations of the event loop to wait for a next request that arrives in several steps.
_TURNS = 8

Run = Callable[[Sequence[T]], Awaitable[Sequence[R]]]


@dataclass(eq=False, slots=True)
class _Consumer(Generic[T, R]):
    """Takes batches from the queue in an asyncio task, and runs them on one engine."""

    number: int
    run: Run[T, R]
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # wakes it while it is idle
    turn: DeviceTurn | None = None
    task: asyncio.Task[None] | None = None
    batch: Batch[T, R] | None = None  # the running one
    serves: bool = True
    ran: tuple[int, int, float] = (0, 0, 0.0)  # batches, their items and seconds

    @property
    def alone(self) -> bool:
        """Return whether no other model uses this consumer's device."""
        return self.turn is None or self.turn.alone

    @property
    def free(self) -> bool:
        """Return whether the consumer takes batches, runs none, and does not wait for a device."""
        return self.serves and not self.batch and not (self.turn and self.turn.waits)

    @property
    def cancelled(self) -> bool:
        """Return whether `close` or the event loop has cancelled the task."""
        return self.task is not None and self.task.cancelling() > 0

    def ends_by(self, error: BaseException) -> bool:
        """Return whether an error from `run` should end the consumer, and not only the batch."""
        if isinstance(error, asyncio.CancelledError):
            return self.cancelled
        return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


class Batcher(Generic[T, R]):
    """Collects items into batches of at most `max_batch` for engines numbered from 0.

    Each function in `runs` runs one batch at a time on its engine. Its argument is the list of
    items, and it returns one result per item, in the same order. The caller limits how many items
    wait.

    `latency` is the table L(n), the time of a batch of n items. A later call of `learn` may also
    change the largest n. `turns` has one object per engine, which divides the time of the engine's
    device among the batchers of several models, in proportion to their `weight`. `on_batch` is
    called after every batch. `clock` returns seconds. Not thread-safe: use it from one event loop.
    """

    def __init__(
        self,
        *runs: Run[T, R],
        max_batch: int,
        latency: Latency | None = None,
        turns: Sequence[DeviceTurns] = (),
        weight: float = 1.0,
        on_batch: Callable[[BatchRecord], None] = lambda _: None,
        company: Company | None = None,
        clock: Callable[[], float] = time.perf_counter,
        timer_error_s: float = _TIMER_ERROR_S,
    ) -> None:
        if max_batch < 1:
            raise ValueError(f"max_batch {max_batch} must be at least 1")
        self._dispatcher = Dispatcher(*(latency or Latency.unknown(max_batch) for _ in runs))
        self._consumers = [_Consumer(number, run) for number, run in enumerate(runs)]
        for consumer, device_turns in zip(self._consumers, turns, strict=False):
            consumer.turn = device_turns.join(consumer.changed.set, weight)
        self._weight = weight
        self._reserve: _Consumer[T, R] | None = None  # set where other processes run batches
        self._idle: list[_Consumer[T, R]] = []  # wait for a change; the longest idle first
        self._working = 0  # tasks that have not ended
        self._on_batch = on_batch
        self._company = company or Company()
        self._clock = clock
        self._alarm = Alarm(self._on_alarm, clock, timer_error_s)
        self._waiting: Backlog[T, R] = Backlog()
        self._undelivered: list[tuple[Batch[T, R], list[R], float]] = []
        self._closing = False
        self._stopped = asyncio.Event()

    @property
    def depth(self) -> int:
        """Return the number of waiting items."""
        return self._waiting.depth

    @property
    def busy_until(self) -> float:
        """Return when an engine is expected to be free, in seconds of `clock`, or 0 if an engine is
        free now."""
        if self._any_free():
            return 0.0
        return self._dispatcher.ends(self._dispatcher.first_free(self._clock()))

    def ran(self, engine: int = 0) -> tuple[int, int, float]:
        """Return how many batches an engine has run, how many items these batches had, and how many
        seconds they took."""
        return self._consumers[engine].ran

    def latency(self, engine: int = 0) -> Latency:
        """Return an engine's table of the time that a batch takes, by batch size."""
        return self._dispatcher.latency(engine)

    def learn(self, latency: Latency, engine: int = 0, short_s: float = SHORT_S) -> None:
        """Replace an engine's table of batch times. If a batch of one item takes less than
        `short_s`, no batch waits for further items."""
        self._dispatcher.short_s = short_s
        self._dispatcher.learn(latency, engine)

    def spread(self, turns: Sequence[DeviceTurns]) -> None:
        """Let the batcher's only engine run several batches at the same time, in other processes.
        Each object in `turns` adds one consumer, which gets the next engine number.

        The last consumer is a reserve. It begins to take batches once two full batches wait, and
        stops once no item waits. Must be called before the first item arrives.
        """
        if self._working or len(self._consumers) > 1:
            raise RuntimeError("call `spread` once, with one engine, before the first item arrives")
        first = self._consumers[0]
        for number, device_turns in enumerate(turns, 1):
            consumer = _Consumer(number, first.run)
            consumer.turn = device_turns.join(consumer.changed.set, self._weight)
            self._consumers.append(consumer)
            self._dispatcher.add(self._dispatcher.latency())
        self._reserve = self._consumers[-1]
        self.serve(self._reserve.number, serves=False)

    def serve(self, engine: int, *, serves: bool) -> None:
        """If `serves`, let an engine take batches. Otherwise let it finish its current batch and
        take no more."""
        self._dispatcher.serve(engine, serves=serves)
        consumer = self._consumers[engine]
        consumer.serves = serves
        if serves:
            consumer.changed.set()
        elif consumer in self._idle:
            self._idle.remove(consumer)
            self._wake()

    def post(
        self,
        items: Sequence[T],
        then: OnOutcome[R],
        urgency: Urgency = NO_HURRY,
        client: Client = ANYONE,
        cost: float = 1.0,
    ) -> Posted[T, R]:
        """Queue `items`, all or none. `then` is called once with the outcome, after `post` has
        returned. In the fair division among clients, each item counts as `cost` items. If a batch
        with one of the items fails, the items that still wait are not run.

        Raises DeadlineError if the items are not expected to meet their deadline, and
        ShuttingDownError after `close`.
        """
        count = len(items)
        if self._closing:
            raise ShuttingDownError("the server is shutting down; send the request again")
        now = self._clock()
        if urgency.deadline < inf:
            self.check_deadline(count, urgency, client)
        moment = due(now, urgency)
        request = Posted(
            self._waiting, tuple(items), now, then, client, moment, urgency, count, cost
        )
        loop = asyncio.get_running_loop()
        if not count:
            loop.call_soon(request.tell, BatchResult([], 0, 0.0, 0.0))
            return request
        inside = self._waiting.enter(request)
        if not self._dispatcher.short:
            inside += sum(part[2] for part in self._running() if part[0].client == client)
            self._dispatcher.arrived(now, count, client.name, inside)
        if not self._working:
            self._start(loop)
        self._call_up()
        if self._idle:
            self._idle[0].changed.set()
        if urgency.deadline < inf and not self._any_free():
            loop.call_soon(self._on_alarm, now)
        return request

    def fail_waiting(self, failure: Callable[[], ServiceError]) -> None:
        """Fail the waiting requests. Requests that also have items in a running batch continue."""
        running = {request for request, _, _ in self._running()}
        for request in self._waiting.all():
            if request not in running:
                request.fail(failure())

    async def close(self, timeout_s: float | None = None) -> None:
        """Refuse new requests, finish the accepted requests, and stop.

        After `timeout_s` seconds, the remaining requests fail with ShuttingDownError, and running
        calls of `run` are cancelled. None means no time limit. A second call may shorten the time.
        """
        self._closing = True
        if not self._working:
            self._leave_devices()
            return
        for consumer in self._consumers:
            consumer.changed.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._stopped.wait()
        except TimeoutError:
            # Not awaited: `run` may ignore its cancellation.
            for consumer in self._consumers:
                if consumer.task:
                    consumer.task.cancel()
            self._stop()

    def forget(self) -> None:
        """Drop the references to the engines after `close`. Otherwise the engines would stay in
        memory until the garbage collector finds the batcher."""
        for consumer in self._consumers:
            consumer.run = _run_nothing

    def check_deadline(self, count: int, urgency: Urgency, client: Client = ANYONE) -> None:
        """Raise DeadlineError if `count` items that arrive now could not meet their deadline.

        If no other client waits, up to `Dispatcher.spare` of the client's earlier items are not
        counted, because the policy may refuse them in favour of the new items.
        """
        if urgency.deadline == inf:
            return
        now = self._clock()
        spare, moment = self._dispatcher.spare, due(now, urgency)
        ahead = self._waiting.ahead_of(count, client, moment, urgency, spare)
        self._see_others()
        done = self._dispatcher.completion(now, ahead, count)
        if done > urgency.deadline:
            raise DeadlineError(done - now, urgency.deadline - now)

    def expected_wait_s(self) -> float:
        """Return the estimated seconds until all waiting and running items are done."""
        wait_s = self._dispatcher.wait_s(self._clock(), self.depth)
        shares = [consumer.turn.share for consumer in self._consumers if consumer.turn]
        return wait_s * len(shares) / sum(shares) if shares else wait_s

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start a task for each consumer."""
        self._working = len(self._consumers)
        for consumer in self._consumers:
            # An empty context: the task must not inherit context variables of its first request.
            consumer.task = loop.create_task(
                self._work(consumer), name="batcher", context=Context()
            )
            # Runs even if the task is cancelled before its first step.
            consumer.task.add_done_callback(partial(self._end, consumer))

    async def _work(self, consumer: _Consumer[T, R]) -> None:
        """Run batches until the batcher is closed and the queue is empty."""
        ahead = False
        # `run` may have swallowed a cancellation, so check for one.
        while not consumer.cancelled:
            if self._dispatcher.short and self._waiting.depth and not ahead:
                await self._gather(consumer.number)
            ahead = False
            # No await between here and the wait, so no change is missed.
            consumer.changed.clear()
            now = self._clock()
            size = 0
            if not consumer.serves and consumer.turn:
                consumer.turn.let_go()
            elif consumer.serves and (self._waiting.depth or not consumer.alone):
                size = self._look(now, consumer)
            if size:
                batch = self._waiting.take(size, now)
                if batch.items:
                    ahead = await self._carry(consumer, batch)
                del batch  # an idle consumer would keep its last batch in memory
            elif self._closing and not self._waiting:
                return
            else:
                if consumer.serves and not (consumer.turn and consumer.turn.waits):
                    self._idle += (consumer,)  # arrivals may wake it
                await consumer.changed.wait()
                if consumer in self._idle:
                    del self._idle[self._idle.index(consumer)]

    async def _gather(self, engine: int) -> None:
        """Let the event loop read requests that have arrived, before an engine begins a batch that
        is not full.

        Reading them during the batch would cost several times as much, because the event loop and
        the engine's thread would compete for the GIL. The event loop runs at least one iteration,
        because short batches may otherwise leave it no time. If the transport receives a request in
        several steps, the loop goes on until several iterations have passed without a new request.
        """
        most = self.latency(engine).max_batch
        depth, expected = 0, most if self._company.inside and self._company.look() else 0
        patience = _TURNS
        several = len(self._consumers) > 1
        while True:
            limit = self._dispatcher.share(self.depth, engine) if several else most
            awaited = 0 < self.depth < expected and patience
            if depth >= min(self.depth, limit) and not awaited:
                return
            patience = patience - 1 if depth == self.depth else _TURNS
            depth = self.depth
            await asyncio.sleep(0)

    def _look(self, now: float, consumer: _Consumer[T, R]) -> int:
        """Ask the policy, and return how many items this idle consumer should run now."""
        turn = consumer.turn if consumer.turn and not consumer.turn.alone else None
        if consumer.turn or len(self._consumers) > 1:
            self._see_others(taking=consumer)
        decision = self._decide(now, consumer)
        size = decision.dispatch
        if self._closing and not size:
            max_batch = self.latency(consumer.number).max_batch
            size = min(self.depth, max_batch)  # after `close` nothing more can arrive
        if turn:
            if not size:
                turn.let_go()
            elif not turn.take():
                self._see_others()
                decision, size = self._decide(now, self._first_free(now)), 0
                self._wake()  # another engine's device may be free
        if decision.refused or decision.look_again < inf or self._alarm.timer:
            self._obey(now, decision, size)
        return size

    def _decide(self, now: float, consumer: _Consumer[T, R]) -> Decision:
        waiting = self._waiting
        return self._dispatcher.decide(now, waiting.depth, waiting.claims(now), consumer.number)

    def _obey(self, now: float, decision: Decision, size: int = 0) -> None:
        """Fail the requests that the policy refuses, and set a timer for its next decision."""
        stretches = self._waiting.in_order(now) if decision.refused else ()
        for request in dict.fromkeys(stretches[index][0] for index in decision.refused):
            done = self._dispatcher.completion(now, 0, request.left)
            request.fail(DeadlineError(done - now, request.urgency.deadline - now))
        self._alarm.cancel()
        if not size and decision.look_again < inf:
            self._alarm.set(decision.look_again, exact=self._any_free())

    def _see_others(self, taking: _Consumer[T, R] | None = None) -> None:
        """Tell the dispatcher how long other models will use each engine's device. The device of
        the consumer `taking` counts as free."""
        for consumer in self._consumers:
            if consumer.turn:
                until = None if consumer is taking else consumer.turn.busy_until
                self._dispatcher.hold(consumer.number, until)

    def _on_alarm(self, now: float) -> None:
        if self._any_free():
            self._wake()
        else:  # the moment has passed: it is too late for some
            self._see_others()
            self._obey(now, self._decide(now, self._first_free(now)))

    def _first_free(self, now: float) -> _Consumer[T, R]:
        """Return the consumer whose engine is expected to be free first."""
        return self._consumers[self._dispatcher.first_free(now)]

    def _any_free(self) -> bool:
        """Return whether an engine could run a batch now."""
        return any(consumer.free for consumer in self._consumers)

    def _wake(self) -> None:
        """Wake the consumer that has been idle longest, so that it checks the queue."""
        if self._idle:
            self._idle[0].changed.set()

    async def _carry(self, consumer: _Consumer[T, R], batch: Batch[T, R]) -> bool:
        """Run one batch and deliver its outcome. Return whether the next batch may begin at once,
        before the event loop reads further requests."""
        consumer.batch = batch
        clients = (request.client.name for request, _, _ in batch.parts)
        self._dispatcher.dispatched(batch.dispatched, len(batch.items), consumer.number, clients)
        if consumer.turn:
            consumer.turn.until = self._dispatcher.ends(consumer.number)
        if self._waiting.depth:
            if self._waiting.deadlines and not self._any_free():
                self._on_alarm(batch.dispatched)  # some may now be too late
            self._wake()
        results: list[R] = []
        error: BaseException | None = None
        try:
            results = list(await consumer.run(batch.items))
            if len(results) != len(batch.items):
                raise ValueError(
                    f"the engine returned {len(results)} results for {len(batch.items)} items"
                )
        # BaseException: a stray CancelledError or a native library's panic must not stop the
        # consumer. Errors meant for the consumer or the process propagate.
        except BaseException as raised:
            if consumer.ends_by(raised):
                raise
            error = raised
        consumer.batch = None
        now = self._clock()
        size, compute_s, failed = len(batch.items), now - batch.dispatched, error is not None
        batches, items, busy_s = consumer.ran
        consumer.ran = batches + 1, items + size, busy_s + compute_s
        self._dispatcher.answered(now, self._waiting.depth, consumer.number, failed=failed)
        if consumer.turn:
            consumer.turn.spent(compute_s)
        self._call_up()
        short, ahead = self._dispatcher.short, False
        if error is None:
            self._undelivered.append((batch, results, compute_s))
            if short and self._reserve:
                ahead = self.depth >= self._dispatcher.share(self.depth + size, consumer.number)
            if short and not ahead:
                self._deliver()
            else:  # start the next batch before this batch's answers are created
                asyncio.get_running_loop().call_soon(self._deliver)
        else:
            self._fail_all(batch, error)
            error = None  # its traceback refers to this frame and to the batch's items: a cycle
        call_safely(self._on_batch, BatchRecord(size, compute_s, failed))
        return ahead

    def _call_up(self) -> None:
        """Let the reserve consumer take batches once two full batches wait, and stop it once no
        item waits."""
        reserve = self._reserve
        if reserve is None:
            return
        enough = 1 if reserve.serves else 2 * self.latency().max_batch
        serves = self._consumers[0].serves and self.depth >= enough
        if serves is not reserve.serves:
            self.serve(reserve.number, serves=serves)

    def _deliver(self) -> None:
        """Pass results to their requests' callbacks, in the order in which batches ended."""
        undelivered, self._undelivered = self._undelivered, []
        for batch, results, compute_s in undelivered:
            batch.tell(results, compute_s)

    def _fail_all(self, batch: Batch[T, R], error: BaseException) -> None:
        """Fail all requests of a batch. Each request gets an exception object of its own."""
        known = isinstance(error, EngineFailedError)
        message = str(error) if known else "the engine failed on this batch; try again"
        for request, _, _ in batch.parts:
            failure = EngineFailedError(message)
            failure.__cause__ = error
            request.fail(failure)

    def _running(self) -> Iterator[Part[T, R]]:
        """Return the parts of requests that are in running batches."""
        return chain.from_iterable(
            consumer.batch.parts for consumer in self._consumers if consumer.batch
        )

    def _stop(self) -> None:
        """Refuse new requests, and fail all waiting and running requests. Each request gets an
        exception object of its own."""
        self._closing = True
        for request in [*self._waiting.all(), *(part[0] for part in self._running())]:
            request.fail(
                ShuttingDownError(
                    "the server shut down before the request was done; send the request again"
                )
            )
        for consumer in self._consumers:
            consumer.batch = None
        self._alarm.cancel()
        self._stopped.set()

    def _end(self, consumer: _Consumer[T, R], _: asyncio.Task[None]) -> None:
        """Give back a consumer's device after its task has ended.

        The batcher stops when the task of the last running consumer ends. It also stops if a task
        ends before `close`, or while items wait.
        """
        self._working -= 1
        if not self._working or self._waiting or not self._closing:
            self._stop()
        for other in self._consumers:
            other.changed.set()
        if consumer.turn:
            consumer.turn.let_go()
        if not self._working:
            self._leave_devices()

    def _leave_devices(self) -> None:
        for consumer in self._consumers:
            if consumer.turn:
                consumer.turn.leave()


async def _run_nothing(_: Sequence[Any]) -> Sequence[Any]:
    return []
