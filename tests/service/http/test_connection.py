"""Requests to a model on Convoy's own connection are answered in order, and with the same answers
as over ASGI."""

import asyncio
import base64
import gc
import json
import threading
from typing import Any

import pytest

from service.errors import ImageError
from service.hosting.admission import ByteRoom
from service.hosting.request import Request
from service.http import connection as connection_module
from service.http.connection import Connection
from service.http.exchange import Exchange
from service.images.decode_pool import Decoding
from tests.support.servers.listening import post
from tests.support.servers.served import FORM, PATH, form, run, served
from tests.support.service.client import until
from tests.support.service.fakes import FakeEngine
from tests.support.service.garbage import CALLS, bytes_kept, bytes_left

LONG = 2**20
INFER = "/v2/models/fake/infer"
PIXELS = json.dumps(
    {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 1, 1, 1], "data": [7]}]}
).encode()


@run
async def test_an_image_is_answered_and_the_connection_is_kept() -> None:
    async with served() as server:
        http = await server.connect()
        for digit in range(10):
            http.send(post(b"%d" % digit))
            assert await http.digit() == digit
        assert not server.asked


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /v1/classify HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        b"1\r\n7\r\n0\r\n\r\n",
        post(b"7", path="/v1/%63lassify"),
        post(b"7" + bytes(LONG)),
        post(b"7", "content-encoding: identity"),
        post(form(b"7" + bytes(2**18)), FORM),
    ],
    ids=["chunked", "escaped path", "long", "coded", "long form"],
)
@run
async def test_what_is_unusual_is_answered_all_the_same(request_: bytes) -> None:
    async with served(max_body_bytes=2 * LONG) as server:
        http = await server.connect()
        http.send(request_)
        assert await http.digit() == 7
        http.send(post(b"8"))
        assert await http.digit() == 8
        # What is compared with the paths is the target as it came.
        assert server.asked == [PATH] * (b"%63" in request_)


@run
async def test_the_longest_body_arrives_whole_and_a_longer_one_is_refused() -> None:
    async with served(max_body_bytes=LONG) as server:
        http = await server.connect()
        http.send(post(b"7" + bytes(LONG - 1)))
        assert await http.digit() == 7
        http.send(post(b"7" + bytes(LONG)))
        assert (await http.answer())[0] == 413
        chunked = await server.connect()
        head = b"POST /v1/classify HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        chunked.send(head + b"%x\r\n" % (LONG + 1) + bytes(LONG + 1) + b"\r\n0\r\n\r\n")
        assert (await chunked.answer())[0] == 413


@pytest.mark.parametrize("request_", [post(b"7"), post(form(b"7", b"8"), FORM)])
@run
async def test_a_body_counts_until_it_is_decoded(request_: bytes) -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    async with served(engine) as server:
        http = await server.connect()
        http.send(request_)
        await until(lambda: bool(engine.batches))
        assert server.pipeline.admission.room.taken == 0
        (connection,) = server.connections
        (queued,) = connection._answers.queue
        assert (queued.chunks, queued.work._chunks) == ([], [])
        gate.set()
        assert (await http.answer())[0] == 200


