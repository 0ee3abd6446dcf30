"""Honest clients during floods, in virtual time: shares of the engine, latencies, priorities."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from random import Random
from statistics import median

import pytest

from benchmarks.simulation.workloads import PROFILES, capacity
from service.batching.batcher import Batcher
from service.batching.latency import Latency
from service.batching.policy import NO_HURRY, Urgency, due
from service.batching.queue import Backlog, Posted
from service.errors import DeadlineError
from service.fair_queue import Client
from tests.support.service import virtual_time
from tests.support.service.desk import submit
from tests.support.service.virtual_time import now, turns, until

HONEST = Client("honest")


class Desk:
    """A batcher whose batches of n take L(n), and the outcomes of its clients."""

    def __init__(self, seconds: Sequence[float], end: float = 0.0) -> None:
        self.seconds = seconds
        self.end = end or 200 * seconds[-1]  # of what clients ask
        self.engine_s: Counter[str] = Counter()  # each item has an equal part of its batch
        self.batches: list[list[str]] = []
        self.took: list[float] = []  # by honest requests
        self.batcher = Batcher[str, str](
            self.run,
            max_batch=len(seconds),
            latency=Latency(tuple(seconds)),
            clock=now,
            timer_error_s=0,
        )

    async def run(self, items: Sequence[str]) -> Sequence[str]:
        self.batches.append(list(items))
        took = self.seconds[len(items) - 1]
        await asyncio.sleep(took)
        for item in items if now() < self.end else ():
            self.engine_s[item] += took / len(items)  # type: ignore[assignment]
        return items

    async def ask(self, client: Client, items: int, urgency: Urgency = NO_HURRY) -> float:
        began = now()
        await submit(self.batcher, [client.name] * items, urgency, client)
        return now() - began

    async def flood(self, client: Client, urgency: Urgency = NO_HURRY) -> None:
        """Send 64 images at a time on two connections, without a pause."""

        async def connection() -> None:
            while now() < self.end:
                await self.ask(client, 64, urgency)

        await asyncio.gather(connection(), connection())

    async def be_patient(self, client: Client, items: int) -> None:
        """Send requests without a deadline on two connections, without a pause."""

        async def connection() -> None:
            while True:
                await self.ask(client, items)

        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(connection())

    async def be_honest(self, connections: int, think_s: float) -> None:
        async def connection(number: int) -> None:
            await asyncio.sleep(0.0003 * number)
            while now() < self.end:
                self.took.append(await self.ask(HONEST, 1))
                await asyncio.sleep(think_s)

        await asyncio.gather(*map(connection, range(connections)))


def latency_beside(
    seconds: Sequence[float], floods: int, connections: int = 1, think: float = 0.0
) -> tuple[float, Desk]:
    """Return the honest client's p50. The client pauses for `think` · L(1) between requests."""
    desk = Desk(seconds)

    async def main() -> None:
        await asyncio.gather(
            desk.be_honest(connections, max(0.0001, think * seconds[0])),
            *(desk.flood(Client(f"hostile {number}")) for number in range(floods)),
        )
        await desk.batcher.close()

    virtual_time.run(main())
    return median(desk.took), desk


@pytest.mark.parametrize("floods", [1, 2, 4, 7])
@pytest.mark.parametrize("profile", ["flat", "linear", "steps"])
def test_with_k_floods_an_honest_clients_p50_is_at_most_k_plus_1_times_as_long(
    profile: str, floods: int
) -> None:
    seconds = PROFILES[profile]
    for connections, think in ((1, 5.0), (8, 0.1)):
        alone, _ = latency_beside(seconds, 0, connections, think)
        beside, _ = latency_beside(seconds, floods, connections, think)
        assert beside <= (floods + 1) * alone * 1.05, (connections, think)


@pytest.mark.parametrize("profile", ["linear", "steps"])
def test_even_one_that_asks_again_at_once(profile: str) -> None:
    """On these engines, large batches are not faster per image. The next test has a "flat" engine,
    on which they are."""
    alone, _ = latency_beside(PROFILES[profile], 0)
    beside, _ = latency_beside(PROFILES[profile], 1)
    assert beside <= 2 * alone * 1.05


