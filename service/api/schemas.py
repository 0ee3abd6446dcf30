"""The shapes of JSON that the service sends, as its OpenAPI document shows them.

Typed dictionaries rather than models: the routes build them as they are, mypy checks them, and
nothing is validated again on the way out.
"""

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from service.engine.ranking import Prediction


class ImageResult(TypedDict):
    """What one picture shows."""

    predictions: Annotated[list[Prediction], Field(description="`top_k` classes, likeliest first")]


class Timing(TypedDict):
    """Where a request's time went, in milliseconds; the parts add up to the total."""

    receive: Annotated[float, Field(description="reading the body off the network")]
    decode: Annotated[
        float, Field(description="from bytes to pixels, waiting for a thread included")
    ]
    queue: Annotated[float, Field(description="waiting for the batch of its last picture to start")]
    compute: Annotated[float, Field(description="that batch on the device")]
    respond: Annotated[float, Field(description="ranking the classes, and all else there was")]
    total: Annotated[float, Field(description="the sum: from the request's header to its answer")]


class ClassifyAnswer(TypedDict):
    """The answer of `POST /v1/classify`."""

    model: Annotated[str, Field(description="name of the model", examples=["digits"])]
    results: Annotated[list[ImageResult], Field(description="one a picture, in upload order")]
    timing_ms: Timing


class ErrorAnswer(TypedDict):
    """The one shape of every error."""

    error: Annotated[str, Field(description="what was wrong and what to do")]


class LiveAnswer(TypedDict):
    """The process answers."""

    live: bool


class ReadyAnswer(TypedDict):
    """Every batch size is warm and nothing is draining."""

    ready: bool
