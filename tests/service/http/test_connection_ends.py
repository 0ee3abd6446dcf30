"""How connections end when the server stops, and when clients close only their sending side."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from service.api.app import create_app
from service.edge.connections import GRACE_S
from service.http import connection as connection_module
from service.http.connection import Connection
from tests.support import PATIENCE_S
from tests.support.servers.listening import Client, OpenPort, Reply, get, listening, post
from tests.support.service.client import until
from tests.support.service.fakes import FakeEngine, make_repository

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return ("asyncio", {"use_uvloop": request.param})


@asynccontextmanager
async def convoy(
    engine: FakeEngine | None = None, *, leaving: bool = False
) -> AsyncIterator[OpenPort]:
    """Yield a server of the application with fakes. If `leaving`, the server is stopping."""
    repository = make_repository(engine)
    await repository.warm_up()
    app = create_app(repository)
    async with listening(app, endpoints=app.endpoints) as server:
        server.edge.leaving = leaving
        yield server
    (pipeline,) = repository.models.values()
    assert await pipeline.drain(PATIENCE_S)
    await repository.close(PATIENCE_S)


def only(server: OpenPort) -> Connection:
    """Return the server's only connection."""
    (connection,) = server.connections
    assert isinstance(connection, Connection)
    return connection


def digit(reply: Reply) -> int:
    """Return the likeliest class in an answer."""
    assert reply.status == 200, reply
    index: int = json.loads(reply.body)["results"][0]["predictions"][0]["index"]
    return index


REQUESTS = {
    "classified": (post(b"7"), 200),
    "an image that is none": (post(b"x"), 400),
    "a wrong query": (post(b"7", path="/v1/classify?no=1"), 422),
    "tensors that are none": (post(b"{}", path="/v2/models/fake/infer"), 400),
    "health": (get("/v2/health/live"), 200),
    "the page": (get("/"), 200),
    "metrics": (get("/metrics"), 200),
    "no such path": (get("/nowhere"), 404),
    "a malformed target": (get("http://[/"), 400),
    "no HTTP": (b"no HTTP\r\n\r\n", 400),
}
every_request = pytest.mark.parametrize(("request_", "status"), REQUESTS.values(), ids=REQUESTS)


# --- the server leaves ---------------------------------------------------------------------------


@every_request
async def test_every_answer_of_a_server_that_leaves_ends_its_connection(
    request_: bytes, status: int
) -> None:
    async with convoy(leaving=True) as server:
        client = await server.send(request_)
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (status, "close")
        assert await client.rest() == b""


@pytest.mark.parametrize("request_", [post(b"7"), get("/metrics")], ids=["direct", "asgi"])
async def test_a_request_that_began_before_the_server_leaves_ends_its_connection_too(
    request_: bytes,
) -> None:
    gate = threading.Event()
    async with convoy(FakeEngine(gate=gate)) as server:
        client = await server.send(post(b"1") + request_)
        await until(lambda: bool(server.connections) and len(only(server)._answers.queue) == 2)
        server.edge.leaving = True
        gate.set()
        first, second = await client.reply(), await client.reply()
        # Requests that came before the last one are answered too.
        assert "connection" not in first.headers
        assert (second.status, second.headers["connection"]) == (200, "close")
        assert await client.rest() == b""


async def test_what_follows_the_last_answer_does_not_reset_it() -> None:
    async with convoy(leaving=True) as server:
        client = await server.send(post(b"7"))
        await until(lambda: bool(server.entries))
        client.send(post(b"8") * 1000)  # before it has read that it should not
        await asyncio.sleep(0.05)
        reply = await client.reply()
        assert (digit(reply), reply.headers["connection"]) == (7, "close")
        assert await client.rest() == b""


async def test_an_idle_connection_is_kept_for_the_notice_and_closed_at_its_end() -> None:
    async with convoy() as server:
        client = await server.send(post(b"7"))
        assert digit(await client.reply()) == 7
        server.edge.leaving = True
        await asyncio.sleep(1.2 * GRACE_S)
        connection = only(server)
        assert not connection._transport.is_closing()
        connection.shutdown()
        assert connection._transport.is_closing()
        assert await client.rest() == b""


@pytest.mark.parametrize("fresh", [True, False], ids=["opened", "answered"])
async def test_a_request_that_may_be_on_its_way_is_waited_for(
    fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "GRACE_S", PATIENCE_S)
    async with convoy(leaving=fresh) as server:
        client = await server.connect()
        await until(lambda: bool(server.connections))
        if not fresh:
            client.send(post(b"1"))
            assert digit(await client.reply()) == 1
            server.edge.leaving = True
        only(server).shutdown()
        await asyncio.sleep(0.01)
        client.send(post(b"2"))
        reply = await client.reply()
        assert (digit(reply), reply.headers["connection"]) == (2, "close")
        monkeypatch.setattr(connection_module, "GRACE_S", 0.05)
        silent = await server.connect()  # but not for longer
        await until(lambda: len(server.connections) == 2)
        for connection in tuple(server.connections):
            connection.shutdown()
        assert await silent.rest() == b""