def test_a_batch_that_pays_may_take_a_little_longer_for_the_others_sake() -> None:
    """If batches had single images, the other client would lose four fifths of its throughput."""
    alone, _ = latency_beside(PROFILES["flat"], 0)
    beside, desk = latency_beside(PROFILES["flat"], 1)
    assert beside <= 2.4 * alone
    items = sum(len(batch) - batch.count("honest") for batch in desk.batches)
    best = max(n / took for n, took in enumerate(PROFILES["flat"], 1))
    assert items / desk.end > 0.4 * best


@pytest.mark.parametrize("floods", [1, 3])
def test_with_k_floods_an_honest_client_that_wants_the_engine_gets_its_part(floods: int) -> None:
    _, desk = latency_beside(PROFILES["flat"], floods, connections=16)
    assert desk.engine_s["honest"] / desk.engine_s.total() >= 0.97 / (floods + 1)


def test_the_weight_of_a_key_is_its_share() -> None:
    desk = Desk(PROFILES["flat"], end=1.0)

    async def main() -> None:
        heavy, light = Client("heavy", 3.0), Client("light", 1.0)
        await asyncio.gather(desk.flood(heavy), desk.flood(light))
        await desk.batcher.close()

    virtual_time.run(main())
    assert desk.engine_s["heavy"] / desk.engine_s["light"] == pytest.approx(3, rel=0.05)


def test_a_flood_of_the_default_priority_does_not_grow_old_before_a_higher_one() -> None:
    """The images of the flood have waited for minutes, but its client is served all the time."""
    desk = Desk((0.05,) * 4, end=20)
    took: list[float] = []

    async def main() -> None:
        flood = asyncio.create_task(desk.flood(Client("hostile")))
        await until(10.0)
        for _ in range(20):
            took.append(await desk.ask(HONEST, 1, Urgency(priority=1)))
        await flood
        await desk.batcher.close()

    virtual_time.run(main())
    assert max(took) <= 0.1 + 1e-6


def test_a_deadline_is_judged_by_the_turns_that_go_before_it() -> None:
    """128 images wait. Before each image of this client, at most one image of the other client
    runs."""
    desk = Desk((0.05,) * 4)

    async def main() -> None:
        flood = asyncio.create_task(desk.flood(Client("hostile")))
        await turns(5)
        await until(0.01)
        assert await desk.ask(HONEST, 1, Urgency(now() + 0.1)) <= 0.1
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)
        await desk.batcher.close(0)

    virtual_time.run(main())


def test_requests_with_deadlines_of_several_clients_are_answered_or_refused_once() -> None:
    desk = Desk((0.05, 0.08, 0.1, 0.12))
    outcomes: Counter[str] = Counter()

    async def one(client: Client, items: int, timeout_s: float) -> None:
        try:
            took = await desk.ask(client, items, Urgency(now() + timeout_s))
            outcomes["in time" if took <= timeout_s + 1e-6 else "late"] += 1
        except Exception as error:  # noqa: BLE001  counted
            outcomes[type(error).__name__] += 1

    async def main() -> None:
        asked = [
            one(Client(f"client {number % 5}"), 1 + number % 7, 0.1 + 0.05 * (number % 11))
            for number in range(200)
        ]
        await asyncio.gather(*asked)
        await desk.batcher.close()

    virtual_time.run(main())
    assert outcomes.total() == 200
    assert outcomes.keys() == {"in time", "DeadlineError"}
    assert outcomes["in time"] > 5


HIGH, LOW = 1, 2


