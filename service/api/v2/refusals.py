"""Triton's requests that Convoy does not support: a 501 that says why, or the fixed answer.

The models, logging and tracing are set when the server starts, and it maps no client's memory:
clients may only send images. The OpenAPI document leaves these routes out.
"""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.v2.description import Asked
from service.errors import ModelNotFoundError, UnsupportedError
from service.http.responses import Route

_TRACE = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
_LOGGING = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
_MEMORY = "shared memory is not supported; send tensors in the body"
_REFUSED: Mapping[str, str] = {
    "/v2/repository/models/{model}/load": "models are not loaded over HTTP; "
    "start the server with the folder that has them",
    "/v2/repository/models/{model}/unload": "models are not unloaded over HTTP; "
    "start the server without them",
    "/v2/trace/setting": "trace settings cannot be changed over HTTP",
    "/v2/models/{model}/trace/setting": "trace settings cannot be changed over HTTP",
    "/v2/logging": "log settings cannot be changed over HTTP",
    "/v2/systemsharedmemory/region/{region}/register": _MEMORY,
    "/v2/cudasharedmemory/region/{region}/register": _MEMORY,
}

router = APIRouter(include_in_schema=False)


def _refusing(message: str) -> Route:
    async def refuse(_: Request) -> Response:
        raise UnsupportedError(message)

    return refuse


for _path, _message in _REFUSED.items():
    router.add_api_route(_path, _refusing(_message), methods=["POST"])


@router.get("/v2/trace/setting")
async def trace() -> dict[str, Any]:
    """Tracing is off."""
    return _TRACE


@router.get("/v2/models/{model}/trace/setting")
async def model_trace(_: Asked) -> dict[str, Any]:
    """Tracing is off for every model."""
    return _TRACE


@router.get("/v2/logging")
async def logging() -> dict[str, Any]:
    """The log settings."""
    return _LOGGING


# No region is ever registered: there is none to list, and removing one succeeds.
@router.get("/v2/systemsharedmemory/status")
@router.get("/v2/cudasharedmemory/status")
async def regions() -> list[Any]:
    """No regions."""
    return []


@router.get("/v2/systemsharedmemory/region/{region}/status")
@router.get("/v2/cudasharedmemory/region/{region}/status")
async def region_status(region: str) -> Response:
    """No such region."""
    raise ModelNotFoundError(f"Unable to find shared memory region: '{region}'")


@router.post("/v2/systemsharedmemory/unregister")
@router.post("/v2/systemsharedmemory/region/{region}/unregister")
@router.post("/v2/cudasharedmemory/unregister")
@router.post("/v2/cudasharedmemory/region/{region}/unregister")
async def unregister() -> Response:
    """Nothing is left to remove."""
    return Response()
