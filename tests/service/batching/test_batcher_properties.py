"""The batcher with every order of arrivals, cancellations, failures and shutdown.

Requests have deadlines and priorities. There are one to three engines, and other models may need
their devices. Hypothesis draws a scenario. The batcher runs it in virtual time, next to a simple
model of the batcher: a plain list of the waiting items. Batcher and model are compared at every
dispatch, and before the clock advances. The outcomes are checked at the end. The policy decides how
many items to dispatch and which requests to refuse, but it may refuse only requests with a
deadline. The items of a client run in order, and clients take turns with the items that are not
refused.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from math import inf
from typing import Any

import pytest
from hypothesis import example, given, settings

from service import fair_queue
from service.batching.batcher import Batcher
from service.batching.device_turns import DeviceTurns
from service.batching.policy import DEFAULT_PRIORITY, NO_HURRY, Urgency, due
from service.batching.queue import BatchRecord, BatchResult, OnOutcome
from service.engine.threads import Withdrawable
from service.errors import (
    DeadlineError,
    EngineFailedError,
    ServiceError,
    ShuttingDownError,
)
from tests.support.service import virtual_time
from tests.support.service.batcher_scenarios import (
    RAISES,
    SCENARIOS,
    Closing,
    Ending,
    Moment,
    Pace,
    Rival,
    Scenario,
    Visit,
)
from tests.support.service.desk import submit
from tests.support.service.running import in_flight
from tests.support.service.virtual_time import now, until

# Start-time fair queueing lets the service of two lines differ by one item, and a line that forms
# may begin as far ahead of another or behind it.
_MOST_AHEAD = 2

Item = tuple[int, int]  # number of the visit, number within it
Result = tuple[str, Item]


@dataclass(eq=False)
class Client:
    """A visit (one request of a client), and its outcomes."""

    items: list[Item]
    task: asyncio.Task[None] | None = None
    submitted: float = -1
    urgency: Urgency = NO_HURRY
    name: str = ""
    passed_over: bool = False  # others went, and by order it was its turn
    gone: bool = False  # refused, failed or withdrawn: known to the batcher, not yet to its task
    expected_refusal: type[ServiceError] | None = None
    outcomes: list[BatchResult[Result] | BaseException] = field(default_factory=list)

    @property
    def has_deadline(self) -> bool:
        return self.urgency.deadline < inf

    def due(self) -> float:
        return due(self.submitted, self.urgency)

    def wants_out(self) -> bool:
        return self.task is not None and self.task.cancelling() > 0


@dataclass
class Batch:
    items: list[Item]
    start: float
    engine: int
    end: float | None = None  # None while it runs, and where it was cut short by `close`
    fault: BaseException | None = None
    failed: bool = False


class Play:
    """Plays one scenario, and holds the simple model with which the batcher is compared."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clients = [
            Client([(number, i) for i in range(visit.count)], name=f"client {visit.client}")
            for number, visit in enumerate(scenario.visits)
        ]
        self.waiting: list[Item] = []
        self.batches: list[Batch] = []
        self.ended: list[Batch] = []
        self.running: dict[int, Batch] = {}  # by engine
        self.wrong_batches: list[tuple[list[Item], list[Item]]] = []
        # What two clients got since both have been waiting.
        self.together: dict[tuple[str, str], Counter[str]] = {}
        self.unfair: list[Counter[str]] = []
        self.records: list[BatchRecord] = []
        self.closed_at: float | None = None
        self.turns = [DeviceTurns() for _ in range(scenario.engines)]
        self.rivals_inside = [0] * scenario.engines
        # Other models use devices, not what runs further batches.
        self.spread = scenario.spread and scenario.engines > 1 and not scenario.rivals
        alone = [partial(self.run_batch, engine) for engine in range(scenario.engines)]
        self.batcher = Batcher[Item, Result](
            *([self.run_anywhere] if self.spread else alone),
            max_batch=scenario.max_batch,
            turns=self.turns if scenario.rivals else (),
            on_batch=self.records.append,
            clock=now,
            timer_error_s=0,
        )
        if self.spread:
            self.batcher.spread(self.turns[1:])

    def play(self) -> None:
        virtual_time.run(self._main(), before_jump=self.check_at_rest)
        self.check_outcomes()

    async def _main(self) -> None:
        async with asyncio.TaskGroup() as group:
            for rival in self.scenario.rivals:
                group.create_task(self.compete(rival))
            for visit, client in zip(self.scenario.visits, self.clients, strict=True):
                client.task = group.create_task(self.visit(visit, client))
                if visit.leaves:
                    group.create_task(self.leave(visit.leaves, client))
            if self.scenario.closing:
                group.create_task(self.close(self.scenario.closing))
        await self.batcher.close()
        assert (self.batcher.depth, in_flight(self.batcher)) == (0, 0)

    async def visit(self, visit: Visit, client: Client) -> None:
        await until(visit.arrives.second, visit.arrives.turns)
        client.submitted = now()
        client.urgency = Urgency(now() + visit.timeout_s, visit.priority)
        if self.closed_at is not None:
            client.expected_refusal = ShuttingDownError
        else:
            self.waiting += client.items
        try:
            client.outcomes.append(await self.ask(client))
        except ServiceError as error:
            client.outcomes.append(error)
        except asyncio.CancelledError as error:
            client.outcomes.append(error)
            raise
        finally:
            self.forget(client)

    async def ask(self, client: Client) -> BatchResult[Result]:
        caller = fair_queue.Client(client.name)
        return await submit(Told(self, client), client.items, client.urgency, caller)

    async def leave(self, moment: Moment, client: Client) -> None:
        await until(moment.second, moment.turns)
        assert client.task is not None
        client.task.cancel()
        self.go(client)

    def go(self, client: Client) -> None:
        """Remove a visit that no longer waits. If its client has no other visit, the client's
        shares are no longer compared."""
        client.gone = True
        if not any(self.name_of(item) == client.name for item in self.in_line()):
            self.together = {
                pair: n for pair, n in self.together.items() if client.name not in pair
            }

    def in_line(self) -> list[Item]:
        return [item for item in self.waiting if not self.clients[item[0]].gone]

    async def compete(self, rival: Rival) -> None:
        granted = asyncio.Event()
        device = rival.device % self.scenario.engines
        turn = self.turns[device].join(granted.set)
        await until(rival.comes.second, rival.comes.turns)
        while not turn.take():
            granted.clear()
            await granted.wait()
        assert device not in self.running, "two batches on one device"
        self.rivals_inside[device] += 1
        await until(now() + rival.stays_s, rival.comes.turns)
        self.rivals_inside[device] -= 1
        turn.spent(rival.stays_s)
        turn.let_go()

    async def close(self, closing: Closing) -> None:
        await until(closing.at.second, closing.at.turns)
        self.closed_at = now()
        await self.batcher.close(closing.timeout_s)
        assert (self.batcher.depth, in_flight(self.batcher)) == (0, 0)
        assert closing.timeout_s is None or now() <= self.closed_at + closing.timeout_s

    def staying(self) -> list[Item]:
        """Return the waiting items in order, except items of clients that were cancelled in this
        iteration of the event loop."""
        staying = [item for item in self.waiting if not self.clients[item[0]].wants_out()]
        return sorted(staying, key=lambda item: self.clients[item[0]].due())

    def forget(self, client: Client) -> None:
        self.waiting = [item for item in self.waiting if item not in client.items]

    async def run_anywhere(self, items: Sequence[Item]) -> Any:
        """Run a batch on an engine that is free."""
        free = [engine for engine in range(self.scenario.engines) if engine not in self.running]
        return await self.run_batch(free[0] if free else 0, items)

    async def run_batch(self, engine: int, items: Sequence[Item]) -> Any:
        """Check that the engine runs waiting items in order, and none of a withdrawn request."""
        order = self.staying()
        passed_over: list[Item] = []
        for name in {self.name_of(item) for item in items}:
            own = [item for item in order if self.name_of(item) == name]
            taken_ = [item for item in items if self.name_of(item) == name]
            last = own.index(taken_[-1]) if taken_[-1] in own else -1
            passed_over += [item for item in own[: last + 1] if item not in taken_]
            expected = [item for item in own[: last + 1] if item in taken_]
            if taken_ != expected:
                self.wrong_batches.append((taken_, expected))
        self.check_turns(items)
        # Judged at the end: raised here it would be just another failure of the engine.
        taken = engine in self.running or self.rivals_inside[engine]
        if taken or not items or len(items) > self.scenario.max_batch:
            self.wrong_batches.append((list(items), order))
        for number, _ in passed_over:
            self.clients[number].passed_over = True
        self.waiting = [item for item in self.waiting if item not in items]
        self.running[engine] = batch = Batch(list(items), now(), engine)
        self.batches.append(batch)
        try:
            return await self.compute(batch)
        finally:
            del self.running[engine]

    def name_of(self, item: Item) -> str:
        return self.clients[item[0]].name

    def check_turns(self, items: Sequence[Item]) -> None:
        """Check the shares of each two clients of the same priority that wait both before and after
        a batch: neither may get much more than the other.

        Refused requests do not wait. So a client may get nothing if none of its deadlines can be
        met.
        """
        visits = self.scenario.visits
        if len({visit.priority or DEFAULT_PRIORITY for visit in visits}) > 1:
            return
        got = Counter(map(self.name_of, items))
        before = set(map(self.name_of, self.in_line()))
        after = {self.name_of(item) for item in self.in_line() if item not in items}
        for pair in combinations(("client 0", "client 1", "client 2"), 2):
            if not before.issuperset(pair):
                self.together.pop(pair, None)
                continue
            counts = self.together.setdefault(pair, Counter())
            counts.update({name: got[name] for name in pair})
            if not after.issuperset(pair):
                del self.together[pair]
            elif abs(counts[pair[0]] - counts[pair[1]]) > _MOST_AHEAD:
                self.unfair.append(counts)

    async def compute(self, batch: Batch) -> Any:
        index = len(self.batches) - 1
        paces = self.scenario.paces
        pace = paces[index] if index < len(paces) else Pace(Moment(1, 0), Ending.RESULTS)
        await until(now() + pace.takes.second, pace.takes.turns)
        batch.end = now()
        self.ended.append(batch)
        batch.failed = pace.ending is not Ending.RESULTS
        if batch.failed:
            for number, _ in batch.items:
                self.forget(self.clients[number])
        if pace.ending in RAISES:
            batch.fault = RAISES[pace.ending]()
            raise batch.fault
        results: list[Result] = [("result", item) for item in batch.items]
        match pace.ending:
            case Ending.TOO_FEW:
                return results[:-1]
            case Ending.TOO_MANY:
                return [*results, results[-1]]
            case Ending.NOTHING:
                return None
        return results

    def check_at_rest(self) -> None:
        """Compare batcher and model before the clock advances, when nothing remains to be done at
        this time."""
        assert self.batcher.depth == len(self.waiting)
        assert in_flight(self.batcher) == sum(len(b.items) for b in self.running.values())
        busy = sum(engine in self.running or n > 0 for engine, n in enumerate(self.rivals_inside))
        reserve = self.spread and len(self.waiting) < 2 * self.scenario.max_batch
        assert not self.waiting or busy >= self.scenario.engines - reserve, "an engine idles"

    def check_outcomes(self) -> None:
        assert self.wrong_batches == []
        assert self.unfair == []
        assert self.running == {}
        assert self.waiting == []
        carried = {item: batch for batch in self.batches for item in batch.items}
        assert len(carried) == sum(len(batch.items) for batch in self.batches), "run once at most"
        for client in self.clients:
            self.check_outcome(client, carried)
        failures = [o for c in self.clients for o in c.outcomes if isinstance(o, Exception)]
        assert len({id(failure) for failure in failures}) == len(failures), "everyone their own"
        self.check_records()

    def check_outcome(self, client: Client, carried: dict[Item, Batch]) -> None:
        if client.submitted < 0 or (not client.outcomes and client.wants_out()):
            return  # left before it came
        (outcome,) = client.outcomes
        if client.passed_over:
            refused = isinstance(outcome, DeadlineError)
            assert refused or client.wants_out(), "no other request is passed over"
        batches = [carried[item] for item in client.items if item in carried]
        if client.expected_refusal:
            assert type(outcome) is client.expected_refusal
            assert batches == []
        elif isinstance(outcome, BatchResult):
            last = max(batches, key=self.ended.index)
            assert outcome == BatchResult(
                results=[("result", item) for item in client.items],
                batch_size=len(last.items),
                queue_s=last.start - client.submitted,
                compute_s=(last.end or 0) - last.start,
            )
        elif isinstance(outcome, DeadlineError):
            assert client.has_deadline
            assert outcome.allowed_s <= outcome.expected_s
        elif isinstance(outcome, EngineFailedError):
            failed = min((b for b in batches if b.failed), key=self.ended.index)
            assert outcome.__cause__ is not None
            assert failed.fault is None or outcome.__cause__ is failed.fault
        elif isinstance(outcome, ShuttingDownError):
            closing = self.scenario.closing
            assert closing is not None
            assert closing.timeout_s is not None, "what was accepted is finished"
            assert not any(batch.failed for batch in batches)
        else:
            assert client.wants_out(), outcome

    def check_records(self) -> None:
        assert self.records == [
            BatchRecord(
                size=len(batch.items),
                compute_s=(batch.end or 0) - batch.start,
                failed=batch.failed,
            )
            for batch in self.ended
        ]


