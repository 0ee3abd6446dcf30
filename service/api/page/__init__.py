"""Serves the web pages at / and /docs, whose files are in this folder."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Send
from typing_extensions import override

from models import BUILT_IN_MODEL
from service.hosting.presets import PHOTOGRAPHS
from service.http.responses import BROWSER_HEADERS, LOAD_NOTHING, json_response
from service.images.file import ImageFormat

if TYPE_CHECKING:
    from fastapi import FastAPI

_FOLDER = Path(__file__).parent

# The sources from which every page may load; a page may have an additional source of images.
_OURS = "script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"

EXAMPLES = {
    "grey": sorted((BUILT_IN_MODEL.parent / "samples").iterdir()),
    "colour": PHOTOGRAPHS,
    "clips": [file for file in sorted((_FOLDER / "clips").iterdir()) if file.suffix != ".md"],
}
"""Example files, by the kind of images that a model takes."""


def example_for(image_shape: Sequence[int]) -> Path:
    """Return an example file for a model with this input shape: an image, or a clip."""
    if len(image_shape) == 4:
        return EXAMPLES["clips"][0]
    return EXAMPLES["grey" if image_shape[-1] == 1 else "colour"][0]


class _Files(StaticFiles):
    """Serves static files with a Cache-Control header."""

    def __init__(self, cache_control: str, **where: Any) -> None:
        super().__init__(**where)
        self._cache_control = cache_control

    @override
    def file_response(self, *args: Any, **options: Any) -> Response:
        """Return a response with the file, or with status 304 if the browser's copy is current."""
        response = super().file_response(*args, **options)
        response.headers["cache-control"] = self._cache_control
        return response


def add_pages(app: "FastAPI", max_pixels: int) -> None:
    """Add the pages at / and /docs, and their files under /page.

    The page at / shrinks images of more than `max_pixels` before it sends them.

    All addresses in the pages are relative. The path of Swagger UI's files contains their version,
    so browsers may cache these files forever.
    """
    swagger = f"page/swagger-ui/{version('fastapi-swagger')}"
    text = (_FOLDER / "docs.html").read_text(encoding="utf-8").replace("{swagger}", swagger)

    types = ",".join(kind.media_type for kind in ImageFormat if kind.is_read)
    index = (_FOLDER / "index.html").read_text(encoding="utf-8").replace("{image types}", types)
    index = index.replace("{max pixels}", str(max_pixels))

    @app.get("/", include_in_schema=False)
    async def home() -> Response:
        return HTMLResponse(index, headers=page_headers("blob:"))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(text, headers=page_headers("data:"))  # images in Swagger UI's styles

    app.mount(
        f"/{swagger}",
        _Files("public, max-age=31536000, immutable", packages=[("fastapi_swagger", "resources")]),
    )
    names = {kind: sorted(file.name for file in files) for kind, files in EXAMPLES.items()}

    @app.get("/page/examples.json", include_in_schema=False)
    async def examples() -> Response:
        return json_response(names)

    for kind, (first, *_) in EXAMPLES.items():
        app.mount(f"/page/examples/{kind}", _Files("no-cache", directory=first.parent))
    app.mount("/page", _Files("no-cache", directory=_FOLDER / "files"))


def page_headers(images: str) -> dict[str, str]:
    """Return the headers of a page. They allow the page to load Convoy's files, and images from the
    source `images`.

    Browsers must check at each use whether the page has changed, because only the current page
    names the current versions of its files.
    """
    return {
        "cache-control": "no-cache",
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": "camera=(self), geolocation=(), microphone=()",
        "content-security-policy": f"{LOAD_NOTHING}; {_OURS} {images}",
    }


def with_headers(send: Send) -> Send:
    """Return a wrapper of `send` that adds BROWSER_HEADERS to every answer that lacks them."""

    async def start(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message["headers"]
            names = {name for name, _ in headers}
            added = [header for header in BROWSER_HEADERS if header[0] not in names]
            message = {**message, "headers": [*headers, *added]}
        await send(message)

    return start
