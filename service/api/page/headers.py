"""The headers that restrict what a browser does with an answer: it may load only our own files."""

from starlette.types import Message, Send

from service.http.responses import BROWSER_HEADERS, LOAD_NOTHING

_OURS = "script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"


def page_headers(images: str) -> dict[str, str]:
    """The headers of a page of ours, whose scripts may use the camera.

    `images` is the source of images beside our own files. A page contains its files' versions, so
    the browser must ask whether it has changed.
    """
    return {
        "cache-control": "no-cache",
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": "camera=(self), geolocation=(), microphone=()",
        "content-security-policy": f"{LOAD_NOTHING}; {_OURS} {images}",
    }


def with_headers(send: Send) -> Send:
    """`send`, with BROWSER_HEADERS added to every answer that lacks them."""

    async def start(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message["headers"]
            names = {name for name, _ in headers}
            added = [header for header in BROWSER_HEADERS if header[0] not in names]
            message = {**message, "headers": [*headers, *added]}
        await send(message)

    return start
