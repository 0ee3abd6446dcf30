"""Over real sockets, clients that send or read too slowly are disconnected, and other clients are
not."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from service.api.app import create_app
from service.edge.edge import Limits
from service.hosting.pipeline import Pipeline
from service.http.connection import _HEAD
from tests.support import PATIENCE_S
from tests.support.servers.listening import PATIENT, Client, OpenPort, get, listening, post
from tests.support.service.client import metric_in, until
from tests.support.service.fakes import FakeEngine, make_repository

pytestmark = pytest.mark.anyio

# In which all that is not under test happens; `server.edge.limits` may change as a test goes on.
_LONG_S = PATIENT.body_s


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return ("asyncio", {"use_uvloop": request.param})


def limits(**changed: Any) -> Limits:
    return replace(PATIENT, **{"sweep_s": 0.01, **changed})


def sides(server: OpenPort) -> list[Any]:
    """Return the server's sides of all connections."""
    return list(server.connections)


@asynccontextmanager
async def convoy(
    engine: FakeEngine | None = None, *, direct: bool = True, **changed: Any
) -> AsyncIterator[tuple[OpenPort, Pipeline]]:
    """Yield a server of the application with fakes, and its pipeline. At the end, no request may
    remain in the pipeline."""
    repository = make_repository(engine)
    await repository.warm_up()
    (pipeline,) = repository.models.values()
    app = create_app(repository)
    endpoints = app.endpoints if direct else {}
    async with listening(app, limits=limits(**changed), endpoints=endpoints) as server:
        yield server, pipeline
    assert await pipeline.drain(PATIENCE_S)
    admission = pipeline.admission
    assert (admission.requests, admission.images, admission.room.taken) == (0, 0, 0)
    await repository.close(PATIENCE_S)


async def drip(client: Client, data: bytes, every_s: float) -> None:
    """Send byte by byte until the data ends or the connection closes."""
    for byte in data:
        if client.writer.is_closing():
            return
        client.send(bytes([byte]))
        await asyncio.sleep(every_s)


