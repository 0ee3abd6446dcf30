"""No parser of a client's bytes takes more than 50 ms of a core per megabyte."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, cast

import pytest

from models import OutputKind
from service.api.v1 import query_parser, urgency_from
from service.api.v2.parse import parse_request
from service.edge.edge import Edge
from service.errors import ServiceError
from service.hosting.model_info import ModelInfo
from service.http.body import form_boundary, images_of
from service.http.compression import inflate, wanted_coding
from service.http.connection import Connection
from service.http.uvicorn_adapter import ConvoyConfig
from service.images.prepare import parse_image_file
from tests.support.images import worst_inputs as worst
from tests.support.models.slowness import slowness
from tests.support.service.deaf_transport import DeafTransport, ServerState, receive

MS_A_MB = 50.0

# Below this a parser has hardly begun: what it takes is not what its input costs.
_LEAST_MB = 0.1

INFO = ModelInfo("m", "1", (224, 224, 3), "scores", OutputKind.LOGITS, ())


def feed(data: bytes) -> float:
    """Return the seconds that a connection takes to read `data`, without a client or an
    application."""
    return asyncio.run(_feed(data))


async def _feed(data: bytes) -> float:
    config = ConvoyConfig(_no_application, Edge(), log_config=None, lifespan="off", ws="none")
    config.load()
    connection = Connection(config, cast(Any, ServerState()), {})
    connection.connection_made(DeafTransport())
    started = time.thread_time()
    receive(connection, data)
    while connection._unparsed:
        await asyncio.sleep(0)
    taken = time.thread_time() - started
    connection.connection_lost(None)
    return taken


async def _no_application(_: Any, __: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


_PARSERS: Mapping[str, tuple[Callable[[bytes], object], Mapping[str, bytes]]] = {
    "JSON": (lambda body: parse_request(body, None, INFO, 8), worst.JSON),
    "form": (lambda body: images_of(body, worst.BOUNDARY, 128), worst.FORMS),
    "query": (query_parser(INFO, 1000), worst.QUERIES),
    "Content-Type": (lambda text: form_boundary({b"content-type": text}), worst.CONTENT_TYPES),
    "Accept-Encoding": (lambda text: wanted_coding(text.decode(), 10**6), worst.ACCEPTED),
    "X-Timeout-Ms": (
        lambda text: urgency_from({b"x-timeout-ms": text}, 0.0),
        {"digits": b"9" * 65_000, "spaces": b" " * 65_000},
    ),
    "image": (parse_image_file, worst.HEADERS),
    "binary tensor": (
        lambda body: parse_request(body, len(body) - 4 * 10**6, INFO, 8),
        {
            "empty elements": worst.infer_json(b"[]", b"BYTES", b"[8]").replace(
                b'"data":[]', b'"parameters":{"binary_data_size":4000000}'
            )
            + bytes(4 * 10**6)
        },
    ),
}


def cases() -> Iterator[Any]:
    for kind, (parse, inputs) in _PARSERS.items():
        for name, data in inputs.items():
            yield pytest.param(parse, data, id=f"{kind}: {name}")


# A parse is timed until one is within the budget: others use the core's caches too, and its clock.
_TRIES = 10


def check_budget(timed: Callable[[], float], size: int) -> None:
    """Check that the time of the fastest of a few runs is within the limit for `size` bytes."""
    tried = []
    for _ in range(_TRIES):
        tried.append(timed() / slowness() * 1e3 / max(size / 1e6, _LEAST_MB))
        if tried[-1] < MS_A_MB:
            return
    raise AssertionError(f"took {min(tried):.0f} ms a MB at least, and may take {MS_A_MB:.0f}")


@pytest.mark.parametrize(("parse", "data"), list(cases()))
def test_a_parser_takes_time_in_proportion_to_its_input(
    parse: Callable[[bytes], object], data: bytes
) -> None:
    def timed() -> float:
        started = time.thread_time()
        try:
            parse(data)
        except ServiceError as error:
            assert 400 <= error.code < 500  # noqa: PT017  refused, in whatever time
            assert len(str(error)) < 500  # noqa: PT017
        return time.thread_time() - started

    check_budget(timed, len(data))


@pytest.mark.parametrize("name", worst.HEADS)
def test_a_head_takes_time_in_proportion_to_its_length(name: str) -> None:
    head = worst.HEADS[name]
    for data in (head + b"\r\n\r\n", head):
        check_budget(partial(feed, data), len(data))


@pytest.mark.parametrize("name", worst.COMPRESSED)
def test_inflating_takes_time_in_proportion_to_what_comes_out(name: str) -> None:
    data = worst.COMPRESSED[name]()

    def timed() -> float:
        started = time.thread_time()
        inflate(data, "gzip", 20 * worst.MB)
        return time.thread_time() - started

    check_budget(timed, len(inflate(data, "gzip", 20 * worst.MB)))
