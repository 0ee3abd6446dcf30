"""Calls for the application begin one a turn of the event loop, and clients take turns."""

import asyncio
from functools import partial
from itertools import pairwise
from typing import Any

from starlette.types import Receive, Scope, Send

from service.http.call_turns import CallTurns
from tests.support.servers.listening import get, listening
from tests.support.servers.served import run


async def turns(begun: list[str], count: int) -> list[int]:
    """How many have begun after each of so many turns."""
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
