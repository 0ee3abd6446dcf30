"""No answer holds the GIL for long, for any route and form.

tests/fuzz/lock.py tests the same for reading requests. The lists here contain all routes.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from models import Inner, OutputKind, Results
from service.api import embeddings, v1
from service.api.app import create_app
from service.api.v2.infer_endpoint import Infer
from service.api.v2.interpretation import InferRequest, WantedOutput
from service.api.v2.parse import read_json
from service.api.v2.repository_calls import _decode as load_request
from service.engine.ranking import rank
from service.errors import BadRequestError
from service.grpc.messages import message_class, parse
from service.grpc.model_infer import _Exchange
from service.hosting.model_info import ModelInfo
from tests.fuzz.lock import KNOWN, MOST_HELD_S, READERS, TRIES, written
from tests.fuzz.targets import CORPUS, LOCK
from tests.service.whole.attacks.test_surfaces import EVERY, OTHER_GRPC, OTHER_HTTP
from tests.support.servers.routes import posts_of
from tests.support.service.fakes import make_repository
from tests.support.service.heartbeat import longest_hold_s

IMAGES, CLASSES, SIZE = 128, 1000, 1280

INFO = ModelInfo(
    *("m", "1", (32, 32, 3), "scores", OutputKind.LOGITS),
    [f"a class of some length, {number}" for number in range(CLASSES)],
    embedding=Inner("vector", (SIZE,)),
)
PIPELINE: Any = SimpleNamespace(
    info=INFO,
    longest_label=40,
    runner=SimpleNamespace(classes=CLASSES),
    admission=SimpleNamespace(max_images_a_request=IMAGES),
)


def scored(classes: int = CLASSES) -> Any:
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((IMAGES, classes), np.float32)
    rows = rank(Results(scores), OutputKind.LOGITS)
    for row in rows:
        row.inner = {"vector": rng.standard_normal(SIZE).astype(np.float32)}
    return SimpleNamespace(results=rows, batch_size=8)


def phases() -> Any:
    return (1, 2, 3, 4, 5, 6)


def in_v1(query: bytes) -> Callable[[], bytes]:
    endpoint, found = v1.Classify(PIPELINE), scored()
    form = endpoint._read_query(query)
    return lambda: within(endpoint, form, found)


def in_v2(*wanted: WantedOutput, accepted: str = "", classes: int = CLASSES) -> Callable[[], bytes]:
    endpoint, found = Infer(PIPELINE), scored(classes)
    form = InferRequest([], np.zeros(1, np.float32), wanted), accepted
    return lambda: within(endpoint, form, found)


def in_embeddings(encoding: Any) -> Callable[[], bytes]:
    endpoint, found = embeddings.Embed(PIPELINE), scored()
    return lambda: within(endpoint, embeddings._Form(encoding, True), found)


def within(endpoint: Any, form: Any, found: Any) -> bytes:
    """Return the body of an answer. Check that it has no more bytes than were reserved for it."""
    body = bytes(endpoint.answer(form, found, phases).body)
    assert len(body) <= endpoint.answer_bytes(form, found)
    return body


def in_grpc(*wanted: WantedOutput) -> Callable[[], bytes]:
    exchange: Any = SimpleNamespace(_pipeline=PIPELINE, _in_stream=True)
    exchange._asked, found = InferRequest([], np.zeros(1, np.float32), wanted), scored()
    return lambda: _Exchange._format(exchange, found)


NAMES = WantedOutput("scores", classes=CLASSES)
BINARY_NAMES = WantedOutput("scores", classes=CLASSES, binary=True)
NUMBERS, VECTORS = WantedOutput("scores"), WantedOutput("embedding")
BINARY = WantedOutput("scores", binary=True)
MANY = 75_000  # classes: the longest answer has 38 MB

# Each route that answers with something of each image, and its longest answers. Pixels are one
# image's; maps are few (`MOST_MAPS`), and made where Pillow lets other threads run.
WRITERS: Mapping[str, Mapping[str, Callable[[], Callable[[], bytes]]]] = {
    "/v1/classify": {
        "all classes": lambda: in_v1(b"top_k=1000"),
        "by a threshold": lambda: in_v1(b"top_k=1000&threshold=0.0000001"),
    },
    "/v1/embeddings": {
        "numbers": lambda: in_embeddings("float"),
        "base64": lambda: in_embeddings("base64"),
    },
    "/v2/models/{model}/infer": {
        "classes": lambda: in_v2(NAMES),
        "classes, binary": lambda: in_v2(BINARY_NAMES),
        "numbers": lambda: in_v2(NUMBERS, VECTORS),
        "compressed": lambda: in_v2(NAMES, accepted="gzip"),
        "numbers, binary": lambda: in_v2(BINARY, classes=MANY),
        "numbers, binary, compressed": lambda: in_v2(BINARY, accepted="deflate", classes=MANY),
    },
    "gRPC": {
        "classes": lambda: in_grpc(NAMES),
        "classes, binary": lambda: in_grpc(BINARY_NAMES),
        "numbers": lambda: in_grpc(NUMBERS, VECTORS),
    },
}

# The same endpoints by other paths; short answers; and which readers each route has.
SAME = {
    "/v1/models/{model}/classify": "/v1/classify",
    "/v1/models/{model}/embeddings": "/v1/embeddings",
    "/v2/models/{model}/versions/{version}/infer": "/v2/models/{model}/infer",
}
SHORT = ("/v2/repository/", "/v2/systemsharedmemory/", "/v2/cudasharedmemory/", "/v2/logging")
READ_BY = {
    "/v1/classify": (b"image", b"form", b"images", b"clip"),
    "/v1/embeddings": (b"image", b"form", b"embeddings", b"clip"),
    "/v1/models/{model}/pixels": (b"image", b"form", b"images", b"clip"),
    "/v2/models/{model}/infer": (b"json", b"binary", b"gzip", b"stored"),
    "gRPC": (b"protobuf",),
}


def test_every_route_is_held_to_the_rule() -> None:
    posts = {
        SAME.get(path, path)
        for path in posts_of(create_app(make_repository()))
        if not path.startswith(SHORT) and not path.endswith("/trace/setting")
    }
    assert posts | {"gRPC"} == set(READ_BY)
    assert set(READ_BY) - set(WRITERS) == {"/v1/models/{model}/pixels"}
    assert {kind for kinds in READ_BY.values() for kind in kinds} == set(READERS)


@pytest.mark.parametrize(
    ("route", "form"), [(route, form) for route, forms in WRITERS.items() for form in forms]
)
def test_a_long_answer_lets_other_threads_run(route: str, form: str) -> None:
    write, lengths = WRITERS[route][form](), set[int]()
    held_s = longest_hold_s(lambda: lengths.add(len(write())), TRIES, MOST_HELD_S)
    assert min(lengths) > 10_000
    assert held_s <= MOST_HELD_S


# What each surface that takes images reads and writes, by route.
AS: Mapping[str, str] = {
    "classify, an image": "/v1/classify",
    "classify, a form": "/v1/classify",
    "classify, JSON": "/v1/classify",
    "explain": "/v1/classify",
    "clips": "/v1/classify",
    "embeddings, a form": "/v1/embeddings",
    "embeddings, JSON": "/v1/embeddings",
    "pixels": "/v1/models/{model}/pixels",
    "V2": "/v2/models/{model}/infer",
    "shared memory": "/v2/models/{model}/infer",
    "ModelInfer": "gRPC",
    "ModelStreamInfer": "gRPC",
}
# The longest bodies of other calls.
SHORT_BODIES: Mapping[str, Callable[[], object]] = {
    OTHER_HTTP: lambda: refused(read_json, load_request, b'{"parameters":{' + b'"a":0,' * 10_000),
    OTHER_GRPC: lambda: refused(
        parse, message_class("inference.ModelInferRequest"), b"\x2a\0" * 2048
    ),
}


def refused(read: Callable[..., object], *arguments: object) -> None:
    with suppress(BadRequestError):
        read(*arguments)


@pytest.mark.parametrize("surface", EVERY)
def test_a_surface_lets_other_threads_run(surface: str) -> None:
    """For each interface, tests/fuzz tries long bodies of each kind that the interface reads, and
    the tests above try its answers."""
    if (read := SHORT_BODIES.get(surface)) is not None:
        assert longest_hold_s(read, TRIES, MOST_HELD_S) <= MOST_HELD_S
        return
    route = AS[surface]
    tried = {path.read_bytes() for path in (CORPUS / LOCK).iterdir()}
    for kind in READ_BY[route]:
        known = [written(kind, long)[:2000] for of, long in KNOWN.values() if of == kind]
        assert known
        assert not {*known} - tried
    assert route in WRITERS or surface == "pixels"