async def test_a_request_that_has_arrived_is_read_before_its_connection_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "GRACE_S", 0.0)
    async with convoy(leaving=True) as server:
        client = await server.connect()
        await until(lambda: bool(server.connections))
        sock = client.writer.get_extra_info("socket")
        with open(sock.fileno(), "wb", closefd=False, buffering=0) as unread:
            unread.write(post(b"7"))  # at once, so that the event loop has not read it below
        only(server).shutdown()
        assert digit(await client.reply()) == 7


async def test_an_answer_of_which_the_head_is_sent_is_the_last_all_the_same() -> None:
    begun, sent = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"o", "more_body": True})
        begun.set()
        await sent.wait()
        await send({"type": "http.response.body", "body": b"k"})

    async with listening(slow) as server:
        client = await server.send(get("/"))
        await begun.wait()
        server.edge.leaving = True
        only(server).shutdown()
        sent.set()
        reply = await client.reply()
        assert (reply.body, "connection" in reply.headers) == (b"ok", False)
        assert await client.rest() == b""


# --- the client ends its side --------------------------------------------------------------------


async def ended_after(server: OpenPort, data: bytes) -> Client:
    """Return a client that has sent `data` and closed its sending side."""
    client = await server.send(data)
    client.writer.write_eof()
    return client


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask no client whether it is still there, even if a busy server answers late."""
    monkeypatch.setattr(connection_module, "_ASK_S", 10.0 * PATIENCE_S)


@every_request
@pytest.mark.usefixtures("unasked")
async def test_a_client_that_ends_its_side_is_answered_on_every_route(
    request_: bytes, status: int
) -> None:
    async with convoy() as server:
        client = await ended_after(server, request_)
        assert (await client.reply()).status == status
        assert await client.rest() == b""


@pytest.mark.usefixtures("unasked")
async def test_all_whole_requests_before_the_end_are_answered() -> None:
    gate = threading.Event()
    async with convoy(FakeEngine(gate=gate)) as server:
        client = await ended_after(server, b"".join(post(b"%d" % n) for n in range(5)))
        await asyncio.sleep(0.01)
        gate.set()
        assert [digit(await client.reply()) for _ in range(5)] == list(range(5))
        assert await client.rest() == b""
        assert [entry.status for entry in server.entries] == [200] * 5


async def test_a_client_that_waits_longer_is_asked_whether_it_is_there() -> None:
    gate = threading.Event()
    async with convoy(FakeEngine(gate=gate)) as server:
        client = await ended_after(server, post(b"7"))
        assert (await client.reply()).status == 100
        old = await ended_after(server, post(b"8", version="1.0"))  # which knows no such answer
        await asyncio.sleep(0.15)
        gate.set()
        assert digit(await client.reply()) == 7  # asked once
        assert digit(await old.reply()) == 8


async def test_a_client_that_has_left_is_not_computed_for() -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate, max_batch=1)
    async with convoy(engine) as server:
        first = await server.send(post(b"1"))
        await until(lambda: len(engine.batches) == 1)
        leaving = await server.send(post(b"2"))
        await until(lambda: len(server.connections) == 2)
        leaving.writer.close()  # which ends its side, and looks no different
        await until(lambda: [entry.status for entry in server.entries] == [499])
        gate.set()
        assert digit(await first.reply()) == 1
        assert engine.batches == [1]


@pytest.mark.parametrize(
    "data", [post(b"12")[:-1], post(b"1") + b"GET / HT"], ids=["a body", "the next head"]
)
async def test_a_client_that_ends_its_side_within_a_request_has_left(data: bytes) -> None:
    gate = threading.Event()
    async with convoy(FakeEngine(gate=gate)) as server:
        client = await ended_after(server, data)
        assert await client.rest() == b""
        gate.set()
        await until(lambda: [entry.status for entry in server.entries] == [499])


async def test_a_client_that_left_while_its_long_body_arrives_is_no_error() -> None:
    """The server cannot see yet that the client has left: the body is before the end. The client's
    system resets the connection as soon as it gets the refusal."""
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    head = get("/v1/classify?no=1", "Content-Length: 90000000", method="POST")
    async with convoy() as server:

        def have_ended(requests: int) -> bool:
            return len(server.entries) == requests

        for ended in (1, 2):  # before the second request, the client owes a turn
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.setblocking(False)
                client.send(head + bytes(50_000_000))
            await until(partial(have_ended, ended))
            await until(lambda: not server.connections)
    assert failures == []


async def test_a_call_that_the_server_cancels_as_it_ends_is_answered_503() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        await asyncio.Event().wait()

    async with listening(app) as server:
        client = await server.send(get("/v2"))
        await until(lambda: bool(server.connections) and bool(only(server)._state.tasks))
        for task in only(server)._state.tasks:  # as uvicorn does
            task.cancel()
        assert "the server is shutting down" in (await client.reply()).error(503)
