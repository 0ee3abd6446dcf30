"""An exchange over ASGI: for every server that is not ours, and for tests.

A request to a model's endpoint goes from here straight to its exchange, before any middleware and
before the router is asked.
"""

import asyncio
import contextlib
import secrets

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.http.body import is_short
from service.http.exchange import Endpoint, Exchange
from service.telemetry.record import RequestRecord

# What a client may need to notice the answer and stop sending.
_LINGER_S = 3.0


async def serve(endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the request of an ASGI scope; nothing is sent to a client that has left."""
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
    """Wait for the answer; False if the client left before it came."""
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
    return answer.done()


async def _send_last(response: Response, receive: Receive, send: Send) -> None:
    """Answer a request whose body still comes, and have the connection closed after that.

    Closing at once would reset it, and the reset may overtake the answer: so what comes is dropped
    for a while before the end of the answer is sent.
    """
    headers = [*response.raw_headers, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    with contextlib.suppress(TimeoutError):  # it had its time
        async with asyncio.timeout(_LINGER_S):
            while (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _record(scope: Scope) -> RequestRecord:
    """The connection's own, where it is one of ours, or a new one."""
    record: RequestRecord | None = scope.get("state", {}).get("record")
    if record is not None:
        return record
    headers = dict(scope["headers"])
    client = scope.get("client")
    return RequestRecord(
        headers.get(b"x-request-id", secrets.token_hex(4).encode()),
        client[0] if client else "",
        scope["method"].encode(),
        scope.get("raw_path", scope["path"].encode()) + b"?" + scope["query_string"],
        headers,
    )
