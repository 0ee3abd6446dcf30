"""Adds a middleware to Ray's HTTP proxies. The variable RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH
names the function `middlewares`."""

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.responses import error_response

_LOST = error_response(
    503, "the replica with this request was lost; send it again", {"retry-after": "1"}
)


class LostReplicas:
    """Answers a request with 503 if the request's replica ended before it answered.

    Without this middleware, Ray's proxy would not answer, and its HTTP server would then send a
    500. The request is seldom the reason why a replica is lost, so the client may send it again.
    Ray does not retry it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        began = False

        async def sending(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        await self._app(scope, receive, sending)
        if scope["type"] == "http" and not began:
            await _LOST(scope, receive, send)


def middlewares() -> list[Middleware]:
    """Return the middlewares that every request passes through."""
    return [Middleware(LostReplicas)]
