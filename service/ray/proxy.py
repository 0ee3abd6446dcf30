"""Adds a middleware to Ray's HTTP proxies. The variable RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH
names the function `middlewares`."""

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.responses import error_response

_LOST = error_response(
    503, "the replica with this request was lost; send the request again", {"retry-after": "1"}
)


class LostReplicas:
    """Answers a request with 503 if the request's replica ended before it answered.

    Without this middleware, Ray's HTTP server would answer with 500. A request seldom causes the
    loss of its replica, so the client may send the request again. Ray does not send it again.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, and answer it if its replica is lost."""
        began = False

        async def sending(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        await self._app(scope, receive, sending)
        if scope["type"] == "http" and not began:
            await _LOST(scope, receive, send)


def middlewares() -> list[Middleware]:
    """Return the middlewares for Ray's HTTP proxy to run for every request."""
    return [Middleware(LostReplicas)]
