"""What a worker does without its main process: accepts, and says in the log which one it is."""

import asyncio
import logging
import socket
from contextlib import closing

import pytest

from service.api.app import create_app
from service.http.server import http_settings
from service.processes.remote import Link
from service.processes.wire import Wire
from service.processes.worker import _record, _Server
from tests.support.service.client import until
from tests.support.service.fakes import make_repository


def server_on(listener: socket.socket) -> _Server:
    repository = make_repository()
    config = http_settings(create_app(repository), access_log=False)
    config.load()
    server = _Server(config, repository, 1.0, announce=lambda: None)
    server.lifespan = config.lifespan_class(config)
    server.listener = listener
    return server


@pytest.mark.anyio
async def test_connections_that_are_opened_at_once_are_shared() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        servers = [server_on(listener.dup()) for _ in range(2)]
        accepting = [asyncio.create_task(server._accept()) for server in servers]
        clients = [socket.create_connection(listener.getsockname()) for _ in range(12)]
        shares = [server.server_state.connections for server in servers]
        await until(lambda: sum(map(len, shares)) == 12)
        assert min(map(len, shares)) >= 2, shares
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
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        server = server_on(listener)
        loop = asyncio.get_running_loop()
        accept, failures = loop.sock_accept, [OSError(24, "Too many open files")]

        async def sock_accept(from_: socket.socket) -> tuple[socket.socket, object]:
            if failures:
                raise failures.pop()
            return await accept(from_)

        monkeypatch.setattr(loop, "sock_accept", sock_accept)
        accepting = asyncio.create_task(server._accept())
        with closing(socket.create_connection(listener.getsockname())):
            await until(lambda: len(server.server_state.connections) == 1)
        accepting.cancel()
        await until(lambda: not server.server_state.connections)
    assert "no connection can be accepted: [Errno 24]" in caplog.text


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
