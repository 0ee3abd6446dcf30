"""The batcher together with its policy, in virtual time: waits and refusals."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from math import inf
from random import Random

import pytest

from service.batching.batcher import Batcher
from service.batching.device_turns import DeviceTurns
from service.batching.latency import Latency
from service.batching.policy import Urgency
from service.batching.queue import BatchResult
from service.errors import DeadlineError, EngineFailedError
from tests.support.service.desk import in_virtual_time, submit
from tests.support.service.running import in_flight
from tests.support.service.virtual_time import now, turns, until

# L(1) = 1 ms, L(8) = 1.6 ms; with eight at once half as many again a second as in two fours.
FLAT = Latency(tuple(0.001 + 0.0006 * (n - 1) / 7 for n in range(1, 9)))


class Server:
    """A batcher whose batches of n take L(n), and the outcomes of its requests."""

    def __init__(
        self,
        latency: Latency = FLAT,
        *,
        known: bool = True,
        device: DeviceTurns | None = None,
        weight: float = 1.0,
    ) -> None:
        self._latency = latency
        self.slower = 1.0
        self.sizes: list[int] = []
        self.order: list[str] = []
        self.latencies: list[float] = []
        self.queued: list[float] = []
        self.batcher = Batcher[str, str](
            self._run,
            max_batch=8,
            latency=latency if known else None,
            turns=[device] if device else (),
            weight=weight,
            clock=now,
            timer_error_s=0,
        )

    async def _run(self, items: Sequence[str]) -> Sequence[str]:
        self.sizes.append(len(items))
        self.order += items
        await asyncio.sleep(self._latency.of(len(items)) * self.slower)
        return items

    async def ask(
        self, name: str = "a", timeout_s: float = inf, priority: int = 0
    ) -> BatchResult[str]:
        began = now()
        answer = await submit(self.batcher, [name], Urgency(began + timeout_s, priority))
        self.latencies.append(now() - began)
        self.queued.append(answer.queue_s)
        return answer

    async def client(self, think_s: float, requests: int, seed: int) -> None:
        draw = Random(seed)
        for _ in range(requests):
            await asyncio.sleep(think_s * draw.uniform(0.8, 1.2))
            await self.ask()


def start(server: Server, name: str, timeout_s: float = inf, priority: int = 0) -> asyncio.Task:  # type: ignore[type-arg]
    return asyncio.create_task(server.ask(name, timeout_s, priority))


# --- waiting -------------------------------------------------------------------------------------


@in_virtual_time
async def test_eight_steady_clients_travel_together_and_are_answered_sooner() -> None:
    server = Server()
    await asyncio.gather(*(server.client(0.0001, 200, seed) for seed in range(8)))
    settled = server.sizes[len(server.sizes) // 2 :]
    assert Counter(settled).most_common(1)[0][0] == 8
    assert sum(settled) / len(settled) > 7.5
    median = sorted(server.latencies[len(server.latencies) // 2 :])[len(server.latencies) // 4]
    in_two_fours = 2 * FLAT.of(4)
    assert median < 0.7 * in_two_fours


@in_virtual_time
async def test_without_knowing_how_long_batches_take_they_find_together_too() -> None:
    server = Server(known=False)
    await asyncio.gather(*(server.client(0.0001, 300, seed) for seed in range(8)))
    settled = server.sizes[len(server.sizes) // 2 :]
    assert sum(settled) / len(settled) > 7


@in_virtual_time
async def test_a_single_client_never_waits() -> None:
    server = Server()
    await server.client(0.0001, 500, seed=0)
    assert set(server.queued) == {0.0}


@in_virtual_time
async def test_a_client_that_is_left_alone_waits_no_longer_than_it_takes_to_notice() -> None:
    server = Server()
    await asyncio.gather(*(server.client(0.0001, 100, seed) for seed in range(7)))
    server.queued.clear()
    await server.client(0.0001, 200, seed=7)
    assert max(server.queued) <= FLAT.of(1), "the bound of any wait"
    assert set(server.queued[30:]) == {0.0}


@pytest.mark.parametrize("load", [0.1, 0.5, 0.8])
def test_of_poisson_arrivals_hardly_any_waits_for_company(load: float) -> None:
    @in_virtual_time
    async def play() -> None:
        server = Server()
        draw = Random(1)
        tasks = []
        waits = 0
        for _ in range(3000):
            await asyncio.sleep(draw.expovariate(load * 8 / FLAT.of(8)))
            tasks.append(asyncio.create_task(server.ask()))
            await turns(4)
            waits += server.batcher.depth > 0 and not in_flight(server.batcher)
        await asyncio.gather(*tasks)
        assert waits < 0.01 * 3000

    play()


@in_virtual_time
async def test_a_cancelled_client_does_not_delay_a_batch() -> None:
    server = Server()
    clients = [asyncio.create_task(server.client(0.0001, 10_000, seed)) for seed in range(8)]
    await until(0.3)
    for client in clients[:4]:
        client.cancel()
    await until(0.31)
    server.sizes.clear()
    server.latencies.clear()
    await until(0.4)
    assert sum(server.sizes) / len(server.sizes) > 3.8, "the other four travel together"
    assert max(server.latencies) < 2 * FLAT.of(4)
    for client in clients:
        client.cancel()


@in_virtual_time
async def test_close_waits_for_no_more_arrivals() -> None:
    server = Server()
    await asyncio.gather(*(server.client(0.0001, 100, seed) for seed in range(8)))
    late = start(server, "late")  # seven more are expected
    await turns(3)
    assert server.batcher.depth == 1
    began = now()
    await server.batcher.close()
    assert now() - began == pytest.approx(FLAT.of(1))
    await late


# --- deadlines -----------------------------------------------------------------------------------


@in_virtual_time
async def test_a_request_that_cannot_make_it_is_refused_before_it_waits() -> None:
    server = Server()
    await until(1)
    with pytest.raises(
        DeadlineError, match=r"done in 1\.0 ms, but its deadline is in 0\.5 ms"
    ) as e:
        await server.ask(timeout_s=0.0005)
    assert (e.value.code, now()) == (504, 1)
    assert e.value.expected_s == pytest.approx(0.001)
    running = start(server, "a")
    await turns(3)
    with pytest.raises(DeadlineError, match=r"done in 2\.0 ms"):
        await server.ask(timeout_s=0.0015)
    await running
    assert server.order == ["a"]


@in_virtual_time
async def test_who_is_alone_may_have_a_full_batch_waiting_beyond_what_can_be_in_time() -> None:
    server = Server()
    running = start(server, "a")
    await turns(3)
    waiting = [start(server, "b", timeout_s=0.0027) for _ in range(16)]  # 1 ms of a, and L(8)
    await turns(3)
    assert server.batcher.depth == 16
    with pytest.raises(DeadlineError):
        server.batcher.check_deadline(1, Urgency(now() + 0.0027))
    outcomes = await asyncio.gather(running, *waiting, return_exceptions=True)
    assert sum(isinstance(outcome, DeadlineError) for outcome in outcomes) == 8
    assert server.sizes == [1, 8]


@in_virtual_time
async def test_a_request_whose_deadline_has_passed_is_told_so() -> None:
    server = Server()
    await until(1)
    with pytest.raises(DeadlineError, match=r"deadline passed 250\.0 ms ago"):
        await server.ask(timeout_s=-0.25)


@in_virtual_time
async def test_one_that_was_let_in_is_refused_as_soon_as_the_engine_lets_it_down() -> None:
    server = Server()
    server.slower = 10
    first = start(server, "a")
    await turns(3)
    second = start(server, "b", timeout_s=0.0025)  # a ends at 1 ms, b at 2 ms: so it seems
    with pytest.raises(DeadlineError):
        await second
    assert now() == pytest.approx(0.0015), "when even L(1) is too long"
    assert server.batcher.depth == 0
    await first
    assert server.order == ["a"], "no batch runs for withdrawn requests"


@in_virtual_time
async def test_an_urgent_request_gets_a_smaller_batch() -> None:
    server = Server()
    running = start(server, "a")
    await turns(3)
    urgent = start(server, "u", timeout_s=0.0023)  # 1 ms of a, and L(4) at most
    patient = [start(server, "p", timeout_s=0.1) for _ in range(7)]
    await asyncio.gather(running, urgent, *patient)
    assert server.sizes == [1, 4, 4]
    assert server.order[1] == "u"


@in_virtual_time
async def test_under_overload_what_is_let_in_is_in_time() -> None:
    """At twice the capacity, about half of the requests must be refused, and no accepted request
    may be late."""
    server = Server()
    draw = Random(0)
    tasks = []
    for _ in range(4000):
        await asyncio.sleep(draw.expovariate(2 * 8 / FLAT.of(8)))
        tasks.append(start(server, "a", timeout_s=0.006))
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    refused = sum(isinstance(outcome, DeadlineError) for outcome in outcomes)
    assert refused == pytest.approx(2000, rel=0.08)
    assert max(server.latencies) <= 0.006 + 1e-9
    assert sum(server.sizes) / len(server.sizes) > 7


@in_virtual_time
async def test_without_a_deadline_nobody_is_refused() -> None:
    server = Server()
    server.slower = 100
    await asyncio.gather(*(server.ask() for _ in range(50)), server.ask(timeout_s=100))


# --- priorities ----------------------------------------------------------------------------------


@in_virtual_time
async def test_the_higher_priority_goes_first_and_equals_as_they_came() -> None:
    server = Server()
    running = start(server, "a")
    await turns(3)
    names = {"low": 3, "first": 0, "high": 1, "second": 2, "lowest": 9}
    tasks = [start(server, name, priority=priority) for name, priority in names.items()]
    await turns(3)
    await asyncio.gather(running, *tasks)
    assert server.order == ["a", "high", "first", "second", "low", "lowest"]


@in_virtual_time
async def test_a_low_priority_is_not_starved() -> None:
    """Requests of the default priority keep the engine full. The request with the low priority runs
    a second after its arrival."""
    server = Server()
    flood = [asyncio.create_task(server.client(0.0, 100_000, seed)) for seed in range(24)]
    await until(0.1)
    await server.ask("low", priority=3)
    assert 1.0 < now() - 0.1 < 1.01
    for client in flood:
        client.cancel()


# --- turns ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_one_models_flood_leaves_another_its_share_of_the_device() -> None:
    device = DeviceTurns()
    flooded, other = Server(device=device), Server(device=device)
    flood = [asyncio.create_task(flooded.client(0.0, 100_000, seed)) for seed in range(64)]
    await until(0.1)
    await other.client(0.0001, 100, seed=1)
    assert max(other.latencies) < FLAT.of(8) + FLAT.of(1) + 1e-4, "after the batch that runs"
    for client in flood:
        client.cancel()


@in_virtual_time
async def test_two_floods_share_the_device_by_weight() -> None:
    device = DeviceTurns()
    servers = [Server(device=device, weight=3.0), Server(device=device)]
    clients = [
        asyncio.create_task(server.client(0.0, 100_000, seed))
        for server in servers
        for seed in range(32)
    ]
    await until(2)
    many, few = (len(server.latencies) for server in servers)
    assert many / few == pytest.approx(3, rel=0.05)
    for client in clients:
        client.cancel()


@in_virtual_time
async def test_batches_of_models_that_share_a_device_never_overlap() -> None:
    device = DeviceTurns()
    inside = 0

    def batcher() -> Batcher[str, str]:
        return Batcher(run, max_batch=4, turns=[device], clock=now, timer_error_s=0)

    async def run(items: Sequence[str]) -> Sequence[str]:
        nonlocal inside
        inside += 1
        assert inside == 1
        await asyncio.sleep(0.001)
        inside -= 1
        if "x" in items:
            raise RuntimeError
        return items

    async def client(server: Batcher[str, str], seed: int) -> None:
        draw = Random(seed)
        for _ in range(100):
            await asyncio.sleep(draw.expovariate(1 / 0.002))
            with contextlib.suppress(EngineFailedError):
                await submit(server, [draw.choice("abcx")])

    servers = [batcher() for _ in range(3)]
    await asyncio.gather(*(client(server, seed) for server in servers for seed in range(4)))
    for server in servers:
        await server.close()
    assert device.holder is None


@in_virtual_time
async def test_a_deadline_counts_the_batch_of_another_model() -> None:
    device = DeviceTurns()
    server, other = Server(device=device), Server(device=device)
    running = start(other, "a")
    await turns(3)
    with pytest.raises(DeadlineError, match=r"done in 2\.0 ms"):
        await server.ask(timeout_s=0.0015)
    await server.ask(timeout_s=0.0025)
    await running


@in_virtual_time
async def test_a_request_that_waits_for_another_models_batch_is_let_down_in_time() -> None:
    device = DeviceTurns()
    server, other = Server(device=device), Server(device=device)
    other.slower = 10
    running = start(other, "a")
    await turns(3)
    with pytest.raises(DeadlineError):
        await server.ask(timeout_s=0.0025)
    assert now() == pytest.approx(0.0015)
    await running
    await server.ask()


@in_virtual_time
async def test_closing_one_model_frees_the_device_for_the_others() -> None:
    device = DeviceTurns()
    first, second = Server(device=device), Server(device=device)
    first.slower = 1000
    stuck, waiting = start(first, "a"), start(second, "b")
    await turns(3)
    await first.batcher.close(timeout_s=0)
    assert (await waiting).results == ["b"]
    await asyncio.gather(stuck, return_exceptions=True)
    waiting = start(second, "c")
    await turns(3)
    await second.batcher.close()
    assert (await waiting).results == ["c"]