@pytest.mark.parametrize("size", [2**17, 2**20], ids=["prepared at once", "prepared in a thread"])
@pytest.mark.parametrize("protocol", ["image", "form", "JSON", "V2"])
@run
async def test_a_file_is_freed_when_it_is_decoded(protocol: str, size: int) -> None:
    file = b"7" + bytes(size)
    text = base64.b64encode(file).decode()
    data = {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": [text]}]}
    request_ = {
        "image": lambda: post(file),
        "form": lambda: post(form(file), FORM),
        "JSON": lambda: post(
            json.dumps({"input": text}).encode(), "content-type: application/json"
        ),
        "V2": lambda: post(json.dumps(data).encode(), path=INFER),
    }[protocol]()
    gate = threading.Event()
    async with served(FakeEngine(gate=gate), max_body_bytes=2 * LONG) as server:
        http = await server.connect()
        with bytes_kept() as kept:
            http.send(request_)
            await until(lambda: server.pipeline.admission.images == 1)
            # No bytes are reserved for the file any more, so none may be in use.
            await until(lambda: server.pipeline.admission.room.taken == 0)
            await until(lambda: kept() < size / 2)
            gate.set()
            assert (await http.answer())[0] == 200


@run
async def test_an_idle_connection_keeps_nothing_of_what_it_brought() -> None:
    def left() -> int:
        return sum(isinstance(each, Request | Exchange) for each in gc.get_objects())

    two = post(form(b"7", b"x"), FORM)
    late = PIXELS[:-1] + b', "parameters": {"timeout": 1}}'
    async with served() as server:
        connections = [await server.connect() for _ in range(5)]
        gc.collect()
        before = left()  # of other tests
        gc.disable()
        try:
            for http, request_, status in zip(
                connections,
                (post(b"7"), post(b"x"), two, post(PIXELS, path=INFER), post(late, path=INFER)),
                (200, 400, 400, 200, 504),
                strict=True,
            ):
                http.send(request_)
                assert (await http.answer())[0] == status
            assert not server.asked
            # A thread may hold its last job a moment longer.
            await until(lambda: left() <= before)
        finally:
            gc.enable()


def unprepared(_: bytes) -> Decoding:
    raise ImageError("no image")


@pytest.mark.parametrize(
    "request_",
    [
        post(b"x" * 100_000),
        post(b"x" * LONG),
        post(PIXELS.replace(b"7", b'"%b"' % (b"a" * LONG)), path=INFER),
        post(PIXELS.replace(b"7", b"7" * LONG), path=INFER),
    ],
    ids=["image", "long image", "string", "long number"],
)
@run
async def test_a_refused_body_is_let_go_at_once_not_by_the_garbage_collector(
    request_: bytes,
) -> None:
    async with served(prepare=unprepared, max_body_bytes=2 * LONG) as server:
        http = await server.connect()

        async def refuse() -> None:
            http.send(request_)
            assert (await http.answer())[0] == 400

        left = await bytes_left(refuse)
    assert left < CALLS * len(request_) / 2, f"{left} bytes of {CALLS} times {len(request_)}"


@pytest.mark.parametrize("value", ["100-continue", "100-Continue "])
@run
async def test_a_client_that_expects_100_continue_receives_it(value: str) -> None:
    async with served() as server:
        http = await server.connect()
        http.send(post(b"", f"expect: {value}").replace(b"Length: 0", b"Length: 1"))
        assert (await http.head()).startswith(b"HTTP/1.1 100 ")
        http.send(b"7")
        assert await http.digit() == 7


@run
async def test_a_client_of_http_1_0_receives_no_100_continue() -> None:
    async with served() as server:
        http = await server.connect()
        head = post(b"", "expect: 100-continue").replace(b"Length: 0", b"Length: 1")
        http.send(head.replace(b"HTTP/1.1", b"HTTP/1.0"))
        await asyncio.sleep(0.05)
        http.send(b"7")
        assert (await http.head()).startswith(b"HTTP/1.1 200 ")


@run
async def test_pipelined_requests_are_answered_in_their_order() -> None:
    gate = threading.Event()
    async with served(FakeEngine(gate=gate)) as server:
        http = await server.connect()
        health = b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\n\r\n"
        http.send(post(b"1") + post(b"2") + health + post(b"3") + post(b"4"))
        await until(lambda: server.pipeline.admission.requests == 1)
        gate.set()
        assert [await http.digit(), await http.digit()] == [1, 2]
        assert (await http.answer())[0] == 200
        assert [await http.digit(), await http.digit()] == [3, 4]


@pytest.mark.parametrize(
    "request_",
    [
        post(b"7", "connection: close"),
        post(b"7", version="1.0"),
        # As uvicorn, which does not grant it.
        post(b"7", "connection: keep-alive", version="1.0"),
        post(b"7", "proxy-connection: keep-alive", version="1.0"),
    ],
    ids=["close", "1.0", "1.0, to be kept", "1.0, to be kept by a proxy"],
)
@run
async def test_a_connection_that_is_not_to_be_kept_is_closed(request_: bytes) -> None:
    async with served() as server:
        http = await server.connect()
        http.send(request_)
        status, headers, _ = await http.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert await http.ended()
        assert not server.asked


@run
async def test_a_client_that_leaves_within_its_body_gives_back_what_was_kept_for_it() -> None:
    async with served() as server:
        http = await server.connect()
        http.send(post(b"7" * 1000)[:-1])
        room = server.pipeline.admission.room
        await until(lambda: room.taken == 1000)
        http.abort()
        await until(lambda: room.taken == 0)
        assert server.pipeline.admission.requests == 0
        assert server.pipeline.metrics.counts.sum().requests[499] == 1


@run
async def test_a_client_that_leaves_the_queue_is_not_computed_for() -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate, max_batch=1)
    async with served(engine) as server:
        first, second, third = [await server.connect() for _ in range(3)]
        for number, http in enumerate((first, second, third)):
            http.send(post(b"%d" % number))
            await until(lambda n=number: server.pipeline.metrics.pending() == n)  # type: ignore[misc]
        second.abort()
        await until(lambda: server.pipeline.metrics.pending() == 1)
        gate.set()
        assert [await first.digit(), await third.digit()] == [0, 2]
        assert engine.batches == [1, 1]
        assert server.pipeline.metrics.counts.sum().requests[499] == 1


