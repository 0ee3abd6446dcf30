"""Answers requests of Triton's clients that Convoy does not support, with an error or a fixed
answer.

Some of these requests change logging or tracing, which are configured only when the server starts.
Others register GPU memory of clients, which the server does not use. The OpenAPI document omits
these routes.
"""

from fastapi import APIRouter
from starlette.responses import Response
from starlette.routing import Route

from service.api.v2.description import Asked
from service.errors import ModelNotFoundError, UnsupportedError
from service.http.responses import json_response, refusal

TRACE: dict[str, str | list[str]] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
LOGGING: dict[str, str | bool | int] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
TRACING = "clients cannot change trace settings; set them when the server starts"
LOG_LEVEL = "clients cannot change log settings; set them when the server starts"
CUDA_MEMORY = "CUDA shared memory is not supported; send tensors in the body"
NO_REGION = "Unable to find shared memory region: '{}'"
_REFUSED = {
    "/v2/trace/setting": TRACING,
    "/v2/models/{model}/trace/setting": TRACING,
    "/v2/logging": LOG_LEVEL,
    "/v2/cudasharedmemory/region/{region}/register": CUDA_MEMORY,
}

_FIXED = [
    *(("POST", path, refusal(UnsupportedError(why))) for path, why in _REFUSED.items()),
    ("GET", "/v2/trace/setting", json_response(TRACE)),
    ("GET", "/v2/logging", json_response(LOGGING)),
]
# No region is ever registered: there is none to list, and removing one succeeds.
_FIXED += [
    ("GET", "/v2/cudasharedmemory/status", json_response([])),
    ("POST", "/v2/cudasharedmemory/unregister", Response()),
    ("POST", "/v2/cudasharedmemory/region/{region}/unregister", Response()),
]

router = APIRouter(
    routes=[Route(path, answer, methods=[method]) for method, path, answer in _FIXED],
    include_in_schema=False,
)


@router.get("/v2/models/{model}/trace/setting")
async def model_trace(_: Asked) -> Response:
    """Answer that tracing is off for every model."""
    return json_response(TRACE)


@router.get("/v2/cudasharedmemory/region/{region}/status")
async def region_status(region: str) -> Response:
    """Refuse the request, because the server registers no shared memory on GPUs."""
    raise ModelNotFoundError(NO_REGION.format(region))