@pytest.mark.parametrize(
    ("profile", "clients", "least"),
    [
        # Whose requests, at what share of the capacity, and with what priority.
        ("linear", [("honest", 0.2, 0), ("flood", 2.0, 0)], 0.95),
        ("steps", [("honest", 0.2, 0), ("flood", 2.0, 0)], 0.95),
        ("pairs", [("honest", 0.2, 0), ("flood", 2.0, 0)], 0.9),
        ("linear", [("honest", 0.5, HIGH), ("flood", 1.5, LOW)], 0.99),
        ("flat", [("honest", 0.5, HIGH), ("flood", 1.5, LOW)], 0.95),
        ("flat", [("one", 0.5, HIGH), ("one", 1.5, LOW)], 0.95),
    ],
)
def test_who_asks_for_little_or_matters_more_is_not_refused_for_the_others(
    profile: str, clients: Sequence[tuple[str, float, int]], least: float
) -> None:
    """Each request has a timeout of 3 L(8). A plan that gives all answers the same weight would
    refuse up to two thirds of the first client's requests, because batches without them can be
    larger."""
    seconds = PROFILES[profile]
    desk = Desk(seconds)
    asked, answered = Counter[int](), Counter[int]()

    async def one(number: int, client: Client, priority: int) -> None:
        asked[number] += 1
        with suppress(DeadlineError):
            await desk.ask(client, 1, Urgency(now() + 3 * seconds[-1], priority))
            answered[number] += 1

    async def sends(number: int, name: str, load: float, priority: int) -> None:
        draw, client = Random(number), Client(name)
        async with asyncio.TaskGroup() as group:
            for _ in range(int(600 * load)):
                await asyncio.sleep(draw.expovariate(load * capacity(seconds)))
                group.create_task(one(number, client, priority))

    async def main() -> None:
        await asyncio.gather(*(sends(number, *habit) for number, habit in enumerate(clients)))
        await desk.batcher.close()

    virtual_time.run(main())
    assert answered[0] >= least * asked[0], (answered, asked)
    assert answered[1] > 0.1 * asked[1]


@pytest.mark.parametrize("clients", [1, 20])
@pytest.mark.parametrize("profile", ["linear", "pairs"])
def test_who_has_no_deadline_is_not_refused_for_who_has_one(profile: str, clients: int) -> None:
    seconds = PROFILES[profile]
    desk, draw = Desk(seconds), Random(1)
    refused = 0

    async def with_deadline(client: Client) -> None:
        nonlocal refused
        try:
            await desk.ask(client, 1, Urgency(now() + 1.5 * seconds[-1]))
        except DeadlineError:
            refused += 1

    async def main() -> None:
        flood = asyncio.create_task(desk.be_patient(Client("patient"), 8))
        async with asyncio.TaskGroup() as group:
            for number in range(400):
                await asyncio.sleep(draw.expovariate(0.8 * capacity(seconds)))
                group.create_task(with_deadline(Client(f"client {number % clients}")))
        assert not flood.done()
        flood.cancel()
        await desk.batcher.close(0)

    virtual_time.run(main())
    assert 0 < refused < 400


def test_who_was_served_while_alone_has_not_waited_since_before() -> None:
    waiting = Backlog[str, None]()
    for client, items, now_, priority in (("alone", 2, 0.0, 0), ("high", 1, 10.5, 1)):
        if now_:
            waiting.take(1, 10.0)
        urgency = Urgency(priority=priority)
        moment, own = due(now_, urgency), (client,) * items
        waiting.enter(Posted(waiting, own, now_, None, Client(client), moment, urgency, items))
    assert [request.client.name for request, _ in waiting.in_order(10.5)] == ["high", "alone"]


def test_a_priority_counts_more_than_what_its_client_has_waiting_besides() -> None:
    waiting = Backlog[str, None]()
    for priority, items in ((1, 1), (9, 120)):
        urgency = Urgency(1.0, priority)
        own = ("a",) * items
        moment = due(0.0, urgency)
        waiting.enter(Posted(waiting, own, 0.0, None, Client("a"), moment, urgency, items))
    for number in range(15):
        urgency, client = Urgency(1.0), Client(f"client {number}")
        waiting.enter(Posted(waiting, ("b",), 0.0, None, client, due(0.0, urgency), urgency, 1))
    claims = waiting.claims(0.0)
    first = max(claims, key=attrgetter("weight"))
    assert first.items == 1
    assert first.weight > sum(claim.weight * claim.items for claim in claims if claim != first)


def test_clients_take_turns_by_what_their_items_cost() -> None:
    backlog: Backlog[str, str] = Backlog()
    for number in range(40):
        for name, cost in (("dear", 4.0), ("cheap", 1.0)):
            backlog.enter(
                Posted(
                    *(backlog, (name,), 0.0, None, Client(name), due(0.0) + number, NO_HURRY, 1),
                    cost=cost,
                )
            )
    served = Counter[str]()
    for _ in range(5):
        served.update(backlog.take(5, 0.0).items)
        assert abs(4 * served["dear"] - served["cheap"]) <= 4
