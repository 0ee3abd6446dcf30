"""The headers that restrict what a browser does with an answer: it may load only our own files."""

from starlette.types import Message, Send


def _policy(**sources: str) -> str:
    """A Content-Security-Policy that allows these sources and nothing else.

    The last three directives do not fall back to default-src, so each is set explicitly.
    """
    allowed = "".join(f"{kind}-src {source}; " for kind, source in sources.items())
    return (
        f"default-src 'none'; {allowed}base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def page_headers(images: str) -> dict[str, str]:
    """The headers of a page that runs our scripts, which may use the camera.

    `images`: the source of images beside our own files. A page names its files by version, so the
    browser must ask whether the page has changed.
    """
    return {
        "cache-control": "no-cache",
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": "camera=(self), geolocation=(), microphone=()",
        "content-security-policy": _policy(
            script="'self'", style="'self'", img=f"'self' {images}", connect="'self'"
        ),
    }


_DEFAULTS = (
    (b"content-security-policy", _policy().encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


def with_headers(send: Send) -> Send:
    """`send`, with the default headers added to every answer that lacks them."""

    async def start(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message["headers"]
            names = {name for name, _ in headers}
            added = [header for header in _DEFAULTS if header[0] not in names]
            message = {**message, "headers": [*headers, *added]}
        await send(message)

    return start
