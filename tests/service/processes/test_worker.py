"""What a worker does without its main process: accepts, and says in the log which one it is."""

import asyncio
import logging
import socket
from contextlib import closing
from typing import Any

import pytest

from service.api.app import create_app
from service.http.server import http_settings
from service.processes.remote import Link
from service.processes.shared import Crew, Memory
from service.processes.wire import Wire
from service.processes.worker import _record, _Server
from service.settings import Settings
from tests.support.service.client import until
from tests.support.service.fakes import make_repository


def server_on(listener: socket.socket, crew: Crew | None = None, number: int = 0) -> _Server:
    repository = make_repository()
    settings = Settings(access_log=False)
    config = http_settings(create_app(repository), settings)
    config.load()
    server = _Server(config, repository, settings, announce=lambda: None)
    server.lifespan = config.lifespan_class(config)
    server.listener = listener
    server.crew, server.number = crew or Crew(Memory(), 1), number
    return server


class FullOnce(socket.socket):
    """Cannot accept the first time."""

    full = True

    def accept(self) -> Any:
        if FullOnce.full:
            FullOnce.full = False
            raise OSError(24, "Too many open files")
        return super().accept()


@pytest.mark.anyio
async def test_connections_that_are_opened_at_once_are_shared() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        crew = Crew(Memory(), 2)
        crew.listening[0] = crew.listening[1] = 1
        servers = [server_on(listener.dup(), crew, number) for number in range(2)]
        accepting = [asyncio.create_task(server._accept()) for server in servers]
        clients = [socket.create_connection(listener.getsockname()) for _ in range(12)]
        shares = [server.server_state.connections for server in servers]
        await until(lambda: sum(map(len, shares)) == 12)
        assert min(map(len, shares)) >= 4, shares
        # One that accepts no more leaves all to the other.
        accepting[0].cancel()
        await asyncio.wait(accepting[:1])
        before = len(shares[0])
        clients += [socket.create_connection(listener.getsockname()) for _ in range(3)]
        await until(lambda: sum(map(len, shares)) == 15)
        assert len(shares[0]) == before
        accepting[1].cancel()
        for client in clients:
            client.close()
        await until(lambda: not any(shares))
        for server in servers:
            server.listener.close()


@pytest.mark.anyio
async def test_where_no_more_files_can_be_open_it_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("service.processes.worker._FULL_S", 0.01)
    with (
        socket.create_server(("127.0.0.1", 0)) as plain,
        FullOnce(fileno=plain.detach()) as listener,
    ):
        server = server_on(listener)
        accepting = asyncio.create_task(server._accept())
        with closing(socket.create_connection(listener.getsockname())):
            await until(lambda: len(server.server_state.connections) == 1)
        accepting.cancel()
        await until(lambda: not server.server_state.connections)
    assert "cannot accept connections: [Errno 24]" in caplog.text


@pytest.mark.anyio
async def test_without_the_main_process_it_leaves() -> None:
    ours, theirs = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = server_on(listener)
        server.link = Link(Wire(theirs))
        following = asyncio.create_task(server._follow())
        await asyncio.sleep(0.01)
        assert not server.should_exit
        ours.close()
        await following
        assert server.should_exit
        assert server.link.lost


def test_lines_of_the_log_say_which_worker() -> None:
    record = _record("worker-1: ", "convoy", logging.INFO, "file", 1, "%d images", (3,), None)
    assert record.getMessage() == "worker-1: 3 images"
