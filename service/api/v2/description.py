"""Describes the server and its models, as defined by the V2 protocol and Triton's extensions.

Each typed dictionary is followed by the function that fills it. FastAPI documents both.
"""

import asyncio
from typing import Annotated, Any, NamedTuple, NotRequired

from fastapi import Depends, Query, Request
from pydantic import Field
from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12

from models import ChannelOrder, Inner, __version__
from service.api.v2.interpretation import INPUT, output_names
from service.engine.supervised_engine import State
from service.hosting.model_info import FailedModel, ModelInfo
from service.hosting.pipeline import Pipeline
from service.hosting.repository import Repository
from service.telemetry.counts import Duration

EXTENSIONS = [
    "classification",
    "model_repository",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
]
PLATFORM = "convoy_onnx"

_STATES = {
    State.WARMING: "LOADING",
    State.READY: "READY",
    State.RESTARTING: "LOADING",
    State.FAILED: "UNAVAILABLE",
    State.BROKEN: "UNAVAILABLE",
    State.DRAINING: "UNLOADING",
}


async def _repository(request: Request) -> Repository:
    repository: Repository = request.app.state.repository
    return repository


Models = Annotated[Repository, Depends(_repository)]


async def _asked(request: Request, models: Models) -> Pipeline:
    """Return the model that the request's path names. Raises ModelNotFoundError."""
    return models.find(request.path_params["model"], request.path_params.get("version"))


Asked = Annotated[Pipeline, Depends(_asked)]


class LiveAnswer(TypedDict):
    """The answer to a liveness check of the server."""

    live: bool


async def live() -> LiveAnswer:
    """Answer that the server is alive."""
    return LiveAnswer(live=True)


class ReadyAnswer(TypedDict):
    """The answer to a readiness check of the server."""

    ready: bool


async def ready(models: Models) -> ReadyAnswer:
    """Answer that all models accept requests, or with an error if one does not. Models that could
    not be opened are ignored."""
    models.check_ready()
    return ReadyAnswer(ready=True)


class ModelReady(TypedDict):
    """The answer to a readiness check of a model."""

    name: str
    ready: bool


async def model_ready(pipeline: Asked) -> ModelReady:
    """Answer that a model accepts requests, or with an error if it does not."""
    pipeline.runner.check_ready()
    return ModelReady(name=pipeline.info.name, ready=True)


class ServerMetadata(TypedDict):
    """The name and version of the server, and the extensions of the protocol that it supports."""

    name: str
    version: str
    extensions: list[str]


async def server_metadata(models: Models) -> ServerMetadata:
    """Describe the server, and the extensions of the protocol that it supports."""
    extensions = EXTENSIONS if models.regions is None else [*EXTENSIONS, "system_shared_memory"]
    return ServerMetadata(name="convoy", version=__version__, extensions=extensions)


class TensorMetadata(TypedDict):
    """An input or output of a model. In its shape, -1 stands for the number of images."""

    name: str
    datatype: str
    shape: list[int]
    parameters: NotRequired[dict[str, str]]


class ConfiguredTensor(TypedDict):
    """An input or output in a model's configuration. `dims` is the shape for one image."""

    name: str
    data_type: str
    dims: list[int]
    is_shape_tensor: bool
    format: NotRequired[str]
    allow_ragged_batch: NotRequired[bool]
    optional: NotRequired[bool]
    label_filename: NotRequired[str]


class _Input(NamedTuple):
    """An input of a model. `shape` is the shape for one image."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    format: str
    content: str


def _own_input(info: ModelInfo) -> _Input:
    """Return the input that the model file defines."""
    form = "pixels, 0 to 255," if info.tensor_type == "UINT8" else "normalised"
    laid_out = f"FORMAT_{info.layout.name}" if not info.of_clips else "FORMAT_NONE"
    content = f"{form} as the model expects"
    return _Input(info.tensor, info.tensor_type, info.tensor_shape, laid_out, content)


def _pixels(info: ModelInfo) -> _Input:
    """Return the input `image` for pixels, which Convoy adds to every model."""
    channels = "grey" if info.channels is ChannelOrder.GREY else "RGB"
    laid_out = "FORMAT_NONE" if info.of_clips else "FORMAT_NHWC"
    return _Input(INPUT, "UINT8", info.image_shape, laid_out, f"{channels} pixels, 0 to 255")


def _inputs(info: ModelInfo, *, every: bool) -> list[_Input]:
    """Return the input that the model file defines, as Triton does. If `every`, also return the
    input `image`, which a request may use instead."""
    if not info.tensor:
        return [_pixels(info)]
    return [_own_input(info), _pixels(info)] if every else [_own_input(info)]


def _outputs(pipeline: Pipeline, *, every: bool) -> dict[str, int]:
    """Return a mapping from the name of each output to the number of values per image."""
    info = pipeline.info
    sizes = {info.scores: pipeline.runner.classes}
    if every and isinstance(info.embedding, Inner):
        sizes |= dict.fromkeys(output_names(info)[1:], info.embedding.size)
    return sizes


Every = Annotated[
    bool,
    Query(
        alias="all",
        description="also list the pixels as an input and the embedding as an output",
    ),
]


class ModelMetadata(TypedDict):
    """A model's inputs and outputs. The inputs are alternatives, and a request has one of them."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


