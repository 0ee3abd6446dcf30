"""Hostile clients: endless pipelines, unusual lengths and targets, upgrades."""

import asyncio
import threading
from typing import Any

import pytest

from service.edge.edge import Limits
from service.edge.keys import Keys
from service.http.connection import MAX_PIPELINED
from service.http.parser import MAX_HEAD_BYTES
from tests.service.edge.test_edge import convoy, keys
from tests.support.servers.listening import OpenPort, get, listening, post
from tests.support.service.client import until
from tests.support.service.deaf_transport import receive
from tests.support.service.fakes import FakeEngine

pytestmark = pytest.mark.anyio

__all__ = ["keys"]  # a fixture


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return ("asyncio", {"use_uvloop": request.param})


def held(server: OpenPort) -> Any:
    """Return the server's side of the only connection."""
    (connection,) = server.connections
    return connection


async def test_a_client_that_leaves_with_more_in_the_pipeline_is_not_worked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    received: list[str] = []
    asked = asyncio.Event()

    async def app(_: Any, receive: Any, send: Any) -> None:
        await receive()
        asked.set()
        received.append((await receive())["type"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with listening(app) as server:
        client = await server.send(get("/"))
        await asked.wait()
        client.send(get("/"))
        connection = held(server)
        await until(lambda: len(connection._answers.queue) == 2)
        connection._transport.abort()
        await until(lambda: bool(received))
        assert [entry.status for entry in server.entries] == [499, 499]
    assert received == ["http.disconnect"]
    assert not caplog.records


HEALTH = get("/v2/health/live")
CHUNKED = "Transfer-Encoding: chunked"

_ZEROS = "Content-Length: " + "0" * 5000


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "asgi"])
async def test_a_length_of_a_thousand_zeros_is_a_length(direct: bool) -> None:
    async with convoy(direct=direct) as server:
        for path, status in {"/v1/classify": 200, "/v2/repository/index": 400}.items():
            request = get(path, f"{_ZEROS}1", method="POST") + b"7"
            assert (await server.ask(request)).status == status
        request = get("/nowhere", f"{_ZEROS}1", method="POST") + b"7"
        assert (await server.ask(request)).status == 404


async def test_a_length_of_a_thousand_zeros_needs_a_key_too(keys: Keys) -> None:
    async with convoy(keys=keys) as server:
        request = get("/v1/classify", f"{_ZEROS}1", method="POST") + b"7"
        assert (await server.ask(request)).status == 401


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "asgi"])
@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
async def test_a_request_that_would_rather_upgrade_is_answered_as_it_is(
    direct: bool, protocol: str
) -> None:
    body = b"7" + HEALTH
    request = post(body, "Connection: Upgrade, HTTP2-Settings", f"Upgrade: {protocol}")
    async with convoy(direct=direct) as server:
        client = await server.send(request + HEALTH)
        assert b'"index":7' in (await client.reply()).body
        assert (await client.reply()).body == b'{"live":true}'
        client.send(request[: -len(body)])
        connection = held(server)
        await until(lambda: len(connection._answers.queue) == 1)
        client.send(body + HEALTH)
        assert b'"index":7' in (await client.reply()).body
        assert (await client.reply()).body == b'{"live":true}'
        chunked = get("/v1/classify", "Connection: upgrade", "Upgrade: x", CHUNKED, method="POST")
        assert (await server.ask(chunked + b"1\r\n7\r\n0\r\n\r\n")).status == 200
        assert [entry.bytes_in for entry in server.entries] == [len(body), 0, len(body), 0, 1]


async def test_a_request_that_would_rather_upgrade_may_be_the_last() -> None:
    async with convoy() as server:
        headers = ("Connection: close, Upgrade", "Upgrade: h2c")
        client = await server.send(get("/v2/health/live", *headers))
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert await client.rest() == b""


async def test_nothing_behind_a_body_that_is_refused_unread_is_answered() -> None:
    async with convoy() as server:
        client = await server.connect()
        await until(lambda: len(server.connections) == 1)
        receive(held(server), post(b"7" * 150_000) + HEALTH + post(b"7"))  # in one read
        (await client.reply()).error(413)
        assert await client.rest() == b""
        assert [entry.status for entry in server.entries] == [413]


LONG_BODY = "Content-Length: 200000"


