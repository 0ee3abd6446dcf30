"""Too many connections, too many requests per second, and malformed headers."""

import asyncio
import re
import threading
from functools import partial
from typing import Any

import pytest

from service.edge import connections
from service.edge.connections import GRACE_S, SPARE
from service.edge.edge import Limits
from service.edge.keys import Keys
from service.http.parser import MAX_HEAD_BYTES, MAX_HEADERS, MAX_TARGET_BYTES, Head, Parser
from tests.service.edge.test_edge import BEARER, keys
from tests.service.edge.test_edge import convoy as keyed
from tests.service.http.test_connection_pace import convoy, error_in
from tests.support import PATIENCE_S
from tests.support.servers.listening import get, post
from tests.support.service.client import until
from tests.support.service.fakes import FakeEngine

pytestmark = pytest.mark.anyio

__all__ = ["keys"]  # a fixture


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return ("asyncio", {"use_uvloop": request.param})


async def test_connections_beyond_the_limit_are_refused_and_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "GRACE_S", PATIENCE_S)  # no silent one makes room
    gate = threading.Event()
    async with convoy(FakeEngine(gate=gate), connections=2) as (server, pipeline):
        at_work = [await server.send(post(b"3")) for _ in range(2)]
        await until(lambda: pipeline.admission.requests == 2)
        probes = [await server.connect() for _ in range(SPARE)]
        await until(lambda: len(server.connections) == 2 + SPARE)
        refused = await (await server.connect()).rest()
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in refused
        assert "connections" in error_in(refused)
        assert (
            "all 2 connections of the server are in use; try again in a second (--max-con"
            in caplog.text
        )
        await asyncio.gather(*[(await server.connect()).rest() for _ in range(5)])
        await until(lambda: "more connections" in caplog.text)
        # Beyond the limit only health checks are answered.
        for probe, path, status in zip(
            probes, ("/v2/health/live", "/v2/health/ready", "/v2"), (200, 200, 503), strict=False
        ):
            probe.send(get(path))
            assert (await probe.reply()).status == status
        probes[3].send(post(b"3"))
        assert "connections of the server are in use" in (await probes[3].reply()).error(503)
        gate.set()
        for client in at_work:
            assert (await client.reply()).status == 200


async def test_silent_connections_make_room(caplog: pytest.LogCaptureFixture) -> None:
    async with convoy(connections=4, per_address=3) as (server, _):
        silent = []
        for number in range(1, 4):  # of one address, which has its share
            silent.append(await server.connect())
            await until(lambda n=number: len(server.connections) == n)  # type: ignore[misc]
            await asyncio.sleep(0.02)  # the next is silent for less long
        await asyncio.sleep(1.2 * GRACE_S)
        for client in silent:
            assert (await server.ask(post(b"3"))).status == 200
            assert await client.rest() == b""
    assert "refused" not in caplog.text


