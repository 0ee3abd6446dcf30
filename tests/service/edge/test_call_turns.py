"""In each iteration of the event loop, one call of the application starts. Clients take turns."""

import asyncio
from collections.abc import Sized
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from service.edge.call_turns import CallTurns
from tests.support.servers.listening import get, listening
from tests.support.servers.served import run
from tests.support.service import virtual_time
from tests.support.service.client import until
from tests.support.service.desk import in_virtual_time
from tests.support.service.virtual_time import now


async def turns(begun: Sized, count: int) -> list[int]:
    """Return the number of calls that have started after each iteration of the event loop."""
    seen = []
    for _ in range(count):
        seen.append(len(begun))
        await asyncio.sleep(0)
    return seen


@run
async def test_one_call_begins_in_a_turn_and_clients_take_turns() -> None:
    queue, begun = CallTurns(), list[str]()
    for client, name in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("a", "a4")):
        queue.post(client, partial(begun.append, name))
    seen = await turns(begun, 8)
    assert seen == sorted(seen)
    assert all(after - before <= 1 for before, after in pairwise(seen))
    assert begun[0] == "a1"
    assert begun.index("b1") < begun.index("a3")
    assert len(begun) == 5
    queue.post("a", lambda: begun.append("at once"))
    assert begun[-1] == "at once"


@run
async def test_a_call_that_fails_to_begin_holds_up_no_other() -> None:
    queue, begun = CallTurns(), list[str]()
    said: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))

    def fail() -> None:
        raise RuntimeError

    queue.post("a", lambda: begun.append("first"))
    queue.post("a", fail)
    queue.post("a", lambda: begun.append("last"))
    await turns(begun, 5)
    assert begun == ["first", "last"]
    assert len(said) == 1


@run
async def test_calls_of_many_connections_begin_one_a_turn() -> None:
    turn, begun = [0], list[int]()

    async def application(_: Scope, receive: Receive, send: Send) -> None:
        begun.append(turn[0])
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def count() -> None:
        turn[0] += 1
        asyncio.get_running_loop().call_soon(count)

    count()
    async with listening(application) as server:
        clients = [await server.connect() for _ in range(16)]
        for client in clients:
            client.send(get("/v2"))
        for client in clients:
            assert (await client.reply()).status == 200
    assert len(begun) == 16
    assert len(set(begun)) == 16, begun


@in_virtual_time
async def test_while_models_have_requests_a_pause_follows_each_call() -> None:
    busy, begun = [True], list[float]()
    queue = CallTurns(lambda: busy[0])

    def post(clients: str) -> None:
        for client in clients:
            queue.post(client, lambda: begun.append(now()))

    post("aaab")
    assert begun == [0]
    await virtual_time.until(1)
    assert begun == pytest.approx([0, 0.004, 0.008, 0.012])  # as docs/reliability.md promises
    post("a")
    await virtual_time.until(1.001)
    post("a")  # in the pause
    assert begun[4:] == pytest.approx([1])
    await virtual_time.until(1.1)
    assert begun[5:] == pytest.approx([1.004])
    busy[0] = False
    post("aaab")
    await turns(begun, 5)
    assert begun[6:] == pytest.approx([1.1] * 4)


def test_turns_that_clients_owe_are_bounded() -> None:
    queue = CallTurns()
    for number in range(5000):
        queue.owe("a")
        queue.owe(f"other {number}")
    assert len(queue.owed) <= 1024
    assert queue.owed["a"] <= 512
    assert [queue.pay("a") for _ in range(queue.owed["a"] + 1)][-2:] == [True, False]


@run
async def test_a_call_that_is_withdrawn_takes_no_turn() -> None:
    queue, begun = CallTurns(lambda: True), list[str]()
    queue.post("a", lambda: begun.append("first"))
    flood = [queue.post("b", lambda: begun.append("withdrawn")) for _ in range(1000)]
    queue.post("b", lambda: begun.append("last"))
    for turn in flood:
        turn.withdraw()
    queue._next()
    assert begun == ["first", "last"]
    assert not queue._waiting


@run
async def test_a_turn_is_waited_for_and_a_task_that_is_cancelled_takes_none() -> None:
    queue, begun = CallTurns(lambda: True), list[str]()

    async def call(name: str) -> None:
        await queue.wait("a")
        begun.append(name)

    tasks = [asyncio.create_task(call(name)) for name in ("first", "cancelled", "last")]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert begun == ["first", "last"]


@run
async def test_a_call_whose_client_leaves_before_its_turn_is_not_begun() -> None:
    begun = list[str]()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        begun.append(scope["path"])
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with listening(application) as server:
        held = server.edge.turns
        held._paused = True  # as after a call that has just begun
        leaving, staying = await server.connect(), await server.connect()
        leaving.send(get("/leaves"))
        staying.send(get("/stays"))
        await until(lambda: sum(map(len, held._waiting.values())) == 2)
        leaving.writer.transport.abort()
        await until(lambda: any(turn.begin is None for turn in held._waiting["127.0.0.1"]))
        held._next()
        assert (await staying.reply()).status == 200
    assert begun == ["/stays"]