@run
async def test_a_client_that_leaves_during_its_batch_does_not_disturb_others() -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    async with served(engine) as server:
        first, second = await server.connect(), await server.connect()
        first.send(post(b"1"))
        await until(lambda: len(engine.batches) == 1)
        first.abort()
        await until(lambda: server.pipeline.metrics.counts.sum().requests.get(499) == 1)
        second.send(post(b"2"))
        gate.set()
        assert await second.digit() == 2


@run
async def test_a_request_without_room_for_its_bytes_is_answered_429() -> None:
    async with served() as server:
        room = server.pipeline.admission.room
        room.max_bytes = 30_000  # for an answer of up to 7,500 bytes, and one of these bodies
        first, second = await server.connect(), await server.connect()
        first.send(post(b"7" * 20_000)[:-1])
        await until(lambda: room.taken == 20_000)
        second.send(post(b"8" * 20_000))
        status, headers, body = await second.answer()
        assert (status, headers["retry-after"]) == (429, "1")
        assert "images and answers in progress have" in body["error"]
        first.send(b"7")
        assert await first.digit() == 7


@run
async def test_a_request_waits_while_its_client_does_not_take_answers() -> None:
    async with served() as server:
        http = await server.connect()
        await until(lambda: bool(server.connections))
        (connection,) = server.connections
        connection.pause_writing()  # as its transport does when much was not taken
        http.send(post(b"7"))
        await until(lambda: bool(connection._answers.queue))
        await asyncio.sleep(0.02)
        assert server.pipeline.admission.requests == 0
        connection.resume_writing()
        assert await http.digit() == 7


@run
async def test_shutdown_closes_a_connection_after_its_request() -> None:
    gate = threading.Event()
    async with served(FakeEngine(gate=gate)) as server:
        http = await server.connect()
        http.send(post(b"7"))
        await until(lambda: server.pipeline.admission.requests == 1)
        (connection,) = server.connections
        connection.shutdown()  # as uvicorn does on shutdown
        gate.set()
        status, headers, _ = await http.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert await http.ended()


