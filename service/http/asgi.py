"""An exchange over ASGI: for other servers than ours, and for tests.

A request to a model's endpoint comes straight here, past middleware and router.
"""

import asyncio
import contextlib
import secrets

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.edge.connections import network_of
from service.fair_queue import Client
from service.http.body import is_short
from service.http.exchange import Endpoint, Exchange
from service.telemetry.record import RequestRecord

# Seconds that a client has to notice the answer and stop sending.
_LINGER_S = 3.0


async def serve(endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the request of an ASGI scope, unless its client leaves."""
    answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    exchange = Exchange(endpoint, _record(scope), answer.set_result)
    more = True
    try:
        exchange.begin()
        while more and not answer.done():
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            exchange.feed(message.get("body", b""))
            more = message.get("more_body", False)
        exchange.end()
        if not answer.done() and not await _answered(answer, receive):
            return
        response = answer.result()
        if more and not is_short(exchange.record.headers):
            await _send_last(response, receive, send)
        else:
            await response(scope, receive, send)
    finally:
        exchange.abandon()


async def _answered(answer: "asyncio.Future[Response]", receive: Receive) -> bool:
    """Wait for the answer; False if the client leaves first."""

    async def left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.ensure_future(left())
    try:
        await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
    return answer.done()


async def _send_last(response: Response, receive: Receive, send: Send) -> None:
    """Answer before the body has arrived, and close: after a while, since a close resets."""
    headers = [*response.raw_headers, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _record(scope: Scope) -> RequestRecord:
    """The record of a connection of ours, or a new one."""
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
        Client(network_of(address)),
    )
