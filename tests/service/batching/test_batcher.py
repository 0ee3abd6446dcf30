"""The batcher, with examples. test_batcher_properties.py tests random orders of events."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from models import EngineError
from service.batching.batcher import Batcher
from service.batching.device_turns import DeviceTurns
from service.batching.queue import BatchRecord, BatchResult
from service.errors import EngineFailedError, ServiceError, ShuttingDownError
from tests.support.service import virtual_time
from tests.support.service.desk import Desk, in_virtual_time, letters, outcomes, submit
from tests.support.service.virtual_time import now, turns, until


@in_virtual_time
async def test_an_idle_batcher_dispatches_at_once() -> None:
    desk = Desk()
    await until(5)
    assert await desk.ask("a") == BatchResult(["A"], batch_size=1, queue_s=0, compute_s=1)
    assert now() == 6


@in_virtual_time
async def test_arrivals_during_a_batch_travel_together_in_the_next() -> None:
    desk = Desk()
    first = await desk.submit("a")
    await until(0.25)
    second = await desk.submit("b")
    await until(0.75)
    third = await desk.submit("c")
    assert (desk.batches, desk.batcher.depth) == (["a"], 2)
    await asyncio.gather(first, second, third)
    assert desk.batches == ["a", "bc"]
    assert second.result() == BatchResult(["B"], batch_size=2, queue_s=0.75, compute_s=1)
    assert third.result() == BatchResult(["C"], batch_size=2, queue_s=0.25, compute_s=1)


@in_virtual_time
async def test_a_batch_is_filled_oldest_first_and_never_beyond_max_batch() -> None:
    desk = Desk(max_batch=4)
    tasks = [await desk.submit(group) for group in ["a", "bc", "def", "g"]]
    assert [letters(o) for o in await outcomes(*tasks)] == ["A", "BC", "DEF", "G"]
    assert desk.batches == ["a", "bcde", "fg"]


@in_virtual_time
async def test_a_submit_larger_than_a_batch_comes_back_whole_and_in_order() -> None:
    desk = Desk(max_batch=3)
    answered = await desk.ask("abcdefgh")
    assert answered == BatchResult(list("ABCDEFGH"), batch_size=2, queue_s=2, compute_s=1)
    assert desk.batches == ["abc", "def", "gh"]


@in_virtual_time
async def test_a_submit_of_nothing_has_no_answers() -> None:
    desk = Desk()
    assert (await desk.ask([])).results == []
    assert desk.batches == []


@in_virtual_time
async def test_the_last_of_further_batches_begins_where_two_full_ones_wait() -> None:
    desk = Desk(max_batch=2)
    desk.batcher.spread([DeviceTurns(), DeviceTurns()])
    tasks = [await desk.submit(letter) for letter in "abcde"]
    assert desk.batches == ["a", "b"], "three wait"
    await until(1.5)
    assert desk.batches == ["a", "b", "cd", "e"]
    tasks += [await desk.submit(letter) for letter in "fghi"]
    assert desk.batches[4:] == ["fg"], "four waited"
    await until(2.25)
    assert desk.batches[5:] == ["hi"]
    tasks += [await desk.submit(letter) for letter in "jk"]
    assert desk.batches[6:] == ["j"]
    await until(5)
    tasks += [await desk.submit(letter) for letter in "lmno"]
    assert desk.batches[8:] == ["l", "m"], "nothing waited when a batch ended"
    assert [letters(outcome) for outcome in await outcomes(*tasks)] == list("ABCDEFGHIJKLMNO")


@in_virtual_time
async def test_the_last_of_further_batches_takes_a_single_item_that_waits() -> None:
    desk = Desk(max_batch=2)
    desk.batcher.spread([DeviceTurns(), DeviceTurns()])
    tasks = [await desk.submit(letter) for letter in "ab"]
    await until(0.5)
    tasks += [await desk.submit(letter) for letter in "cdefg"]
    await until(1.2)
    assert desk.batches == ["a", "b", "cd", "ef", "g"]
    tasks.append(await desk.submit("h"))
    await until(1.6)
    assert desk.batches[5:] == ["h"], "when cd ended"
    await outcomes(*tasks)


@in_virtual_time
async def test_the_expected_wait_is_what_the_batches_ahead_will_take() -> None:
    desk = Desk(max_batch=2)
    await desk.ask("a")  # so a batch is known to take 1 s
    tasks = [await desk.submit("b"), await desk.submit("cdef")]
    assert desk.batcher.expected_wait_s() == 3  # b, cd, ef
    await until(1.5)
    assert desk.batcher.expected_wait_s() == 2.5
    await outcomes(*tasks)


@in_virtual_time
async def test_the_expected_wait_grows_with_a_batch_that_takes_longer_than_usual() -> None:
    async def slow(items: Sequence[str]) -> Sequence[str]:
        await asyncio.sleep(100)
        return items

    desk = Desk(slow)
    tasks = [await desk.submit("a"), await desk.submit("b")]
    await until(30)
    assert (
        desk.batcher.expected_wait_s() == 60
    )  # what runs has taken 30 s already, and one is ahead
    await outcomes(*tasks)


@in_virtual_time
async def test_the_expected_wait_follows_a_change_of_pace_within_a_few_batches() -> None:
    seconds = 8.0

    async def run(items: Sequence[str]) -> Sequence[str]:
        await asyncio.sleep(seconds)
        return items

    desk = Desk(run)
    await desk.ask("a")
    seconds = 1.0
    for _ in range(10):
        await desk.ask("a")
    tasks = [await desk.submit("b"), await desk.submit("c")]
    assert 2 <= desk.batcher.expected_wait_s() <= 3
    await outcomes(*tasks)


@in_virtual_time
async def test_the_expected_wait_takes_no_hope_from_batches_that_failed_fast() -> None:
    async def run(items: Sequence[str]) -> Sequence[str]:
        if "x" in items:
            raise RuntimeError
        await asyncio.sleep(4)
        return items

    desk = Desk(run)
    await desk.ask("a")
    for _ in range(10):
        with pytest.raises(EngineFailedError):
            await desk.ask("x")
    tasks = [await desk.submit("b"), await desk.submit("c")]
    assert desk.batcher.expected_wait_s() == 8
    await outcomes(*tasks)


@in_virtual_time
async def test_a_submit_cancelled_while_it_waits_makes_room_and_never_runs() -> None:
    desk = Desk()
    running = await desk.submit("a")
    gone = await desk.submit("bc")
    assert desk.batcher.depth == 2
    gone.cancel()
    await turns(1)
    assert desk.batcher.depth == 0
    stays = await desk.submit("de")
    await outcomes(running, gone, stays)
    assert gone.cancelled()
    assert desk.batches == ["a", "de"]


@in_virtual_time
async def test_a_submit_cancelled_while_it_runs_disturbs_nobody() -> None:
    desk = Desk(max_batch=2)
    first = await desk.submit("a")
    gone = await desk.submit("bcd")
    stays = await desk.submit("e")
    await until(1.5)  # bc is running, d waits
    gone.cancel()
    _, outcome, answers = await outcomes(first, gone, stays)
    assert isinstance(outcome, asyncio.CancelledError)
    assert letters(answers) == "E"
    assert desk.batches == ["a", "bc", "e"]


@in_virtual_time
async def test_a_failed_batch_fails_its_requests_alone_and_the_batcher_lives_on() -> None:
    fault = RuntimeError("out of memory")

    async def run(items: Sequence[str]) -> Sequence[str]:
        await asyncio.sleep(1)
        if "b" in items:
            raise fault
        return items

    desk = Desk(run, max_batch=2)
    tasks = [await desk.submit(group) for group in ["a", "b", "cde", "f"]]
    a, b, cde, f = await outcomes(*tasks)
    assert letters(a) == "a"
    assert isinstance(b, EngineFailedError)
    assert isinstance(cde, EngineFailedError)
    assert b is not cde
    assert b.__cause__ is cde.__cause__ is fault
    assert letters(f) == "f"
    assert desk.batches == ["a", "bc", "f"]  # d and e were withdrawn
    assert letters(await desk.ask("g")) == "g"


@pytest.mark.parametrize("results", [[], ["x"], ["x", "y", "z"], None, 7], ids=repr)
def test_results_that_are_not_one_an_item_fail_the_batch(results: Any) -> None:
    async def run(items: Sequence[str]) -> Any:
        return results

    async def main() -> None:
        desk = Desk(run)
        with pytest.raises(EngineFailedError) as failed:
            await desk.ask("ab")
        assert isinstance(failed.value.__cause__, ValueError | TypeError)

    virtual_time.run(main())


class Panic(BaseException):
    """An exception that `except Exception` does not catch, as a native library may raise."""


@pytest.mark.parametrize("fault", [asyncio.CancelledError(), Panic()], ids=repr)
def test_not_even_a_base_exception_of_run_stops_the_batcher(fault: BaseException) -> None:
    async def run(items: Sequence[str]) -> Sequence[str]:
        if "a" in items:
            raise fault
        return items

    async def main() -> None:
        desk = Desk(run)
        with pytest.raises(EngineFailedError) as failed:
            await desk.ask("a")
        assert failed.value.__cause__ is fault
        assert letters(await desk.ask("b")) == "b"

    virtual_time.run(main())


def test_what_ends_the_process_ends_the_batcher_and_leaves_nobody_waiting() -> None:
    async def run(items: Sequence[str]) -> Sequence[str]:
        await asyncio.sleep(1)
        raise KeyboardInterrupt

    async def main() -> None:
        tasks.extend([await desk.submit("abc"), await desk.submit("d")])
        await outcomes(*tasks)

    tasks: list[asyncio.Task[BatchResult[str]]] = []
    with asyncio.Runner(loop_factory=virtual_time.VirtualTimeLoop) as runner:
        desk = Desk(run, max_batch=2)
        with pytest.raises(KeyboardInterrupt):
            runner.run(main())
        ended = runner.run(outcomes(*tasks))
        assert [type(outcome) for outcome in ended] == [ShuttingDownError] * 2
        with pytest.raises(ShuttingDownError):
            runner.run(desk.ask("e"))


@pytest.mark.parametrize("steps", [0, 3], ids=["before its first step", "while it runs a batch"])
def test_a_worker_cancelled_from_outside_leaves_nobody_waiting(steps: int) -> None:
    async def main() -> None:
        desk = Desk(max_batch=2)
        # The worker's first step comes in the turn after the submit's.
        task = asyncio.create_task(desk.ask("abc"))
        await turns(1)
        await turns(steps)
        (consumer,) = (t for t in asyncio.all_tasks() if t.get_name() == "batcher")
        consumer.cancel()
        with pytest.raises(ShuttingDownError):
            await task
        with pytest.raises(ShuttingDownError):
            await desk.ask("d")

    virtual_time.run(main())


@in_virtual_time
async def test_run_sees_nothing_of_the_context_of_the_caller_that_happened_to_come_first() -> None:
    trace = ContextVar("trace", default="none")

    async def run(items: Sequence[str]) -> Sequence[str]:
        return [trace.get()] * len(items)

    desk = Desk(run)
    trace.set("first caller")
    assert letters(await desk.ask("a")) == "none"


@in_virtual_time
async def test_a_worker_cancelled_from_outside_ends_even_if_run_swallows_the_cancellation() -> None:
    async def stubborn(items: Sequence[str]) -> Sequence[str]:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1)
        return items

    desk = Desk(stubborn, max_batch=1)
    running, waiting = await desk.submit("a"), await desk.submit("b")
    (consumer,) = (t for t in asyncio.all_tasks() if t.get_name() == "batcher")
    consumer.cancel()
    first, second = await outcomes(running, waiting)
    assert letters(first) == "a"
    assert isinstance(second, ShuttingDownError)
    assert desk.batches == ["a"]


@in_virtual_time
async def test_what_a_caller_does_to_its_list_after_submitting_changes_nothing() -> None:
    desk = Desk()
    running = await desk.submit("a")
    mine = ["b", "c"]
    task = asyncio.create_task(desk.ask(mine))
    await turns(1)
    mine.clear()
    _, answers = await outcomes(running, task)
    assert letters(answers) == "BC"


@in_virtual_time
async def test_on_batch_hears_of_every_batch() -> None:
    async def run(items: Sequence[str]) -> Sequence[str]:
        await asyncio.sleep(2)
        return items if "b" not in items else []

    desk = Desk(run)
    first = await desk.submit("a")
    await until(0.5)
    second = await desk.submit("bc")
    await outcomes(first, second)
    assert desk.records == [
        BatchRecord(size=1, compute_s=2, failed=False),
        BatchRecord(size=2, compute_s=2, failed=True),
    ]


@in_virtual_time
async def test_a_fault_of_on_batch_is_logged_and_costs_no_answer() -> None:
    def observe(_: BatchRecord) -> None:
        raise fault

    async def run(items: Sequence[str]) -> Sequence[str]:
        return items

    fault = ZeroDivisionError()
    logged: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: logged.append(context))
    batcher = Batcher[str, str](run, max_batch=1, on_batch=observe)
    assert letters(await submit(batcher, "ab")) == "ab"
    assert [context["exception"] for context in logged] == [fault, fault]


def test_a_batcher_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="max_batch 0 must be at least 1"):
        Desk(max_batch=0)


@pytest.mark.parametrize("fails", [False, True])
def test_items_are_let_go_at_once_not_by_the_garbage_collector(fails: bool) -> None:
    class Letter(str):
        """A text to which weak references are possible."""

    async def run(items: Sequence[str]) -> Sequence[str]:
        if fails:
            raise EngineError("the device fell off the bus")
        return ["done"] * len(items)

    @in_virtual_time
    async def check() -> None:
        desk, outcomes = Desk(run), list[BatchResult[str] | ServiceError]()
        item = Letter("a")
        left = weakref.ref(item)
        desk.batcher.post([item], outcomes.append)
        del item
        await until(1)
        (outcome,) = outcomes
        assert isinstance(outcome, EngineFailedError) == fails
        del outcome
        outcomes.clear()
        assert left() is None

    gc.disable()
    try:
        check()
    finally:
        gc.enable()