def error_in(answer: bytes) -> str:
    """Check that an answer is an error in the common format, and return its message."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    message = json.loads(body)
    assert list(message) == ["error"]
    return str(message["error"])


# --- heads ---------------------------------------------------------------------------------------


async def test_a_head_that_drips_in_is_answered_408_and_closed() -> None:
    async with convoy() as (server, _):
        client = await server.send(b"G")
        await until(lambda: [side._stage for side in sides(server)] == [_HEAD])
        server.edge.limits = limits(head_s=0.1)
        dripping = asyncio.create_task(drip(client, get("/", *["X-Slow: 1"] * 100)[1:], 0.005))
        answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert b"connection: close\r\n" in answer
        assert "within 0.1 s" in error_in(answer)
        dripping.cancel()
        (entry,) = server.entries
        assert (entry.status, entry.method, entry.client) == (408, b"-", "127.0.0.1")


async def test_a_connection_that_stays_silent_is_closed_without_a_word() -> None:
    async with convoy(head_s=0.1) as (server, _):
        assert await (await server.connect()).rest() == b""
        assert await (await server.send(b"\r\n\r\n")).rest() == b""  # skipped by the parser
        assert server.entries == []


async def test_a_connection_is_kept_between_requests_longer_than_a_head_may_take() -> None:
    async with convoy() as (server, _):
        client = await server.send(post(b"1"))
        for _ in range(3):
            assert (await client.reply()).status == 200
            server.edge.limits = limits(head_s=0.05)
            await asyncio.sleep(0.12)
            server.edge.limits = limits()
            client.send(post(b"1"))
        assert (await client.reply()).status == 200
        server.edge.limits = limits(idle_s=0.05)
        assert await client.rest() == b""  # then it is closed, in silence
        server.edge.limits = limits()
        client = await server.send(get("/v2/health/live"))
        assert (await client.reply()).status == 200
        server.edge.limits = limits(head_s=0.05)
        client.send(b"GET / HT")  # the next one's head has its time from its first byte
        assert error_in(await client.rest())


# --- bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "asgi"])
async def test_a_body_that_never_ends_is_answered_408_at_its_deadline(direct: bool) -> None:
    async with convoy(direct=direct, body_s=0.1) as (server, pipeline):
        client = await server.connect()
        dripping = asyncio.create_task(drip(client, post(b"1" * 50_000), 0.002))
        client.send(post(b"1" * 50_000)[:500])
        answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert "did not arrive within 0.1 s" in error_in(answer)
        dripping.cancel()
        await until(lambda: pipeline.admission.requests == 0)
        assert [entry.status for entry in server.entries] == [408]
        metrics = await server.ask(get("/metrics"))
        assert metric_in(metrics.body.decode(), 'convoy_requests_total{status="408"}') == 1


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "asgi"])
async def test_a_body_below_the_least_rate_is_cut_after_its_grace_and_one_above_it_is_not(
    direct: bool,
) -> None:
    """The fast client sends so many bytes at once that it keeps the least rate for minutes."""
    async with convoy(direct=direct, body_grace_s=0.1, body_rate=100) as (server, pipeline):
        whole = post(b"1" * 90_000)
        slow, quick = await server.send(whole[:80]), await server.send(whole[:-1000])
        answer = await slow.rest()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert "too slowly" in error_in(answer)
        await until(lambda: pipeline.admission.requests == 1)  # the quick one's
        quick.send(whole[-1000:])
        assert (await quick.reply()).status == 200


async def test_the_rest_of_a_body_that_was_answered_early_has_its_time_too() -> None:
    async with convoy(direct=False) as (server, _):
        request = post(b"1" * 1000, "Content-Type: text/plain")
        client = await server.send(request[:-500])
        assert (await client.reply()).status == 415
        server.edge.limits = limits(body_s=0.1)
        assert await client.rest() == b""  # closed, and not answered twice
        assert [entry.status for entry in server.entries] == [415]


async def test_a_request_that_waits_behind_another_is_not_slow() -> None:
    gate, hour = threading.Event(), 3600
    own: Any = {"body_s": hour, "body_grace_s": hour, "sweep_s": _LONG_S}
    async with convoy(FakeEngine(gate=gate), **own) as (server, _):
        client = await server.send(post(b"1") + post(b"2" * 90_000)[:60_000])
        await until(lambda: [len(side._answers.queue) for side in sides(server)] == [2])
        (connection,), begun = sides(server), asyncio.get_running_loop().time()
        # However far apart the sweeps are: on a busy machine farther than they should be.
        for hours in (2, 9, 10):
            connection.inspect(begun + hours * hour)
        gate.set()
        assert (await client.reply()).status == 200
        connection.inspect(begun + 10.5 * hour)  # its own time runs from the last of those
        client.send(b"2" * 90_000)
        assert (await client.reply()).status == 200


async def test_a_request_that_waited_behind_another_has_its_own_time_and_no_more() -> None:
    gate, hour = threading.Event(), 3600
    own: Any = {"body_s": hour, "body_grace_s": hour, "sweep_s": _LONG_S}
    async with convoy(FakeEngine(gate=gate), **own) as (server, _):
        client = await server.send(post(b"1") + post(b"2" * 90_000)[:60_000])
        await until(lambda: [len(side._answers.queue) for side in sides(server)] == [2])
        (connection,), begun = sides(server), asyncio.get_running_loop().time()
        connection.inspect(begun + 10 * hour)
        gate.set()
        assert (await client.reply()).status == 200
        connection.inspect(begun + 11.5 * hour)
        assert (await client.reply()).status == 408


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async with convoy() as (server, _):
        client = await server.send(
            b"".join(post(b"%d" % n, f"X-Request-Id: {n}") for n in range(8))
        )
        for n in range(8):
            reply = await client.reply()
            assert reply.headers["x-request-id"] == str(n)
            found = json.loads(reply.body)["results"][0]["predictions"][0]["index"]
            assert found == n
        assert [entry.id for entry in server.entries] == [b"%d" % n for n in range(8)]


async def test_what_is_no_http_is_not_taken_for_the_answer_to_the_request_before_it() -> None:
    gate = threading.Event()
    async with convoy(FakeEngine(gate=gate)) as (server, pipeline):
        client = await server.send(post(b"1"))
        await until(lambda: pipeline.admission.images == 1)
        client.send(b"this is no http\r\n\r\n")
        gate.set()
        assert (await client.reply()).status == 200
        refused = await client.rest()
        assert refused.startswith(b"HTTP/1.1 400 ")
        assert [entry.status for entry in server.entries] == [200, 400]


# --- answers -------------------------------------------------------------------------------------


async def _large(_: Scope, receive: Receive, send: Send) -> None:
    """Answer with a body that does not fit into any kernel buffer."""
    await receive()
    size = 64 * 2**20
    headers = [(b"content-length", b"%d" % size)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _n in range(64):
        await send({"type": "http.response.body", "body": bytes(2**20), "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def test_an_answer_that_is_not_taken_is_given_up_and_one_that_is_taken_slowly_is_not() -> (
    None
):
    """The test itself inspects the connections, each time with a clock that is a minute later."""
    size, minute = 64 * 2**20, 60.0
    async with listening(_large, limits=limits(answer_s=1.5 * minute, sweep_s=_LONG_S)) as server:
        stuck, slow = await server.connect(limit=1024), await server.connect(limit=1024)
        stuck.send(get("/"))
        slow.send(get("/"))
        port = slow.writer.get_extra_info("sockname")[1]
        await until(lambda: len(server.connections) == 2)
        (served,) = (
            side for side in sides(server) if side._transport.get_extra_info("peername")[1] == port
        )
        taken, moment = 0, asyncio.get_running_loop().time()

        async def take() -> int:
            async with asyncio.timeout(PATIENCE_S):
                piece = await slow.reader.read(2**20)
            assert piece, f"cut after {taken} bytes"
            return len(piece)

        for _ in range(5):
            await until(lambda: all(map(waits_to_write, sides(server))))
            moment += minute
            for side in sides(server):
                side.inspect(moment)
            while served._unsent_since:  # until the server goes on writing
                taken += await take()
        while taken < size:
            taken += await take()
        await until(lambda: len(server.entries) == 2)
        await until(lambda: len(server.connections) == 1)
        assert [(entry.status, entry.bytes_out >= 2**26) for entry in server.entries] == [
            (200, False),
            (200, True),
        ]


def waits_to_write(side: Any) -> bool:
    """Return whether some written bytes still wait to be sent to the client."""
    return bool(side._transport.get_write_buffer_size())


# --- connections ---------------------------------------------------------------------------------


async def test_good_clients_are_served_at_once_beside_many_slow_ones() -> None:
    async with convoy(connections=300) as (server, pipeline):
        slow = [await server.send(get("/")[:-2]) for _ in range(100)]
        slow += [await server.send(post(b"1" * 1000)[:-500]) for _ in range(100)]
        await until(lambda: len(server.connections) == 200)
        good = await server.connect()
        for n in range(50):
            good.send(post(b"%d" % (n % 10)))
            assert (await good.reply()).status == 200
        assert pipeline.admission.requests == 100  # of the others, whose bodies were begun
        assert len(slow) == 200


async def test_a_connection_that_closed_makes_room_for_another_of_its_address() -> None:
    async with convoy(per_address=2) as (server, _):
        for n in range(6):
            client = await server.connect()
            client.send(post(b"%d" % n))
            assert (await client.reply()).status == 200
            client.writer.close()
            await until(lambda: not server.connections)


async def test_the_sweep_rests_without_connections() -> None:
    async with convoy(head_s=0.05) as (server, _):
        assert await (await server.connect()).rest() == b""
        await until(lambda: not server.edge.sweeping)
        assert await (await server.connect()).rest() == b""  # and comes back
