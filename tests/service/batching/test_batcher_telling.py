"""The code that posts a request is told the outcome in one call, exactly once, or never if the
request is withdrawn."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from service.batching.batcher import Batcher
from service.batching.device_turns import DeviceTurns
from service.batching.latency import Latency
from service.batching.queue import BatchResult
from tests.support.service.desk import Desk, in_virtual_time
from tests.support.service.running import in_flight
from tests.support.service.virtual_time import now, turns, until


@in_virtual_time
async def test_a_request_withdrawn_in_the_very_turn_of_its_dispatch_never_runs() -> None:
    desk = Desk()
    told: list[object] = []
    gone = desk.batcher.post("a", told.append)
    desk.batcher.post("b", told.append)
    gone.withdraw()  # both wait, the worker is about to step
    await until(2)
    assert desk.batches == ["b"]
    assert told == [BatchResult(["B"], batch_size=1, queue_s=0, compute_s=1)]


@in_virtual_time
async def test_a_request_withdrawn_in_the_turn_of_its_answer_is_not_told() -> None:
    desk = Desk()
    told: list[object] = []
    requests = [desk.batcher.post(letter, told.append) for letter in "ab"]
    await until(1)
    while in_flight(desk.batcher):
        await turns(1)
    assert told == [], "the results are there, and to be told soon"
    requests[0].withdraw()
    await turns(1)
    assert [outcome.results for outcome in told if isinstance(outcome, BatchResult)] == [["B"]]


@in_virtual_time
async def test_a_fault_of_one_listener_costs_nobody_else_an_answer() -> None:
    def fail(_: object) -> None:
        raise fault

    fault = ZeroDivisionError()
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    desk = Desk()
    told: list[object] = []
    desk.batcher.post("a", fail)
    desk.batcher.post("b", told.append)
    await until(2)
    assert told == [BatchResult(["B"], batch_size=2, queue_s=0, compute_s=1)]
    assert [context["exception"] for context in logged] == [fault]


@in_virtual_time
async def test_batches_that_take_no_time_leave_the_event_loop_its_turns() -> None:
    async def run(items: Sequence[str]) -> Sequence[str]:
        return items

    told: list[object] = []
    short = Latency.measured({1: 1e-6, 2: 1e-6}, 2)
    batcher = Batcher[str, str](run, max_batch=2, latency=short, clock=now)
    for _ in range(50):
        batcher.post("ab", told.append)
    seen = [0]
    while len(told) < 50:
        await turns(1)
        seen.append(len(told))
    assert max(after - before for before, after in pairwise(seen)) == 1
    await batcher.close()


async def events_of(waiting: str) -> list[str]:
    """Return the short batches and answers, in order, where this waits behind `ab`."""
    events: list[str] = []
    gate = asyncio.Event()

    async def run(items: Sequence[str]) -> Sequence[str]:
        events.append("".join(items))
        await gate.wait()
        return [item.upper() for item in items]

    def then(outcome: BatchResult[str] | BaseException) -> None:
        assert isinstance(outcome, BatchResult)
        events.append("".join(outcome.results))

    short = Latency.measured({1: 1e-6, 2: 1e-6}, 2)
    batcher = Batcher[str, str](run, max_batch=2, latency=short, clock=now)
    batcher.spread([DeviceTurns()])
    batcher.post("ab", then)
    await turns(3)
    batcher.post(waiting, then)
    gate.set()
    await turns(20)
    await batcher.close()
    return events


@in_virtual_time
async def test_with_a_reserve_a_full_short_batch_begins_before_answers_are_made() -> None:
    assert await events_of("cd") == ["ab", "cd", "AB", "CD"]
    assert await events_of("c") == ["ab", "AB", "c", "C"]
