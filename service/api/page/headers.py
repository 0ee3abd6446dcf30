"""What an answer tells a browser: load our files alone, run nothing inline, send no referrer."""

from collections.abc import Mapping

from starlette.types import Message, Send

from service.http.responses import BROWSER_HEADERS


def _policy(**sources: str) -> str:
    """A Content-Security-Policy that allows these sources and nothing else.

    The last three directives do not follow default-src, so each is forbidden by name.
    """
    allowed = "".join(f"{kind}-src {source}; " for kind, source in sources.items())
    return (
        f"default-src 'none'; {allowed}base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


# A page names files by version, so a browser asks whether the page has changed. Only the camera is
# left to our own scripts.
_PAGE = {
    "cache-control": "no-cache",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(self), geolocation=(), microphone=()",
}

HOME: Mapping[str, str] = _PAGE | {
    "content-security-policy": _policy(
        script="'self'", style="'self'", img="'self' blob:", connect="'self'"
    )
}
# Swagger UI's style sheet has its images in data URLs.
DOCS: Mapping[str, str] = _PAGE | {
    "content-security-policy": _policy(
        script="'self'", style="'self'", img="'self' data:", connect="'self'"
    )
}


def with_headers(send: Send) -> Send:
    """`send`, which adds what every answer to a browser has, unless the answer says it itself."""

    async def start(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message["headers"])
            said = {name for name, _ in headers}
            headers += (header for header in BROWSER_HEADERS if header[0] not in said)
            message = {**message, "headers": headers}
        await send(message)

    return start
