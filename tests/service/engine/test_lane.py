"""Clients take turns for the threads of a lane. Withdrawn work is not done.

`tests/service/images/test_decode_pool.py` tests memory budgets and costs.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from service.engine.lane import Cost, Lane, Work
from service.engine.threads import ThreadPool
from service.fair_queue import ANYONE, Client
from tests.support.servers.served import run
from tests.support.service.client import until

HOSTILE, HONEST = Client("hostile"), Client("honest")


class Table:
    """Work for a lane. Each item ends when its gate opens."""

    def __init__(self, threads: int, *, shared: bool = False) -> None:
        self.lane = Lane(ThreadPool("test", threads), threads, shared=shared)
        self.begun: list[str] = []
        self.ended: list[tuple[str, Exception | None]] = []
        self.gates: dict[str, threading.Event] = {}

    async def close(self) -> None:
        await until(lambda: not self.lane.running)
        self.lane.pool.close()

    def work(self, name: str) -> Callable[[], str]:
        gate = self.gates[name] = threading.Event()

        def wait() -> str:
            self.begun.append(name)
            gate.wait(60)
            return name

        return wait

    def post(self, name: str, client: Client = ANYONE, seconds: float = 0.0) -> Work | None:
        cost = Cost(seconds=seconds)
        return self.lane.post(cost, self.work(name), partial(self._end, name), client)

    def _end(self, name: str, result: Any, error: Exception | None) -> None:
        assert error is not None or result == name
        self.ended.append((name, error))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.ended]

    def open(self) -> None:
        for gate in self.gates.values():
            gate.set()


@run
async def test_one_client_leaves_a_thread_to_others() -> None:
    table = Table(2, shared=True)
    try:
        for number in range(8):
            table.post(f"hostile {number}", HOSTILE)
        await until(lambda: table.begun == ["hostile 0"])
        table.post("honest", HONEST)
        await until(lambda: table.begun == ["hostile 0", "honest"])
        table.gates["honest"].set()
        await until(lambda: table.names == ["honest"])
        await asyncio.sleep(0.02)
        assert table.begun == ["hostile 0", "honest"]
    finally:
        table.open()
    await until(lambda: len(table.ended) == 9)
    await table.close()
    assert not table.lane.clients


@run
async def test_clients_take_turns_for_one_thread() -> None:
    table = Table(1, shared=True)
    try:
        for number in range(4):
            table.post(f"hostile {number}", HOSTILE)
        table.post("honest 0", HONEST)
        table.post("honest 1", HONEST)
    finally:
        table.open()
    await until(lambda: len(table.ended) == 6)
    assert table.begun.index("honest 0") < table.begun.index("hostile 2")
    assert table.begun.index("honest 1") < table.begun.index("hostile 3")
    own = [name for name in table.begun if name.startswith("hostile")]
    assert own == sorted(own)
    await table.close()


@run
async def test_the_thread_that_a_client_leaves_goes_to_the_least_served() -> None:
    table, costly, cheap = Table(2, shared=True), Client("costly"), Client("cheap")
    try:
        table.post("hostile 0", HOSTILE)
        table.post("first")
        table.post("hostile 1", HOSTILE)  # whose turn it stays
        for number in range(2):
            table.post(f"costly {number}", costly, 5.0)
            table.post(f"cheap {number}", cheap, 1.0)
        for name in ("first", "costly 0", "cheap 0", "cheap 1", "costly 1"):
            await until(partial(table.begun.__contains__, name))
            table.gates[name].set()
    finally:
        table.open()
    await until(lambda: len(table.ended) == 7)
    begun = [name for name in table.begun if not name.startswith("hostile")]
    assert begun == ["first", "costly 0", "cheap 0", "cheap 1", "costly 1"]
    await table.close()


@run
async def test_work_that_takes_no_time_counts_as_a_turn() -> None:
    """Otherwise a client of weight 2 would get no more turns than the others."""
    table = Table(1)
    try:
        table.post("first")
        for number in range(6):
            table.post(f"single {number}", HONEST)
            table.post(f"double {number}", Client("double", weight=2.0))
    finally:
        table.open()
    await until(lambda: len(table.ended) == 13)
    turns = [name.split()[0] for name in table.begun[1:10]]
    assert (turns.count("double"), turns.count("single")) == (6, 3)
    await table.close()


@run
async def test_what_is_withdrawn_is_not_begun_and_not_told() -> None:
    table = Table(1)
    try:
        first, second = table.post("first"), table.post("second")
        table.post("third")
        assert first is not None
        assert second is not None
        second.withdraw()
        await until(lambda: table.begun == ["first"])
        first.withdraw()  # which runs
        second.withdraw()
    finally:
        table.open()
    await until(lambda: table.names == ["third"])
    assert table.begun == ["first", "third"]
    await table.close()


@run
async def test_a_future_has_the_result_or_the_error_and_its_cancellation_withdraws() -> None:
    table = Table(1)

    def fail() -> str:
        raise ValueError("no")

    try:
        first = table.lane.run(Cost(), table.work("first"), ANYONE)
        failing = table.lane.run(Cost(), fail, ANYONE)
        cancelled = table.lane.run(Cost(), table.work("cancelled"), ANYONE)
        last = table.lane.run(Cost(), table.work("last"), ANYONE)
        cancelled.cancel()
        with suppress(asyncio.CancelledError):
            await cancelled
    finally:
        table.open()
    assert (await first, await last) == ("first", "last")
    with pytest.raises(ValueError, match="no"):
        await failing
    assert table.begun == ["first", "last"]
    await table.close()


@run
async def test_without_threads_work_is_done_at_once() -> None:
    table = Table(0, shared=True)
    work = table.work("now")
    table.gates["now"].set()
    assert table.lane.post(Cost(), work, partial(table._end, "now")) is None
    assert table.names == ["now"]
