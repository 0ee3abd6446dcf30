"""Guards Ray's HTTP proxies: RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names `middlewares`."""

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.responses import error_response

_LOST = error_response(
    503, "the replica with this request was lost; send it again", {"retry-after": "1"}
)


class LostReplicas:
    """Answers 503 to a request whose replica ended before it answered.

    Ray's proxy leaves such a request unanswered, and its HTTP server then answers 500. A lost
    replica is seldom the fault of the request, so its client may send it again; Ray does not.
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
    """Return the middlewares that every request passes."""
    return [Middleware(LostReplicas)]
