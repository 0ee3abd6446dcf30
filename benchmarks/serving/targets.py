"""Contains the servers that overhead.py compares. Each server runs in a separate process."""

import os
import socket
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from benchmarks.rows import ROOT
from models import Batch, Engine, Kind, OutputKind, Pixels, Precision, Results
from service.api.app import create_app
from service.engine.lane import Cost
from service.hosting.model_info import ModelInfo
from service.hosting.repository import Repository
from service.http.server import http_settings, run_server
from service.images.decode_pool import Decoding
from service.settings import Settings

CONVOY, BESIDE = "Convoy", "Convoy, another checkout"

_SIDE = 224
_CLASSES = 1000
_TOP_5 = b'{"predictions":[' + b",".join([b'{"index":1,"probability":0.5}'] * 5) + b"]}"

_QUIET = Settings(access_log=False, drain_s=1)


async def _bare_app(_: Scope, receive: Receive, send: Send) -> None:
    """Read the body and answer with JSON, as a bare ASGI application. Any Python server must do at
    least this work."""
    size = 0
    more = True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(_TOP_5)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": _TOP_5})


def asgi_route(listener: socket.socket) -> None:
    """Serve `_bare_app` with Convoy's HTTP connections."""
    uvicorn.Server(http_settings(_bare_app, _QUIET)).run(sockets=[listener])


app = FastAPI()


@app.api_route("/{path:path}", methods=["GET", "POST"])
async def read_and_answer(request: Request) -> Response:
    """Read the body and answer with JSON, as a FastAPI route."""
    await request.body()
    return Response(_TOP_5, media_type="application/json")


def fastapi_route(listener: socket.socket) -> None:
    """Serve the FastAPI route with Convoy's HTTP connections."""
    uvicorn.Server(http_settings(app, _QUIET)).run(sockets=[listener])


def stock_uvicorn(listener: socket.socket) -> None:
    """Serve the FastAPI route with uvicorn's command line, without an access log."""
    port = listener.getsockname()[1]
    listener.close()  # uvicorn opens another socket on the port
    command = [sys.executable, "-m", "uvicorn", "benchmarks.serving.targets:app"]
    options = ["--app-dir", str(ROOT), "--port", str(port), "--no-access-log"]
    os.execv(sys.executable, [*command, *options, "--log-level", "warning"])


class _NoEngine:
    """An engine that computes nothing, and returns the same score for all classes."""

    max_batch = 8
    classes = _CLASSES
    device = "none"
    precision = Precision.FP32
    fallback_reason = ""
    layers = ""
    takes = Kind.TENSOR
    on_cpu = True

    def __init__(self) -> None:
        self._scores = np.zeros((self.max_batch, self.classes), np.float32)

    def warm_up(self) -> Engine:
        """Return this engine, because there is nothing to warm up."""
        return self

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        """Return constant scores, and constant values for the tensors `inner`."""
        scores = self._scores[: len(images)]
        return Results(scores, inner=dict.fromkeys(inner, scores))

    def close(self) -> None:
        """Do nothing, because there is nothing to free."""


_BLANK: Pixels = np.zeros((_SIDE, _SIDE, 3), np.uint8)
_NOTHING = Decoding(Cost(), lambda: _BLANK)


def _no_decoder(_: bytes) -> Decoding:
    return _NOTHING


def no_op(listener: socket.socket) -> None:
    """Serve Convoy's application with a decoder and an engine that do nothing."""
    engine = _NoEngine()
    info = ModelInfo("no-op", "1", _BLANK.shape, "scores", OutputKind.LOGITS, labels=())
    repository = Repository(
        max_batch=engine.max_batch, max_queue=128, max_body_bytes=20_000_000, decode_threads=0
    )
    repository.add(info, [engine], _no_decoder)
    app = create_app(repository)
    run_server(app, app.endpoints, repository, listener, _QUIET, None, _say_nothing)


def _say_nothing() -> None:
    pass


def serve_checkout(checkout: Path, listener: socket.socket) -> None:
    """Serve the Convoy application of another checkout, with a decoder and an engine that do
    nothing."""
    listener.set_inheritable(True)
    code = (
        "import socket; from benchmarks.serving.targets import CONVOY, TARGETS; "
        f"TARGETS[CONVOY](socket.socket(fileno={listener.fileno()}))"
    )
    os.chdir(checkout)  # Python imports from the current folder first
    os.execv(sys.executable, [sys.executable, "-c", code])


UVICORN = "FastAPI, uvicorn"

# The first target is the one with which the others are compared.
TARGETS: dict[str, Callable[[socket.socket], None]] = {
    "ASGI, Convoy's HTTP": asgi_route,
    "FastAPI, Convoy's HTTP": fastapi_route,
    UVICORN: stock_uvicorn,
    CONVOY: no_op,
}
