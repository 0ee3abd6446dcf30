"""What Triton's clients may ask for and Convoy does not do: it says so, and what there is it tells.

Models are those that the server was started with, and nobody may change what it logs or traces, or
have it map memory: whoever may send pictures may do nothing else.
"""

from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from service.errors import ModelNotFoundError, ServiceError, UnsupportedError
from service.hosting.repository import Repository
from service.http.responses import Route, json_response, refusal

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
_REFUSED = {
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


def add_refusals(app: FastAPI, repository: Repository) -> None:
    """Add the routes; they are no part of the OpenAPI document."""

    def add(method: str, path: str, route: Route) -> None:
        app.add_api_route(path, route, methods=[method], include_in_schema=False)

    async def model_trace(request: Request) -> Response:
        try:
            repository.find(request.path_params["model"])
        except ServiceError as error:
            return refusal(error)
        return json_response(_TRACE)

    async def no_region(request: Request) -> Response:
        region = request.path_params["region"]
        return refusal(ModelNotFoundError(f"Unable to find shared memory region: '{region}'"))

    for path, message in _REFUSED.items():
        add("POST", path, _refusing(message))
    add("GET", "/v2/trace/setting", _answering(_TRACE))
    add("GET", "/v2/models/{model}/trace/setting", model_trace)
    add("GET", "/v2/logging", _answering(_LOGGING))
    for kind in ("system", "cuda"):
        base = f"/v2/{kind}sharedmemory"
        # There is no region, so to forget one or all of them is done at once.
        add("GET", f"{base}/status", _answering([]))
        add("GET", f"{base}/region/{{region}}/status", no_region)
        add("POST", f"{base}/unregister", _answering(None))
        add("POST", f"{base}/region/{{region}}/unregister", _answering(None))


def _answering(answer: Any) -> Route:
    async def endpoint(_: Request) -> Response:
        return Response() if answer is None else json_response(answer)

    return endpoint


def _refusing(message: str) -> Route:
    async def endpoint(_: Request) -> Response:
        return refusal(UnsupportedError(message))

    return endpoint