async def model_metadata(pipeline: Asked, every: Every = False) -> ModelMetadata:
    """Describe a model's input and output as its file defines them, like Triton. With `all`, also
    describe the input `image` and the embedding."""
    info = pipeline.info
    inputs = []
    for one in _inputs(info, every=every):
        tensor = TensorMetadata(name=one.name, datatype=one.datatype, shape=[-1, *one.shape])
        if every:
            tensor["parameters"] = {"content": one.content}
        inputs.append(tensor)
    outputs = [
        TensorMetadata(name=name, datatype="FP32", shape=[-1, size])
        for name, size in _outputs(pipeline, every=every).items()
    ]
    return ModelMetadata(
        name=info.name,
        versions=[info.version],
        platform=PLATFORM,
        inputs=inputs,
        outputs=outputs,
    )


async def model_config(pipeline: Asked, every: Every = False) -> dict[str, Any]:
    """Return the parts of a model's Triton configuration that apply to Convoy. `dims` do not
    include the batch axis."""
    info, runner = pipeline.info, pipeline.runner
    inputs = _inputs(info, every=every)
    kind = "KIND_CPU" if runner.device.startswith("cpu") else "KIND_GPU"
    return {
        "name": info.name,
        "platform": PLATFORM,
        "backend": "convoy",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": runner.max_batch,
        "input": [
            ConfiguredTensor(
                name=one.name,
                data_type=f"TYPE_{one.datatype}",
                format=one.format,
                dims=list(one.shape),
                is_shape_tensor=False,
                allow_ragged_batch=False,
                optional=len(inputs) > 1,
            )
            for one in inputs
        ],
        "output": [
            ConfiguredTensor(
                name=name,
                data_type="TYPE_FP32",
                dims=[size],
                label_filename="labels.txt" if info.labels and name == info.scores else "",
                is_shape_tensor=False,
            )
            for name, size in _outputs(pipeline, every=every).items()
        ],
        "instance_group": [{"name": info.name, "kind": kind, "count": 1}],
        "dynamic_batching": {
            "preferred_batch_size": list(range(1, runner.max_batch + 1)),
            "max_queue_delay_microseconds": 0,
        },
        "model_transaction_policy": {"decoupled": False},
    }


class IndexEntry(TypedDict):
    """A model in the repository's index."""

    name: str
    version: str
    state: Annotated[str, Field(examples=["READY"])]
    reason: str


def index_entry(pipeline: Pipeline) -> IndexEntry:
    """Return an open model's entry in the repository's index."""
    info, state = pipeline.info, pipeline.runner.state
    reason = pipeline.runner.failure or state.value
    if state is State.READY:
        reason = pipeline.refusal  # of the last new version
    return IndexEntry(name=info.name, version=info.version, state=_STATES[state], reason=reason)


def broken_entry(broken: FailedModel) -> IndexEntry:
    """Return the index entry of a model that could not be opened."""
    return IndexEntry(
        name=broken.name, version=broken.version, state="UNAVAILABLE", reason=broken.error
    )


def index_of(models: Repository, *, only_ready: bool) -> list[IndexEntry]:
    """Return the repository's index."""
    entries = [index_entry(pipeline) for pipeline in models.models.values()]
    entries += map(broken_entry, models.broken.values())
    entries += [
        IndexEntry(name=name, version=version, state="UNAVAILABLE", reason="unloaded")
        for name, version in models.unloaded.items()
    ]
    return [entry for entry in entries if entry["state"] == "READY" or not only_ready]


class InferenceStatistics(TypedDict):
    """The number of requests, and the total time of each of their phases."""

    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class BatchStatistics(TypedDict):
    """The number of batches of one size, and their total time."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class ModelStatistics(TypedDict):
    """A model's counts since it was loaded."""

    name: str
    version: str
    last_inference: Annotated[int, Field(description="milliseconds since 1970; 0: none yet")]
    inference_count: Annotated[int, Field(description="images answered")]
    execution_count: Annotated[int, Field(description="batches run")]
    inference_stats: InferenceStatistics
    response_stats: dict[str, Any]
    batch_stats: list[BatchStatistics]
    memory_usage: list[Any]


AT_ONCE = 4
"""The most models whose statistics are summed in one iteration of the event loop: each takes 0.3
ms."""


class StatisticsAnswer(TypedDict):
    """The answer of the statistics extension."""

    model_stats: list[ModelStatistics]


async def every_statistics(models: Repository) -> StatisticsAnswer:
    """Return the statistics of every model. Other calls run after every few models."""
    stats = []
    for number, model in enumerate(tuple(models.models.values()), 1):
        stats.append(model_statistics(model))
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    return StatisticsAnswer(model_stats=stats)


async def statistics(pipeline: Asked) -> StatisticsAnswer:
    """Return a model's statistics."""
    return StatisticsAnswer(model_stats=[model_statistics(pipeline)])


def model_statistics(pipeline: Pipeline) -> ModelStatistics:
    """Return one model's statistics."""
    info, done = pipeline.info, pipeline.metrics.counts.sum()
    return ModelStatistics(
        name=info.name,
        version=info.version,
        last_inference=done.last_inference,
        inference_count=done.inferences,
        execution_count=done.executions,
        inference_stats=InferenceStatistics(
            success=done.success,
            fail=done.fail,
            queue=done.queue,
            compute_input=done.compute_input,
            compute_infer=done.compute_infer,
            compute_output=done.compute_output,
            cache_hit=Duration(),
            cache_miss=Duration(),
        ),
        response_stats={},
        batch_stats=[
            # Images are decoded and answers are made for each request, not for each batch.
            BatchStatistics(
                batch_size=size,
                compute_input=Duration(batch.count),
                compute_infer=batch,
                compute_output=Duration(batch.count),
            )
            for size, batch in sorted(done.batches.items())
        ],
        memory_usage=[],
    )
