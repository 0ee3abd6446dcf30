"""What a connection does beside carrying a request and its answer: the client leaves, or has to be
told No while it is still sending.
"""

import asyncio
from types import TracebackType
from typing import Self

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

# Nobody is spared anything when a request is given up that is answered sooner than this.
_WATCH_AFTER_S = 0.005

# What a client may need to notice the answer and stop sending.
_LINGER_S = 3.0


class Departure:
    """Cancels what is awaited inside and raises ClientDisconnect when the client goes away.

    Entered once the body has been read. Like asyncio.timeout, it cancels the task that is in it;
    the watching task is only made for a request that takes a while.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if not self._gone or self._task is None:
            return
        # Others may have cancelled the task too; that must go on.
        if self._task.uncancel() == 0 and isinstance(error, asyncio.CancelledError):
            raise ClientDisconnect from error

    def _start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        message: Message = {"type": ""}
        while message["type"] != "http.disconnect":
            message = await self._receive()
        self._gone = True
        if self._task is not None:
            self._task.cancel()


class LastResponse(Response):
    """A response after which the connection is closed, with the request's body still coming.

    Closing at once would reset the connection, and the reset may overtake the response. So the
    response is sent whole, then the body is read and dropped until the client stops, for a while.
    """

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send the response, linger, close."""
        self.headers["connection"] = "close"
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        try:
            async with asyncio.timeout(_LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        except TimeoutError:
            pass  # it had its time
        await send({"type": "http.response.body", "body": b"", "more_body": False})