@dataclass
class Told:
    """A batcher that tells the play about every failure at once."""

    play: Play
    client: Client

    def post(
        self,
        items: Sequence[Item],
        then: OnOutcome[Result],
        urgency: Urgency,
        caller: fair_queue.Client,
    ) -> Withdrawable:
        def told(outcome: BatchResult[Result] | ServiceError) -> None:
            if not isinstance(outcome, BatchResult):
                self.play.go(self.client)
            then(outcome)

        return self.play.batcher.post(items, told, urgency, caller)


# A rival wants the device at the very moment at which `close` cancels the batch that has it.
GIVEN_UP = Scenario(
    max_batch=1,
    visits=[Visit(Moment(0, 0), count=1, leaves=None)],
    paces=[],
    closing=Closing(Moment(0, 1), timeout_s=0),
    rivals=[Rival(Moment(0, 4), stays_s=0)],
)


# One request can be in time behind the other client's; another cannot, whoever goes first.
SOME_HURRY = Scenario(
    max_batch=1,
    visits=[
        Visit(Moment(0, 0), count=5, leaves=None, client=0),
        Visit(Moment(0, 1), count=5, leaves=None, client=1, timeout_s=60),
        Visit(Moment(0, 2), count=5, leaves=None, client=0, timeout_s=60),
        Visit(Moment(1, 0), count=5, leaves=None, client=1, timeout_s=0.5),
    ],
    paces=[],
    closing=None,
    rivals=[],
)


def test_a_client_that_waits_for_all_items_of_another_is_found_where_some_have_deadlines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def one_by_one(queue: fair_queue.FairQueue[Any]) -> tuple[fair_queue.Line[Any], float]:
        return min(queue.lines(), key=lambda line: line.client.name), inf

    Play(SOME_HURRY).play()
    monkeypatch.setattr(fair_queue.FairQueue, "next", one_by_one)
    with pytest.raises(AssertionError, match="client 0"):
        Play(SOME_HURRY).play()


@settings(max_examples=500, deadline=None)
@example(GIVEN_UP)
@example(SOME_HURRY)
@given(SCENARIOS)
def test_every_submit_resolves_once_with_its_own_result(scenario: Scenario) -> None:
    Play(scenario).play()


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None)
@given(SCENARIOS)
def test_every_submit_resolves_once_with_its_own_result_in_a_long_run(scenario: Scenario) -> None:
    Play(scenario).play()
