"""One request as the edge knows it: from its head until its answer is written.

head ── id, client ── application or lane ── status, sizes, phases ── access log, trace
"""

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.errors import ServiceError
from service.http.body import content_length
from service.http.responses import refusal
from service.telemetry.statistics import Phases

# Of a body that comes after a refusal: more is not read, but the connection closed.
_SKIPPED_BYTES = 65536


class Entry:
    """A request; as an ASGI application, the one behind it, watched for what is answered."""

    __slots__ = (
        *("id", "client", "method", "target", "headers", "started", "ended", "holder"),
        *("bytes_in", "status", "bytes_out", "refusal"),
        *("model", "images", "batch", "phases"),
        *("_app", "_send", "cycle"),
    )

    def __init__(
        self,
        request_id: bytes,
        client: str,
        method: bytes,
        target: bytes,
        headers: Mapping[bytes, bytes],
        app: ASGIApp,
    ) -> None:
        self.id = request_id
        self.client = client
        self.method = method
        self.target = target
        self.headers = headers  # names in lower case; of several of one name the last
        self.started = perf_counter()
        self.ended = 0.0
        self.holder: object = None  # whose count of requests inside it is in
        self.bytes_in = 0  # of its body
        self.status = 0  # 0: not answered yet
        self.bytes_out = 0  # of the answer's body
        self.refusal: ServiceError | None = None  # why the edge does not let it in
        self.model = ""  # these four are known of answers with scores
        self.images = 0
        self.batch = 0  # with how many images in all the last of them travelled
        self.phases: Phases | None = None
        self._app = app
        self._send: Send | None = None
        self.cycle: RequestResponseCycle | None = None  # where uvicorn answers it

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Let the application answer, or refuse."""
        # Neither this nor `_watch` is a coroutine of its own: each would cost a microsecond.
        self._send = send
        if self.refusal is not None:
            return refusal(self.refusal, last=not self._skippable)(scope, receive, self._watch)
        scope["state"]["entry"] = self
        return self._app(scope, receive, self._watch)

    def release(self) -> None:
        """Let go of the connection, which holds this."""
        self._send = self.cycle = None

    @property
    def _skippable(self) -> bool:
        if b"transfer-encoding" in self.headers or b"expect" in self.headers:
            return False
        length = content_length(self.headers) if b"content-length" in self.headers else 0
        return length is not None and length <= _SKIPPED_BYTES

    def _watch(self, message: Message) -> Awaitable[None]:
        if self._send is None or self.cycle is None:
            return _to_nobody()
        if self.cycle.transport.is_closing():
            # The client has gone, and the connection will hear of it: uvloop raises where it was
            # reset, if written to before that.
            self.cycle.disconnected = True
        if message["type"] == "http.response.body":
            self.bytes_out += len(message.get("body", b""))
        else:
            self.status = message["status"]
        return self._send(message)


async def _to_nobody() -> None:
    """What becomes of a message to a client that is gone."""


def entry_of(scope: Mapping[str, Any]) -> Entry | None:
    """The request's entry, where it came over a connection of ours."""
    state = scope.get("state")
    return state.get("entry") if state else None


Ended = Callable[[Entry], None]
