"""Connections are accepted a few at a time, and those of clients that owe a turn wait."""

import asyncio
import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from service.edge.call_turns import CallTurns
from service.http import acceptor
from service.http.acceptor import Acceptor
from tests.support import PATIENCE_S
from tests.support.servers.listening import post
from tests.support.servers.served import Http, LiveServer, run, served
from tests.support.service.client import until
from tests.support.service.fakes import FakeEngine

ME = "127.0.0.1"


def reset(client: Http) -> None:
    """Leave at once, as a process that is killed does."""
    linger = struct.pack("ii", 1, 0)
    connection = client.writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    client.abort()


def block_calls(server: LiveServer) -> None:
    """Let all calls wait, as while other calls wait and models have requests."""
    server.turns.is_busy = lambda: True
    server.turns._paused = True


@pytest.mark.parametrize("leave", [reset, Http.abort], ids=["reset", "closed"])
@run
async def test_who_leaves_owes_a_turn_and_is_not_read_if_it_leaves_again(
    leave: Callable[[Http], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate, max_batch=1)
    async with served(engine) as server:
        staying, leaving = await server.connect(), await server.connect()
        staying.send(post(b"1"))
        await until(lambda: len(engine.batches) == 1)
        block_calls(server)
        leaving.send(post(b"7"))
        await until(lambda: server.pipeline.metrics.pending() == 1)
        leave(leaving)
        await until(lambda: server.pipeline.metrics.counts.sum().requests.get(499) == 1)
        assert server.turns.owed == {ME: 1}

        with monkeypatch.context() as patched:
            patched.setattr(acceptor, "PAUSE_S", 3600)
            gone = await server.connect()
            await until(lambda: len(server.acceptor._waiting) == 1)
        (waiting,) = server.acceptor._waiting
        gone.send(post(b"8"))
        leave(gone)
        await until(lambda: acceptor.reports(waiting, acceptor._ENDED))
        server.acceptor._ask(waiting)  # as after the pause
        await until(lambda: not server.acceptor._waiting)
        assert server.turns.owed == {ME: 1}

        again = await server.connect()
        again.send(post(b"3"))
        await until(lambda: bool(server.turns._waiting))
        gate.set()
        assert await staying.digit() == 1
        requests = server.pipeline.metrics.counts.sum().requests
        assert requests == {200: 1, 499: 1}
        server.turns._next()
        assert await again.digit() == 3
        assert engine.batches == [1, 1]
        assert not server.turns.owed
        assert not server.acceptor._by_client


@run
async def test_who_owes_a_turn_and_only_ends_its_side_is_answered() -> None:
    async with served() as server:
        server.turns.owe(ME)
        client = socket.create_connection((ME, server.port))
        client.sendall(post(b"5"))
        client.shutdown(socket.SHUT_WR)  # all before the server runs again
        ending = Http(*await asyncio.open_connection(sock=client))
        assert (await ending.head()).startswith(b"HTTP/1.1 100 ")
        assert await ending.digit() == 5
        assert await ending.ended()


@run
async def test_a_client_of_http_1_0_that_owes_a_turn_is_not_asked() -> None:
    async with served() as server:
        server.turns.owe(ME)
        ending = await server.connect()
        ending.send(post(b"5", version="1.0"))
        ending.writer.write_eof()
        assert await ending.digit() == 5
        assert await ending.ended()


@run
async def test_who_leaves_while_it_waits_in_the_queue_is_not_read() -> None:
    async with served() as server:
        block_calls(server)
        server.turns.owe(ME)
        leaving = await server.connect()
        leaving.send(post(b"5"))
        await until(lambda: bool(server.turns._waiting))
        reset(leaving)
        await asyncio.sleep(0.01)
        server.turns._next()
        assert not server.acceptor._waiting
        assert not server.connections
        assert server.turns.owed == {ME: 1}


def connect_from(server: LiveServer, address: str) -> Coroutine[Any, Any, Http]:
    async def connect() -> Http:
        here = (address, 0)
        return Http(*await asyncio.open_connection(ME, server.port, local_addr=here))

    return connect()


@run
async def test_if_too_many_connections_wait_the_client_with_most_loses_its_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.http.acceptor.MOST_WAITING", 3)
    async with served() as server:
        block_calls(server)
        server.turns.owe(ME)
        for _ in range(5):
            server.turns.owe("127.0.0.2")
        rude = [await connect_from(server, "127.0.0.2") for _ in range(5)]
        for refused in rude[3:]:
            refused.send(post(b"7"))
            status, headers, body = await refused.answer()
            assert (status, headers["retry-after"]) == (503, "1")
            assert "too many connections" in body["error"]
            assert await refused.ended()
        waiting = await server.connect()
        waiting.send(post(b"5"))
        assert (await rude[2].answer())[0] == 503
        other = await connect_from(server, "127.0.0.3")
        other.send(post(b"7"))
        assert await other.digit() == 7
        assert server.acceptor._by_client == {ME: 1, "127.0.0.2": 2}
        assert server.turns.owed == {"127.0.0.2": 3}
        await until(lambda: len(server.turns._waiting) == 2)
        for client, digit in ((rude[0], 4), (waiting, 5), (rude[1], 6)):
            if client is not waiting:
                client.send(post(b"%d" % digit))
            server.turns._next()
            assert await client.digit() == digit


@run
async def test_who_leaves_while_it_is_asked_frees_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as server:
        server.turns.owe(ME)
        leaving = socket.create_connection((ME, server.port))
        leaving.sendall(post(b"5"))
        leaving.shutdown(socket.SHUT_WR)
        asked, left = acceptor._peek, asyncio.Event()

        def peek(client: socket.socket) -> bytes:
            seen = asked(client)
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            leaving.close()
            assert acceptor.reports(client)
            left.set()
            return seen

        monkeypatch.setattr(acceptor, "_peek", peek)
        await asyncio.wait_for(left.wait(), PATIENCE_S)
        await until(lambda: not server.acceptor._waiting)
        assert not server.connections
        assert server.turns.owed == {ME: 1}


@run
async def test_a_few_connections_are_opened_in_an_iteration_of_the_event_loop() -> None:
    async with served() as server:
        clients = []
        for _ in range(30):
            client = socket.socket()
            client.connect((ME, server.port))  # the event loop does not run meanwhile
            clients.append(client)
        seen = [0]
        while seen[-1] < 30:
            await asyncio.sleep(0)
            seen.append(len(server.connections))
        assert max(after - before for before, after in pairwise(seen)) <= 4
        for client in clients:
            client.close()


class Full(socket.socket):
    """A listening socket of a process that may open no more files for a while."""

    refusals = 3

    def accept(self) -> tuple[socket.socket, object]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


@run
async def test_a_server_without_files_accepts_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("service.http.acceptor._FULL_S", 0.005)
    accepted: asyncio.Future[asyncio.Protocol] = asyncio.get_running_loop().create_future()

    class Told(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(self)
            transport.close()

    with Full() as listener:
        listener.bind((ME, 0))
        accepting = Acceptor(listener, CallTurns(), Told, 10)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        await accepted
        assert await reader.read() == b""
        writer.close()
        accepting.close()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot accept connections: Too many open files"
    ] * 3


@run
async def test_at_the_end_all_connections_are_opened_even_those_that_wait() -> None:
    async with served() as server:
        block_calls(server)
        server.turns.owe(ME)
        waiting = await server.connect()
        await until(lambda: len(server.acceptor._waiting) == 1)
        queued = socket.socket()
        queued.connect((ME, server.port))
        await server.acceptor.accept_rest()
        assert len(server.connections) == 2
        assert not server.acceptor._waiting
        waiting.send(post(b"7"))
        assert await waiting.digit() == 7
        queued.close()


@run
async def test_a_server_without_files_that_ends_accepts_nothing_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.http.acceptor._FULL_S", 0.02)
    made: list[asyncio.Protocol] = []

    def make() -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        return made[-1]

    with Full() as listener:
        listener.bind((ME, 0))
        listener.refusals = 10**6
        ending = Acceptor(listener, CallTurns(), make, 10)
        with socket.create_connection(listener.getsockname()):
            await until(lambda: listener.refusals < 10**6)
            ending.close()
            listener.refusals = 0
            await asyncio.sleep(0.1)
    assert not made
