"""API keys, limits per client, request IDs, and lines of the access log."""

import asyncio
import json
import os
import re
import resource
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.api.app import create_app
from service.edge.edge import Limits, allowed
from service.edge.keys import Keys
from service.settings import LogFormat, LogLevel
from service.telemetry.logs import AccessLog, LineWriter
from tests.support import PATIENCE_S
from tests.support.servers.listening import PATIENT, OpenPort, Reply, get, listening, post
from tests.support.service.client import until
from tests.support.service.fakes import FakeEngine, make_repository

pytestmark = pytest.mark.anyio

KEY = "correct-horse"
BEARER = f"Authorization: Bearer {KEY}"


@pytest.fixture(params=[True, False], ids=["direct", "asgi"])
def direct(request: pytest.FixtureRequest) -> bool:
    """Return whether requests use the direct path where that is possible. Each test runs with both
    values."""
    return bool(request.param)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    file = tmp_path / "keys"
    file.write_text(f"another\n{KEY}\n")
    file.chmod(0o600)
    return Keys(file)


@asynccontextmanager
async def convoy(
    *, direct: bool = True, engine: FakeEngine | None = None, **options: Any
) -> AsyncIterator[OpenPort]:
    repository = make_repository(engine)
    await repository.warm_up()
    app = create_app(repository)
    endpoints = app.endpoints if direct else {}
    async with listening(app, endpoints=endpoints, **options) as server:
        server.repository = repository
        yield server
    await repository.close(PATIENCE_S)


def error_of(reply: Reply, status: int) -> str:
    assert reply.status == status, reply
    assert reply.headers["content-type"] == "application/json"
    body = json.loads(reply.body)
    assert list(body) == ["error"]
    return str(body["error"])


# --- API keys ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", [BEARER, f"authorization: bearer  {KEY} ", f"X-API-Key: {KEY}", "x-api-key: another"]
)
async def test_a_key_that_is_known_is_let_in(direct: bool, keys: Keys, header: str) -> None:
    async with convoy(direct=direct, keys=keys) as server:
        assert (await server.ask(post(b"1", header))).status == 200
        (entry,) = server.entries
        assert entry.client == f"127.0.0.1 key {1 if 'another' in header else 2}"


async def test_a_wrong_key_is_told_from_none(keys: Keys) -> None:
    async with convoy(engine=FakeEngine(), keys=keys) as server:
        for headers, says in (
            ((), "an API key is required"),
            (("X-API-Key: wrong",), "this API key is not known"),
            (("Authorization: Bearer wrong",), "this API key is not known"),
        ):
            assert error_of(await server.ask(post(b"1", *headers)), 401).startswith(says)


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Authorization: Bearer wrong",),
        ("Authorization: Bearer",),
        (f"Authorization: Basic {KEY}",),
        (f"Authorization: {KEY}",),
        ("X-API-Key: ",),
        (f"X-API-Key: {KEY}x",),
        ("X-API-Key: schl\xfcssel\xff",),
        ("X-API-Key: correct", "X-API-Key: -horse"),
        ("Authorization: Bearer wrong", f"X-API-Key: {KEY}"),
    ],
)
async def test_any_other_is_refused(direct: bool, keys: Keys, headers: tuple[str, ...]) -> None:
    engine = FakeEngine()
    async with convoy(direct=direct, engine=engine, keys=keys) as server:
        client = await server.send(post(b"1", *headers))
        reply = await client.reply()
        assert "API key" in error_of(reply, 401)
        assert reply.headers["www-authenticate"] == "bearer"
        assert reply.headers["x-request-id"]
        assert KEY not in repr(reply)
        client.send(post(b"2", BEARER))  # the connection is as good as before
        assert (await client.reply()).status == 200
    assert len(engine.batches) == 1


async def test_what_is_open_needs_no_key_and_all_else_does(keys: Keys) -> None:
    async with convoy(keys=keys) as server:
        for path in ("/", "/?x", "/v2/health/live", "/v2/health/ready", "/page/page.js"):
            assert (await server.ask(get(path))).status == 200, path
        closed = (
            "/metrics",
            "/docs",
            "/openapi.json",
            "/v2",
            "/v2/models/fake",
            "/v2/models/stats",
            "/nowhere",
            "/v2/health/live/",
            "/v2/health",
            "//page/page.js",
            "/pagex",
            "http://convoy/v2/health/live",
        )
        for path in closed:
            error_of(await server.ask(get(path)), 401)
            assert (await server.ask(get(path, BEARER))).status != 401
        error_of(await server.ask(post(b"", path="/v2/repository/index")), 401)
        error_of(await server.ask(post(b"1", path="/page/../v1/classify")), 401)
        error_of(await server.ask(post(b"1", path="/")), 401)


