"""The paths of the V2 protocol."""

from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from service.errors import ServiceError
from service.exchange import Endpoint
from service.repository import Repository
from service.responses import json_response, refusal
from service.schemas import ErrorAnswer, LiveAnswer, ReadyAnswer


def add_routes(app: FastAPI, repository: Repository) -> dict[str, Endpoint]:
    """The routes; also, by path, the endpoints that the shortest way should lead to."""

    async def live(_: Request) -> Response:
        """Say that the process answers."""
        return json_response(LiveAnswer(live=True))

    async def ready(_: Request) -> Response:
        """Say whether pictures are taken: every batch size is warm and nothing is draining."""
        try:
            repository.check_ready()
        except ServiceError as error:
            return refusal(error)
        return json_response(ReadyAnswer(ready=True))

    health: dict[str, Any] = {"methods": ["GET"], "tags": ["health"]}
    not_ready: dict[int | str, Any] = {
        503: {"description": "Warming up or shutting down", "model": ErrorAnswer}
    }
    app.add_api_route("/v2/health/live", live, response_model=LiveAnswer, **health)
    app.add_api_route(
        "/v2/health/ready", ready, response_model=ReadyAnswer, responses=not_ready, **health
    )
    return {}