@run
async def test_a_head_and_a_body_in_pieces_are_one_request() -> None:
    async with served() as server:
        http = await server.connect()
        for byte in post(b"7123", "x-request-id: mine"):
            http.send(bytes([byte]))
            await asyncio.sleep(0)
        status, headers, _ = await http.answer()
        assert (status, headers["x-request-id"]) == (200, "mine")
        assert not server.asked


@run
async def test_nothing_follows_a_refusal_of_a_body_that_is_expected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(max_body_bytes=LONG) as server:
        http = await server.connect()
        request_ = post(b"7" + bytes(LONG), "Expect: 100-continue")
        http.send(request_[: -LONG - 1])
        status, _, body = await http.answer()
        assert (status, "bytes are allowed" in body["error"]) == (413, True)
        await asyncio.sleep(0.05)
    assert not caplog.records


@run
async def test_an_answer_counts_until_its_client_has_read_it() -> None:
    gate = threading.Event()
    async with served(FakeEngine(gate=gate)) as server:
        http = await server.connect()
        http.send(post(b"7"))
        await until(lambda: len(server.connections) == 1)
        (connection,) = server.connections
        room = connection._config.room = ByteRoom(1000)
        transport = connection._transport
        connection._transport = Deaf(transport, 600)
        connection.pause_writing()
        assert room.taken == 600
        connection.resume_writing()
        assert room.taken == 0
        connection._transport = deaf = Deaf(transport, 2000)
        connection.pause_writing()  # there is no room for so much
        await asyncio.sleep(0)
        assert (room.taken, deaf.aborted) == (0, True)
        gate.set()


class Deaf:
    """A transport whose client has not yet read `unread` bytes."""

    def __init__(self, own: Any, unread: int) -> None:
        self._own, self._unread = own, unread
        self.aborted = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def get_write_buffer_size(self) -> int:
        return self._unread

    def abort(self) -> None:
        self.aborted = True
        self._own.abort()


@pytest.mark.parametrize(
    ("refused", "status"),
    [(post(b"no digit"), 400), (post(b"7", "X-Timeout-Ms: 0.000001"), 504)],
    ids=["wrong", "deadline"],
)
@run
async def test_while_models_have_requests_what_follows_a_refusal_is_read_in_turn(
    refused: bytes, status: int
) -> None:
    async with served() as server:
        http, other = await server.connect(), await server.connect()
        http.send(post(b"7"))
        assert await http.digit() == 7
        turns = next(iter(server.connections))._edge.turns
        turns.is_busy = lambda: True
        turns._paused = True  # as while other calls wait
        http.send(refused)
        assert (await http.answer())[0] == status
        http.send(post(b"9"))
        other.send(post(b"8"))
        assert await other.digit() == 8  # who was not refused does not wait
        await asyncio.sleep(0.05)
        assert not http.reader._buffer  # type: ignore[attr-defined]
        turns._next()
        assert await http.digit() == 9
        http.send(refused)
        assert (await http.answer())[0] == status
        http.abort()
        await until(lambda: len(server.connections) == 1)


