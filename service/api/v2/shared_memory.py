"""Registers shared memory of clients on this machine, with Triton's extension for system shared
memory.

The OpenAPI document omits these routes.
"""

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.v2.description import Models
from service.api.v2.interpretation import MEMORY
from service.api.v2.parse import RegisterRequest, read_json, short_body
from service.errors import ModelNotFoundError, UnsupportedError
from service.fair_queue import Right
from service.hosting.regions import RegionStatus
from service.hosting.repository import Repository
from service.http.asgi import permit

router = APIRouter(prefix="/v2/systemsharedmemory", include_in_schema=False)

_decode = msgspec.json.Decoder(RegisterRequest).decode


def register_region(models: Repository, name: str, key: str, offset: int, byte_size: int) -> None:
    """Register a part of shared memory, called a region. Raises the errors of `Regions.register`,
    and UnsupportedError if shared memory is off."""
    if models.regions is None:
        raise UnsupportedError(MEMORY)
    models.regions.register(name, key, offset, byte_size)


def regions_of(models: Repository, name: str = "") -> list[RegionStatus]:
    """Return the status of a region, or of every region if `name` is empty. Raises
    ModelNotFoundError for an unknown name."""
    if models.regions is not None:
        return models.regions.status(name)
    if name:
        raise ModelNotFoundError(f"Unable to find shared memory region: '{name}'")
    return []


def unregister_region(models: Repository, name: str = "") -> None:
    """Unregister a region, or every region if `name` is empty."""
    if models.regions is not None:
        models.regions.unregister(name)


@router.post("/region/{region}/register")
async def register(request: Request, models: Models, region: str) -> Response:
    """Register part of a shared-memory file on this machine under a name."""
    permit(request, Right.SHARED_MEMORY)
    asked = read_json(_decode, await short_body(request))
    register_region(models, region, asked.key, asked.offset, asked.byte_size)
    return Response()


@router.get("/status")
async def every_status(models: Models) -> list[RegionStatus]:
    """Return the status of every region."""
    return regions_of(models)


@router.get("/region/{region}/status")
async def status(models: Models, region: str) -> list[RegionStatus]:
    """Return the status of a region."""
    return regions_of(models, region)


@router.post("/unregister")
async def unregister_all(request: Request, models: Models) -> Response:
    """Unregister every region."""
    permit(request, Right.SHARED_MEMORY)
    unregister_region(models)
    return Response()


@router.post("/region/{region}/unregister")
async def unregister(request: Request, models: Models, region: str) -> Response:
    """Unregister a region."""
    permit(request, Right.SHARED_MEMORY)
    unregister_region(models, region)
    return Response()
