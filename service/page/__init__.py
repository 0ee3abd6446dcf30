"""The web page at /: pictures in, labels out, what goes on. Files as they are, nothing is built."""

from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

_FOLDER = Path(__file__).parent


def add_page(app: FastAPI) -> None:
    """The page at /, and what it is made of under /page; every address in it is a relative one."""

    async def home(_: Request) -> Response:
        return FileResponse(_FOLDER / "index.html")

    app.add_api_route("/", home, methods=["GET"], include_in_schema=False)
    app.mount("/page", StaticFiles(directory=_FOLDER / "files"))
