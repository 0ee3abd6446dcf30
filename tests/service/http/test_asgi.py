"""The same requests get the same answers on Convoy's own connection and over ASGI."""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.servers.listening import get, post
from tests.support.servers.served import FORM, PATH, form, run, served

V2_PATH = "/v2/models/fake/infer"
MOST = 100_000  # bytes in a body

# What differs from one request to the next; the date, its server's and the connection's own.
UNCOMPARED = {"date", "x-request-id", "server", "connection"}


def tensor(**fields: Any) -> bytes:
    image = {"name": "image", "datatype": "UINT8", "shape": [1, 1, 1, 1], "data": [7], **fields}
    return json.dumps({"inputs": [image]}).encode()


def v2(body: bytes, *headers: str) -> bytes:
    return post(body, *headers, path=V2_PATH)


def chunked(*chunks: bytes, path: str = PATH) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: convoy\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def requests() -> Iterator[bytes]:
    """Yield a hundred requests, some of them unusual. Each leaves its connection open."""
    yield from (post(b"%d" % digit) for digit in range(10))
    # Bodies.
    yield from (post(body) for body in (b"", b"x", b"\0", b"7" * 1000, b"7" * MOST))
    yield from (chunked(*chunks) for chunks in ((b"7",), (b"7", b"8" * 50_000), ()))
    yield from (post(b"7", header) for header in ("Expect: ", "TE: nothing"))
    # Forms.
    yield post(form(b"1", b"2", b"3"), FORM)
    yield post(form(*[b"%d" % (digit % 10) for digit in range(32)]), FORM)
    yield post(form(*[b"1"] * 33), FORM)
    yield from (post(body, FORM) for body in (b"", b"x", form(), form(b""), form(b"1", b"x")))
    yield post(form(b"1")[:-8], FORM)
    yield post(form(b"1").replace(b'"file"', b'"image"'), FORM)
    yield post(form(b"1").replace(b'"file"', b'"other"'), FORM)
    yield from (
        post(form(b"1"), f"Content-Type: multipart/form-data{rest}")
        for rest in ("", "; boundary=", "; boundary=other", '; boundary="cut"')
    )
    # Types.
    yield from (
        post(b"7", f"Content-Type: {name}")
        for name in ("image/jpeg", "IMAGE/PNG", "text/plain", "application/json", "image/*", "")
    )
    # Queries.
    yield from (
        post(b"7", path=f"{PATH}?{query}")
        for query in (
            *("top_k=1", "top_k=10", "top_k=0", "top_k=11", "top_k=-1", "top_k=1e1", "top_k="),
            *("top_k", "", "&", "top_k=%31", "top_k=2&top_k=3", "topk=1", "top_k=" + "1" * 2000),
        )
    )
    # Paths.
    yield from (
        post(b"7", path=path)
        for path in (
            *("/v1/models/fake/classify", "/v1/models/none/classify", "/v1/%63lassify"),
            *("/v1/classify/", "/v2/models/none/infer", "/v2/models/fake/versions/2/infer"),
            *("/v2/models/fake/ready", "/nothing"),
        )
    )
    yield from (get(path) for path in (PATH, V2_PATH, "/v2/models/fake", "/v2/health/ready"))
    # Headers.
    yield from (
        post(b"7", f"X-Timeout-Ms: {value}")
        for value in ("60000", "1e5", "0", "-1", "nan", "inf", "soon", "1" * 30)
    )
    yield from (
        post(b"7", f"X-Priority: {value}") for value in ("1", "2", "0", "-1", "1.5", "9" * 9)
    )
    yield post(b"7", "X-Request-Id: mine")
    # Codings.
    yield post(gzip.compress(b"7"), "Content-Encoding: gzip")
    yield post(zlib.compress(b"7" + bytes(10_000)), "Content-Encoding: deflate")
    yield post(gzip.compress(bytes(MOST + 1)), "Content-Encoding: gzip")
    yield from (post(b"7", f"Content-Encoding: {name}") for name in ("identity", "gzip", "br"))
    # V2.
    yield v2(tensor())
    yield v2(tensor(), "Accept-Encoding: gzip")
    yield v2(tensor(shape=[9, 1, 1, 1], data=list(range(9))))
    yield v2(tensor(), "Inference-Header-Content-Length: 5")
    yield v2(b"\x07", "Inference-Header-Content-Length: 0")
    spoilt: list[dict[str, Any]] = [
        *({"shape": [2, 1, 1, 1]}, {"shape": [1, 1, 1, 2]}, {"shape": []}, {"data": [256]}),
        *({"data": ["7"]}, {"data": []}, {"datatype": "FP32"}, {"name": "none"}),
    ]
    yield from (v2(tensor(**fields)) for fields in spoilt)
    yield from (v2(body) for body in (b"", b"{", b"[]", b"{}", b'{"inputs": []}', b"\xff"))
    yield v2(tensor(), "X-Timeout-Ms: 60000")


def steady(body: bytes) -> Any:
    """Return a body without the parts that vary between requests: times and batch sizes."""
    try:
        answer = json.loads(body)
    except ValueError:
        return body
    if isinstance(answer, dict):
        for told in (answer, answer.get("parameters", {})):
            told.pop("timing_ms", None)
            told.pop("batch_size", None)
    return answer


async def answers(
    *, stock: bool = False, direct: bool = True
) -> list[tuple[int, dict[str, str], Any]]:
    found = []
    async with served(stock=stock, direct=direct, max_body_bytes=MOST) as server:
        http = await server.connect()
        for request in requests():
            http.send(request)
            reply = await http.reply()
            headers = {k: v for k, v in reply.headers.items() if k not in UNCOMPARED}
            if "content-encoding" in headers or b"timing_ms" in reply.body:
                del headers["content-length"]  # of times, which are not always as many digits
            found.append((reply.status, headers, steady(reply.body)))
            if reply.headers.get("connection") == "close":
                http = await server.connect()
    return found


@pytest.mark.parametrize(("stock", "direct"), [(True, True), (False, False)])
@run
async def test_a_hundred_requests_have_the_same_answers_both_ways(
    stock: bool, direct: bool
) -> None:
    ours, theirs = await answers(), await answers(stock=stock, direct=direct)
    assert len(ours) >= 100
    assert {status for status, _, _ in ours} >= {200, 307, 400, 404, 405, 413, 415, 422}
    for request, one, other in zip(requests(), ours, theirs, strict=True):
        assert one == other, request[:300]


@pytest.mark.parametrize(("stock", "direct"), [(False, True), (False, False), (True, True)])
@run
async def test_the_way_that_is_compared_is_the_way_that_is_taken(stock: bool, direct: bool) -> None:
    async with served(stock=stock, direct=direct) as server:
        http = await server.connect()
        http.send(post(b"7"))
        assert await http.digit() == 7
        assert server.asked == [PATH] * (stock or not direct)
