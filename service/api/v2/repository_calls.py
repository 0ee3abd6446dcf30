"""Loads and unloads models at the request of clients, if the server allows that. This is the
repository API of the V2 protocol.

Models are loaded from the server's own folder. A model's name is the name of its file or folder
there. The OpenAPI document omits these routes.
"""

from collections.abc import Iterable

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.v2.description import Models
from service.api.v2.parse import LoadRequest, read_json, short_body
from service.errors import UnsupportedError
from service.fair_queue import Right
from service.hosting.repository import Changes, LoadResult, Repository
from service.http.asgi import permit
from service.http.responses import json_response

LOADING = "clients may not load models; to allow it, start the server with --repository-api"
UNLOADING = "clients may not unload models; to allow it, start the server with --repository-api"
FILES = (
    "the server loads models and their settings only from its own folder; send no `config` and no"
    " files"
)

router = APIRouter(prefix="/v2/repository/models/{model}", include_in_schema=False)

_decode = msgspec.json.Decoder(LoadRequest).decode


async def load(models: Repository, name: str, parameters: Iterable[str]) -> LoadResult:
    """Load a model. Raises the errors of `Changes.load`, and UnsupportedError if clients may not
    load models."""
    changes = _changes(models, LOADING)
    if any(key == "config" or key.startswith("file:") for key in parameters):
        raise UnsupportedError(FILES)
    return await changes.load(name)


async def unload(models: Repository, name: str) -> None:
    """Unload a model. Raises the errors of `Changes.unload`, and UnsupportedError if clients may
    not unload models."""
    await _changes(models, UNLOADING).unload(name)


def _changes(models: Repository, refusal: str) -> Changes:
    if models.changes is None or not models.changes.by_clients:
        raise UnsupportedError(refusal)
    return models.changes


@router.post("/load")
async def load_route(request: Request, models: Models, model: str) -> Response:
    """Load a model, or its new version."""
    return json_response(await load(models, model, await _parameters(request)))


@router.post("/unload")
async def unload_route(request: Request, models: Models, model: str) -> Response:
    """Unload a model."""
    await _parameters(request)
    await unload(models, model)
    return Response()


async def _parameters(request: Request) -> Iterable[str]:
    """Return the names of a request's parameters. Raises ForbiddenError if the client may not
    change models."""
    permit(request, Right.REPOSITORY)
    data = await short_body(request)
    return read_json(_decode, data).parameters if data else ()