async def test_an_address_has_its_share(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()
    async with convoy(FakeEngine(gate=gate), connections=9, per_address=2) as (
        server,
        pipeline,
    ):
        at_work = [await server.send(post(b"3")) for _ in range(2)]
        await until(lambda: pipeline.admission.requests == 2)
        refused = await (await server.connect()).rest()
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert "all 2 connections allowed for your address are in use" in error_in(refused)
        assert "--max-connections-per-address)" in caplog.text
        gate.set()
        for client in at_work:
            assert (await client.reply()).status == 200


async def test_more_requests_a_second_than_allowed_are_answered_429(
    keys: Keys,
) -> None:
    """The rate is one request per many minutes. So the test passes even if a busy machine delays
    the second request."""
    slowly = Limits(rate=0.001)
    async with keyed(limits=slowly) as server:
        assert (await server.ask(post(b"3"))).status == 200
        refused = await server.ask(post(b"3"))
        message = (
            "you sent more than the 0.001 images per second that are allowed; send the next image"
            " in "
        )
        said = re.fullmatch(rf"{message}(\d+) s", refused.error(429))
        assert said
        assert 1000 - PATIENCE_S < int(said[1]) <= 1000
        assert refused.headers["retry-after"] == said[1]
        for _ in range(3):
            assert (await server.ask(get("/v2/health/live"))).status == 200
        for path in ("/", "/page/page.js", "/docs/none"):
            assert (await server.ask(get(path))).error(429).startswith(message)
    async with keyed(keys=keys, limits=slowly) as server:
        assert (await server.ask(get("/"))).status == 200  # without a key
        (await server.ask(get("/"))).error(429)
    async with keyed(keys=keys, limits=slowly) as server:
        assert (await server.ask(post(b"3", "X-API-Key: another"))).status == 200
        assert (await server.ask(post(b"3", BEARER))).status == 200
        (await server.ask(post(b"3", "X-API-Key: another"))).error(429)
        # Keys cannot be tried out at any rate: a wrong one is its address's request.
        (await server.ask(post(b"3", "X-API-Key: wrong"))).error(401)
        (await server.ask(post(b"3", "X-API-Key: wrong too"))).error(429)


HOST = b"Host: here"


@pytest.mark.parametrize(
    ("head", "status", "says"),
    [
        ([b"GET /v2 HTTP/1.1"], 400, "no Host header; send one"),
        ([b"GET /v2 HTTP/1.1", HOST, HOST], 400, "several Host headers; send one"),
        ([b"GET /v2 HTTP/1.0", HOST, b"Host: there"], 400, "several Host headers; send one"),
        (
            [b"POST /v2 HTTP/1.1", HOST, b"Transfer-Encoding: gzip, chunked"],
            400,
            "must be `chunked`",
        ),
        ([b"POST /v2 HTTP/1.1", HOST, *[b"Transfer-Encoding: chunked"] * 2], 400, "Transfer-Enc"),
        ([b"POST /v2 HTTP/1.0", b"Transfer-Encoding: chunked"], 400, "and needs HTTP/1.1"),
        ([b"POST /v2 HTTP/1.1", HOST, b"Expect: 200-ok"], 417, "must be `100-continue`"),
        ([b"GET /v2"], 505, "this server speaks HTTP/1.1"),
        ([b"GET /v2 HTTP/0.9"], 505, "this server speaks HTTP/1.1"),
        ([b"GET /v2 HTTP/1.2", HOST], 505, "this server speaks HTTP/1.1"),
        ([b"GET /v2 HTTP/2.0", HOST], 505, "this server speaks HTTP/1.1"),
        ([b"GET /v2 HTTP/3.7", HOST], 505, "this server speaks HTTP/1.1"),
        ([b"PRI * HTTP/2.0", b"", b"SM"], 505, "this server speaks HTTP/1.1"),
        ([b"GET /v2 HTTP/1.1", HOST, b"X : y"], 400, "Invalid header token"),
        ([b"GET /v2 HTTP/1.1", HOST, b"X: " + b"y" * 70_000], 431, f"exceed {MAX_HEAD_BYTES} byt"),
        ([b"GET /" + b"v" * 8192 + b" HTTP/1.1", HOST], 414, "have more than 8192 bytes"),
        (
            [b"GET /v2 HTTP/1.1", HOST, *[b"X: " + b"y" * 9_000] * 8],
            431,
            f"exceed {MAX_HEAD_BYTES} bytes",
        ),
        ([b"GET /v2 HTTP/1.1", HOST, *[b"X: y"] * MAX_HEADERS], 431, f"{MAX_HEADERS} headers"),
    ],
)
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "asgi"])
async def test_a_head_that_is_not_as_it_should_be_is_refused(
    direct: bool, head: list[bytes], status: int, says: str
) -> None:
    data = b"\r\n".join([*head, b"", b""])
    async with convoy(direct=direct) as (server, _):
        whole = await server.send(data)
        assert says in (await whole.reply()).error(status)
        assert await whole.rest() == b""
        # As the second of two requests, whose answer comes first.
        second = await server.send(get("/v2") + data)
        assert (await second.reply()).status == 200
        assert says in (await second.reply()).error(status)
        assert await second.rest() == b""
        assert (await server.ask(post(b"3"))).status == 200


async def test_a_client_that_wants_tls_is_named() -> None:
    async with convoy() as (server, _):
        hello = await server.send(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(32))
        assert "the client sent TLS, but the server speaks" in (await hello.reply()).error(400)


async def test_a_head_may_be_as_long_as_it_is_said_to_be() -> None:
    async with convoy() as (server, _):
        long = get("/v2", "X: " + "y" * (MAX_HEAD_BYTES - 100))
        many = get("/v2", *["X: y"] * (MAX_HEADERS - 1))
        old = b"GET /v2 HTTP/1.0\r\n\r\n"
        upgrade = get(
            "/v2", "Connection: upgrade", "Upgrade: x", "X: " + "y" * (MAX_HEAD_BYTES - 200)
        )
        for request in (long, many, old, upgrade):
            assert (await server.ask(request)).status == 200
        too_long = upgrade.replace(b"X: ", b"X: " + b"y" * 300)
        assert (await server.ask(too_long)).status == 431
        assert (await server.ask(get("/" + "v" * (MAX_TARGET_BYTES - 1)))).status == 404