@pytest.mark.parametrize(
    "head",
    [
        f"POST /nothing HTTP/1.1\r\nHost: a\r\n{LONG_BODY}",
        "POST /nothing HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5",
        "POST /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5",
        "POST /nothing HTTP/1.0\r\nContent-Length: 5",
        f"POST /v1/classify?x=y HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{LONG_BODY}",
    ],
)
async def test_an_answer_before_the_body_says_that_it_is_the_last_and_is_not_reset(
    head: str,
) -> None:
    async with convoy() as server:
        client = await server.send(head.encode() + b"\r\n\r\n")
        reply = await client.reply()
        assert reply.status in (404, 422)
        assert reply.headers["connection"] == "close"
        for _ in range(4):  # a closed socket would answer by a reset
            client.send(b"x" * 50_000)
            await asyncio.sleep(0.01)
        assert await client.rest() == b""


async def test_a_short_body_that_a_route_does_not_read_is_skipped() -> None:
    async with convoy() as server:
        client = await server.send(
            b"POST /nothing HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n"
        )
        assert (await client.reply()).status == 404
        client.send(b"GET /" + HEALTH)  # the body is part of it no more than of the next head
        assert (await client.reply()).status == 200


@pytest.mark.parametrize("target", ["http://", "http://[::1", "http://host:99999/v2", "http:///v2"])
async def test_a_target_that_is_no_url_is_refused_in_its_turn(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with convoy(limits=Limits(per_client=9)) as server:
        for before in (b"", HEALTH):
            client = await server.send(before + get(target) + HEALTH)
            if before:
                assert (await client.reply()).status == 200
            assert "malformed request target" in (await client.reply()).error(400)
            assert (await client.reply()).status == 200
        assert server.edge.inside == {}
    assert not caplog.records


async def test_a_target_with_a_host_and_no_path_is_the_page() -> None:
    async with convoy() as server:
        assert b"<!doctype html>" in (await server.ask(get("http://host?query"))).body


async def test_a_defect_is_not_taken_for_a_malformed_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def crash(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    async with convoy() as server:
        await server.connect()
        await until(lambda: len(server.connections) == 1)
        monkeypatch.setattr(server.edge, "admit", crash)
        with pytest.raises(ZeroDivisionError):
            receive(held(server), HEALTH)


async def test_whatever_a_connection_refuses_is_dated_and_neither_guessed_at_nor_framed() -> None:
    async with convoy() as server:
        held_up = await server.connect()
        await until(lambda: len(server.connections) == 1)
        held(server)._state.default_headers = [(b"date", b"today")]
        held_up.send(b"no http\r\n\r\n")
        refused = await held_up.reply()
        assert "malformed HTTP/1.1 request" in refused.error(400)
        assert refused.headers["date"] == "today"
        assert refused.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in refused.headers["content-security-policy"]


async def test_many_upgrades_at_once_are_many_requests() -> None:
    async with convoy() as server:
        client = await server.send(get("/v2/health/live", "Connection: upgrade", "Upgrade: x") * 90)
        for _ in range(90):
            assert (await client.reply()).status == 200


async def test_connect_is_refused() -> None:
    async with convoy() as server:
        client = await server.send(HEALTH + get("here:80", method="CONNECT") + HEALTH)
        assert (await client.reply()).status == 200
        refused = await client.reply()
        assert (refused.status, b"proxies" in refused.body) == (400, True)
        assert await client.rest() == b""
        assert [entry.status for entry in server.entries] == [200, 400]


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "asgi"])
async def test_a_pipeline_has_an_end(direct: bool) -> None:
    gate = threading.Event()
    async with convoy(direct=direct, engine=FakeEngine(gate=gate)) as server:
        client = await server.send(post(b"7") + HEALTH * 10_000)
        await until(lambda: len(server.connections) == 1)
        connection = held(server)
        await until(lambda: len(connection._answers.queue) > MAX_PIPELINED)
        gate.set()
        for _ in range(MAX_PIPELINED):
            assert (await client.reply()).status == 200
        assert len(server.entries) <= MAX_PIPELINED + 1
        refused = await client.reply()
        assert (refused.status, b"wait on this connection" in refused.body) == (429, True)
        assert await client.rest() == b""


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "asgi"])
async def test_a_head_without_end_does_not_cost_those_before_it_their_answers(direct: bool) -> None:
    gate = threading.Event()
    async with convoy(direct=direct, engine=FakeEngine(gate=gate)) as server:
        client = await server.send(post(b"7"))
        await until(lambda: bool(server.connections) and bool(held(server)._answers.queue))
        connection = held(server)
        client.send(b"GET / HTTP/1.1\r\nX: " + b"a" * (MAX_HEAD_BYTES + 1))
        await until(lambda: connection._deaf)
        gate.set()
        assert (await client.reply()).status == 200
        assert (await client.reply()).status == 431
        assert [entry.status for entry in server.entries] == [200, 431]
