"""Messages over a real socket, however it cuts them."""

import asyncio
import socket
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.processes.supervisor import _MOST_UNKNOWN, Session
from service.processes.wire import Wire

_NUMBERS = st.lists(st.integers(0, 2**40), max_size=300)
_MESSAGES = st.lists(st.tuples(st.text(), _NUMBERS, st.floats(allow_nan=False)), max_size=8)


@settings(max_examples=30, deadline=None)
@given(_MESSAGES, st.data())
def test_messages_arrive_whole_however_they_are_cut(
    messages: list[tuple[str, list[int], float]], data: st.DataObject
) -> None:
    stream = _as_said(*messages)

    async def main() -> list[object]:
        ours, theirs = socket.socketpair()
        with theirs:
            rest = stream
            while rest:
                cut = data.draw(st.integers(1, len(rest)))
                theirs.sendall(rest[:cut])
                rest = rest[cut:]
            theirs.shutdown(socket.SHUT_WR)
            return [message async for message in Wire(ours).messages()]

    assert asyncio.run(main()) == [list(message) for message in messages]


def _as_said(*messages: tuple[object, ...]) -> bytes:
    async def main() -> bytes:
        ours, theirs = socket.socketpair()
        wire = Wire(ours)
        with theirs:
            listening = asyncio.create_task(anext(wire.messages(), None))
            await asyncio.sleep(0)
            while wire._writer is None:
                await asyncio.sleep(0)
            for message in messages:
                wire.say(*message)
            theirs.shutdown(socket.SHUT_WR)
            await listening
            wire._writer.close()
            theirs.setblocking(False)
            said = b""
            loop = asyncio.get_running_loop()
            while part := await loop.sock_recv(theirs, 2**16):
                said += part
            return said

    return asyncio.run(main())


@pytest.mark.anyio
async def test_the_first_is_said_at_once_and_what_was_cut_is_dropped() -> None:
    ours, theirs = socket.socketpair()
    wire = Wire(ours)
    with theirs:
        theirs.sendall(b'["submit", 1]\n["submit", 2')
        theirs.shutdown(socket.SHUT_WR)
        assert [message async for message in wire.messages("status", inf)] == [["submit", 1]]
        assert theirs.recv(100) == b'["status", Infinity]\n'
    wire.say("the other end is gone")  # and nothing happens


@pytest.mark.anyio
async def test_a_line_longer_than_any_should_be_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        sending = asyncio.create_task(asyncio.to_thread(theirs.sendall, b"1" * (3 * 2**20)))
        with pytest.raises(ValueError, match="limit"):
            [message async for message in Wire(ours).messages()]
    with pytest.raises(OSError, match=r"pipe|reset|descriptor"):
        await sending


@pytest.mark.anyio
async def test_what_is_said_before_the_connection_is_there_is_said_then_behind_the_first() -> None:
    ours, theirs = socket.socketpair()
    wire = Wire(ours)
    wire.say("early", 1)
    await asyncio.sleep(0)
    with theirs:
        theirs.shutdown(socket.SHUT_WR)
        assert [message async for message in wire.messages("status", 0)] == []
        assert theirs.recv(100) == b'["status", 0]\n["early", 1]\n'


@pytest.mark.anyio
async def test_a_worker_that_takes_long_to_start_is_not_stuck_when_it_listens() -> None:
    """It reads what was said meanwhile, one status ten times a second, and then has its time."""
    ours, theirs = socket.socketpair()
    session, listens = Session(Wire(ours), 0, []), asyncio.Event()
    for _ in range(300):
        session.tell([])
    worker = Wire(theirs)
    serving = asyncio.create_task(session.serve([], listens.set))
    async with asyncio.timeout(60):
        messages = worker.messages()
        await anext(messages)
        worker.say("listening")
        await listens.wait()
        assert not session.is_stuck
        for _ in range(_MOST_UNKNOWN):
            session.tell([])
        assert not session.is_stuck
        session.tell([])
        assert session.is_stuck
        for _ in range(401):
            worker.say("known")
            await anext(messages)
        worker.say("known")
        await session.knows.wait()
        for _ in range(_MOST_UNKNOWN + 1):  # what was said early is read: it has no more time
            assert not session.is_stuck
            session.tell([])
        assert session.is_stuck
    await worker.end("left")
    await serving


@pytest.mark.anyio
async def test_a_worker_that_is_told_of_the_engines_as_it_connects_knows_each_status() -> None:
    """Or the service would wait forever for it to know the last one."""
    ours, theirs = socket.socketpair()
    session = Session(Wire(ours), 0, [])
    session.tell([])  # a tick, before `serve` has connected
    await asyncio.sleep(0)
    worker = Wire(theirs)
    serving = asyncio.create_task(session.serve([], lambda: None))
    async with asyncio.timeout(10):
        messages = worker.messages()
        for _ in range(2):
            assert await anext(messages) == ["status", []]
            worker.say("known")
        await session.knows.wait()
    assert session.unknown == 0
    await worker.end("left")
    await serving