@run
async def test_of_refused_requests_in_one_read_few_are_handled_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refusal takes up to 2 ms, and one read can have hundreds of requests."""
    at_once, over, most = 0, Connection._over, 0

    def count(connection: Connection, queued: Any) -> None:
        nonlocal at_once, most
        if not at_once:
            asyncio.get_running_loop().call_soon(forget)
        at_once += 1
        most = max(most, at_once)
        over(connection, queued)

    def forget() -> None:
        nonlocal at_once
        at_once = 0

    monkeypatch.setattr(Connection, "_over", count)
    async with served() as server:
        http = await server.connect()
        http.send(post(b"{}", path="/v2/models/fake/infer") * 20 + post(b"7"))
        for _ in range(20):
            assert (await http.answer())[0] == 400
        assert await http.digit() == 7
    assert most <= 3


def in_small_chunks(body: bytes) -> bytes:
    head = b"POST /v1/classify HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"


@run
async def test_what_comes_in_many_pieces_is_parsed_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[int] = []  # bytes of bodies in each callback of the event loop
    usual_piece, usual_parse = Connection.on_piece, Connection._parse

    def on_piece(connection: Connection, piece: bytes) -> None:
        parsed[-1] += len(piece)
        usual_piece(connection, piece)

    def parse(connection: Connection, data: bytes, size: int) -> None:
        parsed.append(0)
        usual_parse(connection, data, size)

    monkeypatch.setattr(Connection, "on_piece", on_piece)
    monkeypatch.setattr(Connection, "_parse", parse)
    body = b"7" + bytes(20_000)
    async with served() as server:
        http = await server.connect()
        http.send(in_small_chunks(body) + post(b"8"))
        assert [await http.digit(), await http.digit()] == [7, 8]
        assert sum(parsed) == len(body) + 1
        assert max(parsed) < 1000
        # A client that has ended its side, or left, behind what is not parsed yet.
        monkeypatch.setattr(connection_module, "_ASK_S", 3600.0)  # or a busy server sends 100 first
        ended = await server.connect()
        ended.send(in_small_chunks(body))
        ended.writer.write_eof()
        assert await ended.digit() == 7
        assert await ended.ended()
        left = await server.connect()
        left.send(in_small_chunks(body))
        await left.writer.drain()
        left.abort()
        half = await server.connect()
        half.send(in_small_chunks(body)[:-50])
        half.writer.write_eof()
        assert await half.ended()
        await until(lambda: len(server.connections) == 1)


@run
async def test_while_models_have_requests_many_pieces_wait_for_their_clients_turn() -> None:
    async with served() as server:
        http, other = await server.connect(), await server.connect()
        http.send(post(b"7"))
        assert await http.digit() == 7
        turns = next(iter(server.connections))._edge.turns
        turns.is_busy = lambda: True
        turns._paused = True  # as while other calls wait
        http.send(in_small_chunks(b"9" + bytes(3000)))
        other.send(post(b"8"))
        assert await other.digit() == 8
        await until(lambda: bool(turns._waiting))
        assert not http.reader._buffer  # type: ignore[attr-defined]
        turns._next()
        assert await http.digit() == 9


@run
async def test_a_body_that_began_behind_a_refusal_is_read_to_its_end() -> None:
    async with served() as server:
        http = await server.connect()
        http.send(post(b"7"))
        assert await http.digit() == 7
        (connection,) = server.connections
        turns = connection._edge.turns
        turns.is_busy = lambda: True
        turns._paused = True  # as while other calls wait
        whole = post(b"8" + bytes(50_000))
        http.send(post(b"7", path=f"{PATH}?no=1") + whole[:500])
        assert (await http.answer())[0] == 422
        await until(lambda: len(connection._answers.queue) == 1)
        turns._next()
        http.send(whole[500:])
        assert await http.digit() == 8


@run
async def test_behind_a_429_of_a_full_server_reading_goes_on_at_once() -> None:
    async with served() as server:
        room = server.pipeline.admission.room
        room.max_bytes = 30_000
        first, second = await server.connect(), await server.connect()
        first.send(post(b"7" * 20_000)[:-1])
        await until(lambda: room.taken == 20_000)
        turns = next(iter(server.connections))._edge.turns
        turns.is_busy = lambda: True
        turns._paused = True  # as while other calls wait
        second.send(post(b"8" * 20_000))
        assert (await second.answer())[0] == 429
        second.send(post(b"8"))
        assert await second.digit() == 8
        turns._next()
        first.send(b"7")
        assert await first.digit() == 7


@run
async def test_of_two_headers_of_one_name_the_last_counts() -> None:
    async with served() as server:
        http = await server.connect()
        http.send(post(b"7", "x-request-id: first", "x-request-id: second"))
        status, headers, _ = await http.answer()
        assert (status, headers["x-request-id"]) == (200, "second")
        assert not server.asked
