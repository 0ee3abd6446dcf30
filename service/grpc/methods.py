"""Implements all methods of the gRPC service except inference. The answers contain the same data as
over HTTP."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from service.api.v2 import description, repository_calls
from service.api.v2.refusals import (
    CUDA_MEMORY,
    LOG_LEVEL,
    LOGGING,
    NO_REGION,
    TRACE,
    TRACING,
)
from service.api.v2.shared_memory import regions_of, register_region, unregister_region
from service.errors import ModelNotFoundError, ServiceError, UnsupportedError
from service.fair_queue import Right
from service.grpc.messages import INFERENCE
from service.hosting.pipeline import Pipeline
from service.hosting.repository import Repository

Method = Callable[[Repository, Any], Awaitable[Mapping[str, Any]]]


async def _live(_models: Repository, _asked: Any) -> Mapping[str, Any]:
    return await description.live()


async def _metadata(models: Repository, _asked: Any) -> Mapping[str, Any]:
    return await description.server_metadata(models)


def _of_model(describe: Callable[[Pipeline], Awaitable[Any]]) -> Method:
    async def answer(models: Repository, asked: Any) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await describe(_find(models, asked))
        return found

    return answer


def _refused(why: str) -> Method:
    async def answer(_models: Repository, _asked: Any) -> Mapping[str, Any]:
        raise UnsupportedError(why)

    return answer


def _find(models: Repository, asked: Any) -> Pipeline:
    return models.find(asked.name, asked.version or None)


async def _server_ready(models: Repository, _asked: Any) -> Mapping[str, Any]:
    try:
        models.check_ready()
    except ServiceError:
        return {"ready": False}
    return {"ready": True}


async def _model_ready(models: Repository, asked: Any) -> Mapping[str, Any]:
    try:
        _find(models, asked).runner.check_ready()
    except ServiceError:  # Triton says so of unknown models, too
        return {"ready": False}
    return {"ready": True}


async def _config(pipeline: Pipeline) -> Mapping[str, Any]:
    return {"config": await description.model_config(pipeline)}


async def _statistics(models: Repository, asked: Any) -> Mapping[str, Any]:
    if asked.name:
        return await description.statistics(_find(models, asked))
    return await description.every_statistics(models)


async def _index(models: Repository, asked: Any) -> Mapping[str, Any]:
    return {"models": description.index_of(models, only_ready=asked.ready)}


async def _load(models: Repository, asked: Any) -> Mapping[str, Any]:
    await repository_calls.load(models, asked.model_name, asked.parameters)
    return {}


async def _unload(models: Repository, asked: Any) -> Mapping[str, Any]:
    await repository_calls.unload(models, asked.model_name)
    return {}


async def _trace(models: Repository, asked: Any) -> Mapping[str, Any]:
    if asked.settings:
        raise UnsupportedError(TRACING)
    if asked.model_name:
        models.find(asked.model_name)
    return {
        "settings": {
            name: {"value": [value] if isinstance(value, str) else value}
            for name, value in TRACE.items()
        }
    }


async def _log(_models: Repository, asked: Any) -> Mapping[str, Any]:
    if asked.settings:
        raise UnsupportedError(LOG_LEVEL)
    kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    return {"settings": {name: {kinds[type(value)]: value} for name, value in LOGGING.items()}}


async def _region_status(models: Repository, asked: Any) -> Mapping[str, Any]:
    return {"regions": {region["name"]: region for region in regions_of(models, asked.name)}}


async def _register(models: Repository, asked: Any) -> Mapping[str, Any]:
    register_region(models, asked.name, asked.key, asked.offset, asked.byte_size)
    return {}


async def _unregister(models: Repository, asked: Any) -> Mapping[str, Any]:
    unregister_region(models, asked.name)
    return {}


async def _cuda_status(_models: Repository, asked: Any) -> Mapping[str, Any]:
    if asked.name:
        raise ModelNotFoundError(NO_REGION.format(asked.name))
    return {"regions": {}}


async def _nothing(_models: Repository, _asked: Any) -> Mapping[str, Any]:
    return {}


RIGHTS: Mapping[str, Right] = {
    f"/{INFERENCE}/{name}": right
    for name, right in {
        "RepositoryModelLoad": Right.REPOSITORY,
        "RepositoryModelUnload": Right.REPOSITORY,
        "SystemSharedMemoryRegister": Right.SHARED_MEMORY,
        "SystemSharedMemoryUnregister": Right.SHARED_MEMORY,
    }.items()
}
"""The right that a client needs to call a method."""

METHODS: Mapping[str, Method] = {
    f"/{INFERENCE}/{name}": method
    for name, method in {
        "ServerLive": _live,
        "ServerReady": _server_ready,
        "ModelReady": _model_ready,
        "ServerMetadata": _metadata,
        "ModelMetadata": _of_model(description.model_metadata),
        "ModelConfig": _of_model(_config),
        "ModelStatistics": _statistics,
        "RepositoryIndex": _index,
        "RepositoryModelLoad": _load,
        "RepositoryModelUnload": _unload,
        "SystemSharedMemoryStatus": _region_status,
        "SystemSharedMemoryRegister": _register,
        "SystemSharedMemoryUnregister": _unregister,
        "CudaSharedMemoryStatus": _cuda_status,
        "CudaSharedMemoryRegister": _refused(CUDA_MEMORY),
        "CudaSharedMemoryUnregister": _nothing,
        "TraceSetting": _trace,
        "LogSettings": _log,
    }.items()
}
