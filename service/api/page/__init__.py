"""The web pages at / and /docs. Files as they are, nothing is built, nothing is from elsewhere."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from service.api.page.headers import DOCS, HOME

_FOLDER = Path(__file__).parent


class _Files(StaticFiles):
    """Static files that say how long a browser may keep them."""

    def __init__(self, cache_control: str, **where: Any) -> None:
        super().__init__(**where)
        self._cache_control = cache_control

    def file_response(self, *args: Any, **options: Any) -> Response:
        """The file, or that it has not changed."""
        response = super().file_response(*args, **options)
        response.headers["cache-control"] = self._cache_control
        return response


def add_pages(app: FastAPI) -> None:
    """The page at /, the one at /docs, and what they are made of under /page.

    Every address in them is a relative one. Swagger UI's has a version in it, so that a browser
    never asks again. Of the package that carries Swagger UI no code runs here.
    """
    swagger = f"page/swagger-ui/{version('fastapi-swagger')}"
    text = (_FOLDER / "docs.html").read_text(encoding="utf-8").replace("{swagger}", swagger)

    async def home(_: Request) -> Response:
        return FileResponse(_FOLDER / "index.html", headers=HOME)

    async def docs(_: Request) -> Response:
        return HTMLResponse(text, headers=DOCS)

    app.add_api_route("/", home, methods=["GET"], include_in_schema=False)
    app.add_api_route("/docs", docs, methods=["GET"], include_in_schema=False)
    app.mount(
        f"/{swagger}",
        _Files("public, max-age=31536000, immutable", packages=[("fastapi_swagger", "resources")]),
    )
    app.mount("/page", _Files("no-cache", directory=_FOLDER / "files"))
