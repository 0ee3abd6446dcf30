"""Defines the JSON of v1's answers and of all errors, as shown in the OpenAPI document.

The types are typed dictionaries: mypy checks them, FastAPI documents them, and msgspec encodes them
without validation.
"""

from itertools import pairwise
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,  # pydantic requires this one before Python 3.12
)

from pydantic import Field, TypeAdapter
from typing_extensions import (
    TypedDict,
)

from service.engine.ranking import Prediction
from service.hosting.model_info import FailedModel
from service.telemetry.counts import Totals


class ClassMap(TypedDict):
    """Shows how much each position of an image contributed to the score of one class."""

    index: Annotated[int, Field(ge=0, description="the class, counted from 0")]
    label: Annotated[str, Field(description="name of the class; its index if it has no name")]
    size: Annotated[list[int], Field(description="width and height of the image, turned upright")]
    box: Annotated[
        list[float],
        Field(
            description="left, top, right and bottom edge of the map, in pixels of this image;"
            " an edge may lie outside the image if the image was padded"
        ),
    ]
    bias: Annotated[
        float,
        Field(description="the score before softmax is the mean of the values plus this number"),
    ]
    values: Annotated[
        NotRequired[list[list[float]]], Field(description="rows of the map, from the top")
    ]
    overlay: Annotated[
        NotRequired[str],
        Field(description="the map in colours, to lay over the whole image: a PNG in a data URL"),
    ]


class ImageResult(TypedDict):
    """The classes of one image."""

    predictions: Annotated[
        list[Prediction],
        Field(description="at most `top_k` classes that reach the threshold, likeliest first"),
    ]
    maps: Annotated[
        NotRequired[list[ClassMap]], Field(description="one per class requested with `explain`")
    ]


class Timing(TypedDict):
    """The time that each phase of a request took, in milliseconds. The phases add up to the
    total."""

    receive: Annotated[float, Field(description="reading the body from the network")]
    decode: Annotated[
        float, Field(description="decoding the images, including the wait for a thread")
    ]
    queue: Annotated[float, Field(description="waiting for the last image's batch to start")]
    compute: Annotated[float, Field(description="running the last image's batch on the device")]
    respond: Annotated[float, Field(description="ranking the classes, and the remaining time")]
    total: Annotated[float, Field(description="from the request's head to its answer")]


class ClassifyAnswer(TypedDict):
    """The answer of `POST /v1/classify`."""

    model: Annotated[str, Field(description="name of the model", examples=["digits"])]
    results: Annotated[list[ImageResult], Field(description="one per image, in upload order")]
    timing_ms: Timing
    batch_size: Annotated[
        int,
        Field(description="images in the last image's batch, with images of other requests"),
    ]
    version: Annotated[str, Field(description="version of the model that answered", examples=["1"])]
    warning: Annotated[
        NotRequired[str],
        Field(description="why the answers are probably wrong; absent if there is no warning"),
    ]


class ModelDescription(TypedDict):
    """A served model."""

    name: str
    version: Annotated[str, Field(description="the served version, a number", examples=["1"])]
    default: Annotated[bool, Field(description="whether `POST /v1/classify` uses this model")]
    state: Annotated[str, Field(examples=["ready"])]
    classes: int
    labels: Annotated[list[str], Field(description="one per class; empty: classes have no names")]
    output: Annotated[
        str,
        Field(
            description="kind of the scores, as in the key `output` of model.toml",
            examples=["logits", "independent-probabilities"],
        ),
    ]
    multi_label: Annotated[
        bool, Field(description="whether an image may have several labels, or none")
    ]
    scores: Annotated[
        str,
        Field(description="the output with the scores, their kind, and the reason for this choice"),
    ]
    image: Annotated[
        list[int],
        Field(description="height, width and channels of the input; for clips, frames first"),
    ]
    device: Annotated[
        str, Field(description="device and engine", examples=["cpu (ONNX Runtime 1.23)"])
    ]
    precision: Annotated[
        str, Field(description="precision of the engine's convolutions", examples=["fp32"])
    ]
    layers: Annotated[
        str,
        Field(
            description="for a quantized model, how many layers use integers and which use"
            " float; otherwise empty",
            examples=["24 of 26 layers on integers; in float: conv1, conv7"],
        ),
    ]
    max_batch: int
    error: Annotated[
        str,
        Field(description="why the model is broken, or empty"),
    ]
    guess: Annotated[
        str, Field(description="preprocessing preset, if it was guessed; otherwise empty")
    ]
    warning: Annotated[str, Field(description="why the answers are probably wrong, or empty")]
    origin: Annotated[
        str,
        Field(description="the keys that each file set, the overruled keys, and the unused keys"),
    ]
    no_maps: Annotated[
        str, Field(description="why the model has no maps for `explain`; empty if it has maps")
    ]
    decoded: Annotated[
        dict[str, int],
        Field(
            description="images that the GPU decoded, and images that the CPU decoded by reason;"
            " empty if no GPU decodes",
            examples=[{"gpu": 40, "progressive": 2}],
        ),
    ]


