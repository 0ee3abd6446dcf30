"""Passes requests from FastAPI's routes to the endpoints of models, on any ASGI server."""

import asyncio
import contextlib
import secrets

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.batching.policy import DEFAULT_PRIORITY
from service.edge import rights
from service.edge.connections import network_of
from service.errors import Code
from service.fair_queue import Client, Right
from service.http.body import is_short
from service.http.exchange import AnyEndpoint, Exchange
from service.telemetry.record import RequestRecord

# Seconds in which a client can notice the answer and stop sending.
_LINGER_S = 3.0


async def answer_to(request: Request, endpoint: AnyEndpoint) -> Response:
    """Return an endpoint's answer to a request. Raises HTTPException if the client disconnects."""
    answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    exchange = Exchange(endpoint, record_of(request.scope), answer.set_result)
    left = HTTPException(Code.CLIENT_LEFT, "the client disconnected")
    more = True
    try:
        exchange.begin()
        while more and not answer.done():
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise left
            exchange.add_piece(message.get("body", b""))
            more = message.get("more_body", False)
        exchange.end()
        if not answer.done() and not await _answered(answer, request.receive):
            raise left
    finally:
        exchange.abandon()
    early = more and not is_short(exchange.record.headers)
    return _Early(answer.result()) if early else answer.result()


def permit(request: Request, right: Right) -> None:
    """Raise ForbiddenError unless the request's client has this right."""
    rights.permit(record_of(request.scope), right)


class _Early(Response):
    """A response that is sent before the request's whole body has arrived.

    ASGI servers close the connection when such a response ends. The client might then lose the
    response before it has read it. So the end of the response is sent later.
    """

    def __init__(self, response: Response) -> None:
        super().__init__(response.body, response.status_code)
        self.raw_headers = [*response.raw_headers, (b"connection", b"close")]

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send the response's headers and body. Then read the remaining request body for at most
        `_LINGER_S` seconds, and end the response."""
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _answered(answer: "asyncio.Future[Response]", receive: Receive) -> bool:
    """Wait for the answer. Return False if the client disconnects before the answer is ready."""

    async def left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.ensure_future(left())
    try:
        await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
    return answer.done()


def record_of(scope: Scope) -> RequestRecord:
    """Return the request's record. Convoy's own connections store it in `scope`. On any other
    server, create it."""
    record: RequestRecord | None = scope.get("state", {}).get("record")
    if record is not None:
        return record
    headers = dict(scope["headers"])
    client = scope.get("client")
    address = client[0] if client else ""
    return RequestRecord(
        headers.get(b"x-request-id", secrets.token_hex(4).encode()),
        address,
        scope["method"].encode(),
        scope.get("raw_path", scope["path"].encode()),
        scope["query_string"],
        headers,
        Client(network_of(address), highest_priority=DEFAULT_PRIORITY),
    )
