"""The shapes of JSON that the V2 protocol answers with, as the OpenAPI document shows them.

What it is asked with is in `service/api/v2/request.py`, whose structures are the schema.
"""

from typing import Annotated, Any

import msgspec
from pydantic import Field
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12


class ServerMetadata(TypedDict):
    """What serves, and which extensions of the protocol it speaks."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(TypedDict):
    """One input or output; -1 stands for the number of images."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(TypedDict):
    """What a model takes and gives."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelReady(TypedDict):
    """Whether a model takes requests."""

    name: str
    ready: bool


class IndexEntry(TypedDict):
    """One model of the repository."""

    name: str
    version: str
    state: Annotated[str, Field(examples=["READY"])]
    reason: str


class InferTensor(TypedDict, total=False):
    """A tensor that travels as JSON, or as `binary_data_size` bytes after it."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any]
    parameters: dict[str, Any]


class InferAnswer(TypedDict, total=False):
    """The scores of n images, [n, classes], or their labels where those are asked for."""

    id: str
    model_name: str
    model_version: str
    outputs: list[InferTensor]


class CountAndTime(TypedDict):
    """How often, and how many nanoseconds altogether."""

    count: int
    ns: int


class InferenceStatistics(TypedDict):
    """Requests, and where their time went."""

    success: CountAndTime
    fail: CountAndTime
    queue: CountAndTime
    compute_input: CountAndTime
    compute_infer: CountAndTime
    compute_output: CountAndTime
    cache_hit: CountAndTime
    cache_miss: CountAndTime


class BatchStatistics(TypedDict):
    """The batches of one size."""

    batch_size: int
    compute_input: CountAndTime
    compute_infer: CountAndTime
    compute_output: CountAndTime


class ModelStatistics(TypedDict):
    """What a model has done since it was loaded."""

    name: str
    version: str
    last_inference: Annotated[int, Field(description="milliseconds since 1970; 0: none yet")]
    inference_count: Annotated[int, Field(description="images answered")]
    execution_count: Annotated[int, Field(description="batches run")]
    inference_stats: InferenceStatistics
    response_stats: dict[str, Any]
    batch_stats: list[BatchStatistics]
    memory_usage: list[Any]


class StatisticsAnswer(TypedDict):
    """The statistics extension's answer."""

    model_stats: list[ModelStatistics]


class IndexRequest(msgspec.Struct):
    """The body of a request for the list of models, if it has one."""

    ready: Annotated[bool, msgspec.Meta(description="list only those that are ready")] = False


def request_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of what a request may be, without references to elsewhere."""
    (schema,), parts = msgspec.json.schema_components((kind,), ref_template="{name}")

    def inlined(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return inlined(parts[node["$ref"]])
            return {key: inlined(value) for key, value in node.items()}
        return [inlined(each) for each in node] if isinstance(node, list) else node

    inlined_schema: dict[str, Any] = inlined(schema)
    return inlined_schema
