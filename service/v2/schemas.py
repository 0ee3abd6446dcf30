"""The shapes of JSON that the V2 protocol answers with, as the OpenAPI document shows them."""

from typing import Annotated, Any

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


_PARAMETERS = {"type": "object"}

# What `service/v2/request.py` reads; it says what is wrong better than a validator would.
INFER_REQUEST: dict[str, Any] = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string", "description": "comes back with the answer"},
        "parameters": {
            "type": "object",
            "properties": {
                "timeout": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "after how many microseconds the answer is worth nothing",
                },
                "priority": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "1: the highest; 0: the default",
                },
                "binary_data_output": {"type": "boolean"},
            },
        },
        "inputs": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "datatype", "shape"],
                "properties": {
                    "name": {"const": "image"},
                    "datatype": {"enum": ["UINT8", "BYTES"]},
                    "shape": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "integer", "minimum": 1},
                        "description": "[n, H, W, C] of pixels, [n] of encoded pictures",
                    },
                    "data": {
                        "type": "array",
                        "description": "numbers from 0 to 255, or base64; or binary, after this",
                    },
                    "parameters": _PARAMETERS,
                },
            },
        },
        "outputs": {
            "type": "array",
            "maxItems": 1,
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "parameters": _PARAMETERS},
            },
        },
    },
}

INDEX_REQUEST: dict[str, Any] = {
    "type": "object",
    "properties": {"ready": {"type": "boolean", "description": "list only those that are ready"}},
}