@pytest.mark.parametrize("name", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
async def test_a_refusal_does_not_wait_for_a_large_body(keys: Keys, name: str) -> None:
    async with convoy(keys=keys) as server:
        client = await server.send(get("/v1/classify", name, method="POST"))
        reply = await client.reply()
        error_of(reply, 401)
        assert reply.headers["connection"] == "close"


async def test_keys_are_exchanged_while_it_serves(keys: Keys, tmp_path: Path) -> None:
    async with convoy(keys=keys) as server:
        (tmp_path / "keys").write_text("fresh\n")
        keys.reload()
        error_of(await server.ask(post(b"1", BEARER)), 401)
        assert (await server.ask(post(b"1", "X-API-Key: fresh"))).status == 200


async def test_a_key_does_not_pay_what_the_key_owes_that_was_on_its_line(
    direct: bool, tmp_path: Path
) -> None:
    file, gate = tmp_path / "keys", threading.Event()
    file.write_text("gone\nkept\n")
    file.chmod(0o600)
    keys = Keys(file)
    limits = Limits(rate=1, per_client=8)
    async with convoy(
        direct=direct, engine=FakeEngine(gate=gate), keys=keys, limits=limits
    ) as server:
        first = await server.send(post(form(8), FORM, "X-API-Key: gone"))  # owes seven seconds
        await until(lambda: server.edge.inside == {"key 1": 8})
        file.write_text("kept\n")
        keys.reload()
        error_of(await server.ask(post(b"7", "X-API-Key: gone")), 401)
        second = await server.send(post(b"7", "X-API-Key: kept"))
        await until(lambda: server.edge.inside == {"key 1": 8, "key 1, reload 1": 1})
        gate.set()
        for client in (first, second):  # what is accepted is answered, whatever was reloaded
            assert (await client.reply()).status == 200
        assert server.edge.inside == {}


# --- how much one client may have inside ---------------------------------------------------------


async def test_one_client_has_so_many_requests_inside_and_no_more(direct: bool) -> None:
    gate = threading.Event()
    async with convoy(
        direct=direct, engine=FakeEngine(gate=gate), limits=Limits(per_client=3)
    ) as server:
        inside = [await server.send(post(b"%d" % n)) for n in range(3)]
        await until(lambda: server.edge.inside == {"127.0.0.1": 3})
        refused = await server.ask(post(b"9"))
        assert "3 of your images are in progress" in error_of(refused, 429)
        assert refused.headers["retry-after"] == "1"
        assert (await server.ask(get("/v2/health/ready"))).status == 200  # is never counted
        gate.set()
        for client in inside:
            assert (await client.reply()).status == 200
        assert server.edge.inside == {}
        assert (await server.ask(post(b"9"))).status == 200


async def test_a_client_that_leaves_has_nothing_inside_any_longer(direct: bool) -> None:
    gate = threading.Event()
    async with convoy(
        direct=direct, engine=FakeEngine(gate=gate), limits=replace(PATIENT, per_client=2)
    ) as server:
        whole, half = await server.send(post(b"1")), await server.send(post(b"12")[:-1])
        await until(lambda: server.edge.inside == {"127.0.0.1": 2})
        whole.writer.transport.abort()
        half.writer.transport.abort()
        await until(lambda: server.edge.inside == {})
        assert [entry.status for entry in server.entries] == [499, 499]
        gate.set()


async def test_with_keys_it_is_the_key_that_counts(keys: Keys) -> None:
    gate = threading.Event()
    async with convoy(
        engine=FakeEngine(gate=gate), keys=keys, limits=Limits(per_client=1)
    ) as server:
        first = await server.send(post(b"1", BEARER))
        await until(lambda: server.edge.inside == {"key 2": 1})
        error_of(await server.ask(post(b"1", BEARER)), 429)
        error_of(await server.ask(post(b"1", "X-API-Key: wrong")), 401)
        second = await server.send(post(b"1", "X-API-Key: another"))
        await until(lambda: server.edge.inside == {"key 2": 1, "key 1": 1})
        gate.set()
        for client in (first, second):
            assert (await client.reply()).status == 200


FORM = "Content-Type: multipart/form-data; boundary=x"


def form(images: int) -> bytes:
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n7\r\n'
    return part * images + b"--x--\r\n"


async def test_images_are_what_is_counted_not_requests(direct: bool) -> None:
    gate = threading.Event()
    async with convoy(
        direct=direct, engine=FakeEngine(gate=gate), limits=Limits(per_client=4)
    ) as server:
        message = error_of(await server.ask(post(form(5), FORM)), 413)
        assert "the request has 5 images; at most 4 of your" in message
        first = await server.send(post(form(3), FORM))
        await until(lambda: server.edge.inside == {"127.0.0.1": 3})
        refused = await server.ask(post(form(2), FORM))
        assert "3 of your images are in progress" in error_of(refused, 429)
        second = await server.send(post(form(1), FORM))
        await until(lambda: server.edge.inside == {"127.0.0.1": 4})
        gate.set()
        assert [(await each.reply()).status for each in (first, second)] == [200, 200]
        assert (await server.ask(post(form(4), FORM))).status == 200
        assert server.edge.inside == {}


async def test_a_rate_is_in_images(direct: bool) -> None:
    async with convoy(direct=direct, limits=Limits(rate=0.02)) as server:  # 400 s for 8 images
        assert (await server.ask(post(form(8), FORM))).status == 200  # a full bucket owes the rest
        refused = await server.ask(post(b"7"))
        said = re.search(
            r"0\.02 images per second that are allowed; send the next image in (\d+) s",
            error_of(refused, 429),
        )
        assert said
        assert 400 - PATIENCE_S < int(said[1]) <= 400


async def test_priorities_above_the_default_belong_to_keys_that_may_use_them(
    direct: bool, tmp_path: Path
) -> None:
    file = tmp_path / "rights"
    file.write_text(f"{KEY} weight=2.5 priority=1\nanother\n")
    file.chmod(0o600)
    urgent, v2 = "X-Priority: 1", "/v2/models/fake/infer"
    tensor = {"name": "image", "datatype": "UINT8", "shape": [1, 1, 1, 1], "data": [7]}
    body = json.dumps({"inputs": [tensor], "parameters": {"priority": 1}}).encode()
    async with convoy(direct=direct, keys=Keys(file)) as server:
        for request in (post(b"7", BEARER, urgent), post(body, BEARER, path=v2)):
            assert (await server.ask(request)).status == 200
        for priority in ("0", "2", "9"):
            asked = post(b"7", "X-API-Key: another", f"X-Priority: {priority}")
            assert (await server.ask(asked)).status == 200
        for request in (
            post(b"7", "X-API-Key: another", urgent),
            post(body, "X-API-Key: another", path=v2),
        ):
            message = error_of(await server.ask(request), 403)
            assert "priority 1 is above the default" in message
            assert "priority=1" in message
    async with convoy(direct=True, limits=Limits(highest_priority=2)) as server:
        error_of(await server.ask(post(b"7", urgent)), 403)
        assert (await server.ask(post(b"7"))).status == 200


async def test_a_flood_fills_its_own_share_of_the_queue(direct: bool, keys: Keys) -> None:
    """The queue holds at most 40 images. The flood's newest requests make room for the other
    client's requests."""
    gate, bad = threading.Event(), "X-API-Key: another"
    async with convoy(direct=direct, engine=FakeEngine(gate=gate), keys=keys) as server:
        flood = [await server.send(post(form(8), FORM, bad)) for _ in range(5)]
        (pipeline,) = server.repository.models.values()
        await until(lambda: pipeline.admission.images == 40)
        honest = [await server.send(post(b"7", BEARER)) for _ in range(3)]
        refused = await server.ask(post(form(8), FORM, bad))
        assert "no room for 8 more" in error_of(refused, 429)
        evicted = [each for each in flood if each.reader._buffer]  # type: ignore[attr-defined]
        assert len(evicted) == 1
        message = error_of(await evicted[0].reply(), 429)
        assert "your client holds the largest part of it" in message
        gate.set()
        for client in (*honest, *(each for each in flood if each is not evicted[0])):
            assert (await client.reply()).status == 200
        assert pipeline.admission.images == 0


# --- ids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["a", "4bf92f3577b34da6-1", "!~", "x" * 128])
async def test_an_id_that_is_sane_is_taken_over(direct: bool, given: str) -> None:
    async with convoy(direct=direct) as server:
        reply = await server.ask(post(b"1", f"X-Request-ID: {given}"))
        assert reply.headers["x-request-id"] == given
        assert server.entries[0].id == given.encode()


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, "\xe4", "a\tb"])
async def test_any_other_is_replaced_by_one_of_ours(direct: bool, given: str) -> None:
    async with convoy(direct=direct) as server:
        asked = [await server.ask(post(b"1", f"X-Request-ID: {given}")) for _ in range(2)]
        ids = [reply.headers["x-request-id"] for reply in asked]
        assert given not in ids
        assert len(set(ids)) == 2
        assert all(made.isascii() and len(made) < 30 for made in ids)