def broken_model(broken: FailedModel) -> ModelDescription:
    """Return the description of a model that could not be opened."""
    return ModelDescription(
        name=broken.name,
        version=broken.version,
        default=False,
        state="broken: it could not be opened",
        classes=0,
        labels=[],
        output="",
        multi_label=False,
        scores="",
        image=[],
        device="",
        precision="",
        layers="",
        max_batch=0,
        error=broken.error,
        guess="",
        warning="",
        origin="",
        no_maps="it could not be opened",
        decoded={},
    )


class ModelsAnswer(TypedDict):
    """The answer of `GET /v1/models`."""

    models: list[ModelDescription]


class ErrorAnswer(TypedDict):
    """The format of all errors."""

    error: Annotated[str, Field(description="what is wrong and how to fix it")]


_PLACE = "#/components/schemas/{model}"

_ERRORS = {
    400: "Empty or malformed request, or an image that cannot be decoded",
    403: "A priority above the default that the API key may not use",
    404: "No such model, or no such version of it",
    408: "The body arrived too slowly",
    413: "Too many bytes, pixels or images",
    415: "Unsupported Content-Type, Content-Encoding or image format",
    422: "Invalid query parameter, header or form field",
    429: "Too many images are queued; see Retry-After",
    500: "The engine failed",
    501: "The model has no embedding",
    503: "The model is warming up or the server is shutting down; see Retry-After",
    504: "The request cannot meet its deadline",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return FastAPI's description of an operation's error answers with these statuses."""
    content = _json_of(ErrorAnswer)
    return {status: {"description": _ERRORS[status], "content": content} for status in statuses}


def answer_of(kind: type) -> dict[int | str, dict[str, Any]]:
    """Return FastAPI's description of an operation's answer."""
    return {200: {"content": _json_of(kind)}}


def _json_of(kind: type) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _PLACE.format(model=kind.__name__)}}}


def definitions(*kinds: type) -> dict[str, Any]:
    """Return the JSON schemas of these types, and of the types of their fields, by name.

    Operations refer to these schemas by name. Otherwise FastAPI would read the types again for each
    operation and each of its errors, at every start of the server.
    """
    every: list[tuple[type, Literal["serialization"], TypeAdapter[Any]]] = [
        (kind, "serialization", TypeAdapter(kind)) for kind in kinds
    ]
    found: dict[str, Any] = TypeAdapter.json_schemas(every, ref_template=_PLACE)[1]["$defs"]
    return found


class TrafficCounts(TypedDict):
    """A model's counts since it was first served, and its current load."""

    images: Annotated[int, Field(description="images answered")]
    requests: Annotated[int, Field(description="requests with any outcome")]
    waiting: Annotated[int, Field(description="images that wait for a batch now")]
    sizes: Annotated[list[int], Field(description="batches of 1, 2, ... images")]
    durations: Annotated[
        list[tuple[float | None, int]],
        Field(
            description="requests with status 200 by duration: pairs of an upper bound in"
            " seconds (null: no bound) and the number of requests within this bound"
        ),
    ]
    gpus: Annotated[
        list[float], Field(description="the share of time for which each GPU is busy; may be empty")
    ]


class Traffic(TypedDict):
    """The current traffic of a ready model."""

    counts: Annotated[
        NotRequired[TrafficCounts],
        Field(description="absent if metrics have a separate port, or are off"),
    ]
    metrics_port: Annotated[
        NotRequired[int], Field(description="the separate port for metrics, if there is one")
    ]


def traffic_of(totals: Totals, waiting: float, gpus: list[float]) -> TrafficCounts:
    """Return the counts of a model, the number of waiting images, and the load of the GPUs."""
    bounds, _ = totals.duration
    upto, _ = totals.batch_size
    sizes = [int(count) for _, count in upto[:-1]]
    return TrafficCounts(
        images=totals.inferences,
        requests=sum(totals.requests.values()),
        waiting=int(waiting),
        sizes=[count - before for before, count in pairwise([0, *sizes])],
        durations=[
            (None if bound == "+Inf" else float(bound), int(count)) for bound, count in bounds
        ],
        gpus=gpus,
    )