async def test_trailers_are_dropped_and_bounded() -> None:
    head = get("/v1/classify", "Transfer-Encoding: chunked", method="POST")
    chunked = head + b"1\r\n3\r\n0\r\n"
    async with convoy() as (server, _):
        assert (await server.ask(chunked + b"X: y\r\nHost: evil\r\n\r\n")).status == 200
        client = await server.send(chunked + b"X: y\r\n" * 10_000)
        assert f"{MAX_HEADERS} headers" in (await client.reply()).error(431)
        assert await client.rest() == b""


class _Heard:
    """Notes the calls of a parser."""

    def __init__(self) -> None:
        self.calls: list[bytes | str] = []
        self.on_begin = partial(self.calls.append, "begin")
        self.on_end = partial(self.calls.append, "end")
        self.on_piece = self.calls.append

    def on_head(self, head: Head) -> None:
        self.calls.append(head.target)


@pytest.mark.parametrize("body", [b"", b"x", b"\r\n\r\n" * 3000, bytes(100_000)])
def test_a_body_in_the_read_of_its_head_is_one_piece(body: bytes) -> None:
    """So that no copy joins its pieces. The next request of the read is parsed, too."""
    request = b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    after = b"GET /g HTTP/1.1\r\nHost: a\r\n\r\n"
    heard = _Heard()
    parser = Parser(heard)
    assert parser.parse(request + after, len(request + after)) == b""
    piece = [body] if body else []
    assert heard.calls == ["begin", b"/p", *piece, "end", "begin", b"/g", "end"]


def test_chunks_that_are_parsed_at_once_are_one_piece() -> None:
    """Because to pass a piece on takes longer than to read a chunk of a byte."""
    head = b"POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    after = b"GET /g HTTP/1.1\r\nHost: a\r\n\r\n"
    read = head + b"1\r\n7\r\n2\r\n89\r\n0\r\n\r\n" + after
    heard = _Heard()
    assert Parser(heard).parse(read, len(read)) == b""
    assert heard.calls == ["begin", b"/p", b"789", "end", "begin", b"/g", "end"]
    heard, part = _Heard(), head + b"1\r\n7\r\n2\r\n8"
    parser = Parser(heard)
    parser.parse(part, len(part))
    assert heard.calls == ["begin", b"/p", b"78"]
    rest = b"9\r\n0\r\n\r\n"
    parser.parse(rest, len(rest))
    assert heard.calls[3:] == [b"9", "end"]


async def test_several_transfer_encodings_are_refused_whichever_is_last() -> None:
    async with convoy() as (server, _):
        for codings in (("gzip", "chunked"), ("chunked", "chunked"), ("identity", "chunked")):
            lines = "".join(f"Transfer-Encoding: {coding}\r\n" for coding in codings)
            head = f"POST /v1/classify HTTP/1.1\r\nHost: convoy\r\n{lines}\r\n".encode()
            client = await server.send(head + b"1\r\n7\r\n0\r\n\r\n")
            assert (await client.reply()).status == 400, codings


async def test_headers_do_not_count_as_trailers() -> None:
    def lines(name: str) -> bytes:
        return b"".join(b"%b-%d: x\r\n" % (name.encode(), number) for number in range(60))

    head = b"POST /v1/classify HTTP/1.1\r\nHost: convoy\r\nTransfer-Encoding: chunked\r\n"
    async with convoy() as (server, _):
        chunks = b"1\r\n7\r\n0\r\n" + lines("trailer") + b"\r\n"
        client = await server.send(head + lines("header") + b"\r\n" + chunks)
        assert (await client.reply()).status == 200


@pytest.mark.parametrize(("length", "status"), [(60_000, 200), (90_000, 431), (200_000, 431)])
async def test_the_extensions_of_a_chunk_are_bounded_however_they_arrive(
    length: int, status: int
) -> None:
    head = b"POST /v1/classify HTTP/1.1\r\nHost: convoy\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"1;" + b"x" * length + b"\r\n7\r\n0\r\n\r\n"
    async with convoy() as (server, _):
        assert (await server.ask(head + chunks)).status == status
        client = await server.send(head)
        for at in range(0, len(chunks), 10_000):
            client.send(chunks[at : at + 10_000])
            await asyncio.sleep(0.01)
        assert (await client.reply()).status == status