async def test_every_answer_has_an_id_whatever_it_is(direct: bool) -> None:
    requests = {
        200: get("/v2/health/live"),
        404: get("/nowhere"),
        405: get("/v1/classify"),
        400: post(b"x"),
        413: post(b"1" * 100_001),
        422: post(b"1", path="/v1/classify?top_k=0"),
        415: post(b"1", "Content-Type: text/plain"),
    }
    async with convoy(direct=direct) as server:
        for status, request in requests.items():
            reply = await server.ask(request)
            assert (reply.status, bool(reply.headers["x-request-id"])) == (status, True)
        broken = await server.ask(b"no http\r\n\r\n")
        assert broken.status == 400
        assert broken.headers["x-request-id"]
        statuses = [entry.status for entry in server.entries]
        assert sorted(statuses) == sorted([*requests, 400])


async def test_an_unexpected_error_is_logged_with_its_id(
    direct: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def crash(_: bytes) -> Any:
        raise RuntimeError("of the decoder")

    repository = make_repository(decode=crash)
    await repository.warm_up()
    app = create_app(repository)
    endpoints = app.endpoints if direct else {}
    async with listening(app, endpoints=endpoints) as server:
        error_of(await server.ask(post(b"1", "X-Request-Id: find-me")), 500)
    await repository.close(PATIENCE_S)
    assert "find-me" in caplog.text
    assert "of the decoder" in caplog.text


async def test_head_is_answered_as_get_without_the_body(keys: Keys) -> None:
    async with convoy(keys=keys) as server:
        for path, status in {"/v2/health/live": 200, "/": 200, "/metrics": 401}.items():
            client = await server.send(get(path, method="HEAD"))
            head = await client.reply(to_head=True)
            client.send(get(path))
            whole = await client.reply()
            assert head.status == whole.status == status
            assert head.headers["content-length"] == whole.headers["content-length"] != "0"


# --- access lines --------------------------------------------------------------------------------


async def test_every_request_is_one_line(direct: bool, keys: Keys) -> None:
    reader, writer = os.pipe()
    lines = LineWriter(LogFormat.JSON, writer)
    image = b"7" + b"\x89PNG" * 100
    log = AccessLog(lines, LogLevel.DEBUG)  # which has scrapes, too
    async with convoy(direct=direct, keys=keys, ended=log) as server:
        client = await server.send(post(image, BEARER, "X-Request-Id: one"))
        scored = await client.reply()
        client.send(get("/metrics?token=hidden", BEARER))
        metrics = await client.reply()
        await server.ask(get("/metrics?token=hidden", "X-API-Key: hidden"))
    lines.close()
    os.close(writer)
    with os.fdopen(reader) as read:
        text = read.read()
    assert "hidden" not in text
    assert KEY not in text
    assert "PNG" not in text
    first, second, third = map(json.loads, text.splitlines())
    assert [line["level"] for line in (first, second, third)] == ["INFO", "DEBUG", "INFO"]
    assert first["id"] == "one"
    assert first["client"] == "127.0.0.1 key 2"
    assert (first["method"], first["path"], first["status"]) == ("POST", "/v1/classify", 200)
    assert (first["bytes_in"], first["bytes_out"]) == (len(image), len(scored.body))
    assert (first["model"], first["images"], first["batch"]) == ("fake", 1, 1)
    phases = ("receive", "decode", "queue", "compute", "respond")
    assert sum(first[f"{name}_us"] for name in phases) <= first["us"]
    timing = json.loads(scored.body)["timing_ms"]
    assert all(abs(first[f"{name}_us"] - 1e3 * timing[name]) < 1.5 for name in phases)
    assert (second["path"], second["bytes_out"]) == ("/metrics", len(metrics.body))
    assert "model" not in second
    assert (third["path"], third["status"]) == ("/metrics", 401)
    assert third["client"] == "127.0.0.1"


async def test_an_unread_log_delays_no_request() -> None:
    reader, writer = os.pipe()
    lines = LineWriter(LogFormat.TEXT, writer, most_lines=50)
    async with convoy(ended=AccessLog(lines)) as server:
        client = await server.connect()
        for n in range(600):
            client.send(post(b"1", "X-Request-Id: " + f"{n:0128}"))
            async with asyncio.timeout(PATIENCE_S):
                assert (await client.reply()).status == 200
    lines.close(0.01)
    os.close(reader)
    lines.close(PATIENCE_S)
    os.close(writer)


def test_files_of_another_port_leave_fewer_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10_000, 10_000))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    few, fewer = (allowed(Limits(connections=10_000), files).connections for files in (0, 300))
    assert 0 < fewer < few < 10_000
    # Other tests' files may be closed meanwhile.
    assert few - fewer == pytest.approx(300, abs=50)


@pytest.mark.parametrize(("hard", "connections"), [(20_000, 1000), (1500, 1000), (1000, 0)])
def test_files_that_may_be_opened_later_raise_the_limit_but_take_no_connections(
    hard: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = []
    monkeypatch.setattr(os, "listdir", lambda _: range(40))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: raised.append(limit))
    found = allowed(Limits(connections=1000), spare_files=5000).connections
    assert found == connections or 0 < found < 1000 == hard
    ((soft, same),) = raised
    assert (soft, same) == (hard, hard) or 6000 < soft < hard == same
