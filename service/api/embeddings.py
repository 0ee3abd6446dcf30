"""Implements `/v1/embeddings`: answers with the embeddings of images, in the format of OpenAI's
embeddings API."""

import base64
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12

from service.api.json_images import ImagesJson, content_of, read_json
from service.api.query import read_query
from service.api.schemas import answer_of, errors
from service.api.v1 import body_of, files_of, parameters_of, takes_long, urgency_from
from service.batching.policy import Urgency
from service.errors import InvalidParameterError
from service.hosting.pipeline import Pipeline
from service.hosting.repository import Repository
from service.hosting.request import Files, ImageRequest, Scored
from service.hosting.vectors import embedding, embeddings_of, normalise
from service.http.asgi import answer_to
from service.http.body import Headers, Pieces, boundary_of
from service.http.exchange import AnyEndpoint
from service.http.responses import JSON_NUMBER_BYTES, json_around
from service.images.clip import CLIP_TYPES
from service.telemetry.counts import Phases
from service.telemetry.record import RequestRecord

if TYPE_CHECKING:
    from fastapi import FastAPI

PATH = "/v1/embeddings"

Encoding = Literal["float", "base64"]


class EmbeddingsJson(ImagesJson, forbid_unknown_fields=True):
    """A JSON request in the format of OpenAI's clients, with images instead of text."""

    encoding_format: Annotated[
        Encoding, Meta(description="numbers, or base64 of little-endian float32")
    ] = "float"
    normalize: Annotated[bool, Meta(description="whether vectors are scaled to length 1")] = False
    dimensions: Annotated[int | None, Meta(description="if present, the size of the vectors")] = (
        None
    )
    user: str = ""


class Embedding(TypedDict):
    """The vector of one image."""

    object: Literal["embedding"]
    index: Annotated[int, Field(ge=0, description="the image's place in the request")]
    embedding: Annotated[
        list[float] | str, Field(description="numbers, or base64 of little-endian float32")
    ]


class Usage(TypedDict):
    """The numbers of tokens. They are always 0, because images have no tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(TypedDict):
    """The answer of `POST /v1/embeddings`."""

    object: Literal["list"]
    data: Annotated[list[Embedding], Field(description="one per image, in upload order")]
    model: Annotated[str, Field(description="name of the model", examples=["digits"])]
    version: Annotated[str, Field(description="version of the model that answered", examples=["1"])]
    usage: Usage


class _Form(NamedTuple):
    """The format of the vectors in an answer."""

    encoding: Encoding
    normalised: bool


class _Head(NamedTuple):
    """The options from a request's query and headers."""

    form: _Form
    urgency: Urgency
    boundary: bytes | None  # of a form; empty if the body is one image, None if it is JSON


def embeddings_path(name: str) -> str:
    """Return the path at which the model with this name answers with embeddings."""
    return f"/v1/models/{name}/embeddings"


def endpoints_of(pipeline: Pipeline) -> dict[str, AnyEndpoint]:
    """Return a mapping from a model's embeddings path to its endpoint."""
    return {embeddings_path(pipeline.info.name): Embed(pipeline)}


def add_routes(
    app: "FastAPI", repository: Repository, endpoints: Mapping[str, AnyEndpoint]
) -> None:
    """Add the routes for embeddings to the application. The endpoint of the model in `endpoints`
    answers each request."""

    async def embed(request: Request) -> Response:
        """Return the embedding of one image, or of several at once.

        An embedding is the input of the model's last linear layer: a vector that is near the
        vectors of similar images. The body is one image, a form with files, or JSON in the format
        of OpenAI's clients. A server with several models and no default model answers at
        `/v1/models/{model}/embeddings`.
        """
        asked = repository.find_default(embeddings_path)
        return await answer_to(request, endpoints[embeddings_path(asked.info.name)])

    async def embed_by(request: Request, model: str) -> Response:
        """Return embeddings by the named model. Request and answer are the same as for
        `/v1/embeddings`."""
        name = repository.find(model).info.name
        return await answer_to(request, endpoints[embeddings_path(name)])

    body = body_of(*repository.models.values())
    body["content"] |= content_of(EmbeddingsJson)
    for path, route, summary in (
        (PATH, embed, "Embed images"),
        (embeddings_path("{model}"), embed_by, "Embed images with a named model"),
    ):
        app.add_api_route(
            path,
            route,
            methods=["POST"],
            summary=summary,
            responses=answer_of(EmbeddingsAnswer)
            | errors(400, 403, 404, 408, 413, 415, 422, 429, 500, 501, 503, 504),
            openapi_extra={"requestBody": body, "parameters": parameters_of(_QUERY)},
            tags=["classify"],
        )


_QUERY: dict[str, tuple[dict[str, Any], str]] = {
    "encoding_format": (
        {
            "type": "string",
            "enum": ["float", "base64"],
            "description": "numbers, or base64 of little-endian float32",
        },
        "float",
    ),
    "normalize": (
        {
            "type": "string",
            "enum": ["0", "1"],
            "description": "1: vectors are scaled to length 1",
        },
        "0",
    ),
}


class Embed:
    """Reads images and answers with their embeddings."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def check(self, record: RequestRecord) -> _Head:
        """Return the options in a request's query and headers. Raises ServiceError if they are
        invalid, and UnsupportedError if the model has no embedding."""
        embedding(self.pipeline.info)
        headers = record.headers
        query = {name: values[-1] for name, values in read_query(record.query, _QUERY).items()}
        for name, value in query.items():
            if value not in (allowed := _QUERY[name][0]["enum"]):
                raise InvalidParameterError(
                    f"{name} must be {' or '.join(allowed)}; got {value[:20]!r}"
                )
        boundary = boundary_of(headers, CLIP_TYPES if self.pipeline.info.of_clips else ())
        if boundary is None and query:
            raise InvalidParameterError(
                f"the query has {' and '.join(query)}, but the body is JSON; send each parameter"
                " as a field of the JSON"
            )
        return _Head(
            _Form(
                "base64" if query.get("encoding_format") == "base64" else "float",
                query.get("normalize") == "1",
            ),
            urgency_from(headers, record.started),
            boundary,
        )

    def reads_quickly(self, headers: Headers, pieces: Pieces, length: int) -> bool:
        """Return whether parsing a body takes less time than passing it to a thread."""
        return not takes_long(headers, pieces, length)

    def read(self, head: _Head, body: bytes) -> tuple[ImageRequest, _Form]:
        """Return the images in the body, and the options for the answer."""
        files: Files
        if head.boundary is None:
            files, form = self._read_json(body)
        else:
            files, form = files_of(body, head.boundary, self.pipeline), head.form
        inner = [embedding(self.pipeline.info).name]
        return ImageRequest(files, None, head.urgency, inner=inner, averaged=True), form

    def answer_bytes(self, form: _Form, scored: Scored) -> int:
        """Return an upper limit on the answer's size in bytes."""
        each = 6 if form.encoding == "base64" else JSON_NUMBER_BYTES
        size = embedding(self.pipeline.info).size
        return 4096 + len(scored.results) * (128 + each * size)

    def answer(self, form: _Form, scored: Scored, phases: Callable[[], Phases]) -> Response:  # noqa: ARG002
        """Return the HTTP answer, with the embedding of each image."""
        vectors = embeddings_of(scored.results, self.pipeline.info)
        if form.normalised:
            vectors = normalise(vectors)
        pieces = []
        for index, vector in enumerate(vectors):
            encoded = _encoded(vector, form.encoding)
            one = Embedding(object="embedding", index=index, embedding=encoded)
            pieces.append(msgspec.json.encode(one))
        info = self.pipeline.info
        answer = EmbeddingsAnswer(
            object="list",
            data=[],
            model=info.name,
            version=info.version,
            usage={"prompt_tokens": 0, "total_tokens": 0},
        )
        return json_around(answer, "data", pieces)

    def _read_json(self, body: bytes) -> tuple[list[bytes], _Form]:
        pipeline, info = self.pipeline, self.pipeline.info
        most, path = pipeline.admission.max_images_a_request, embeddings_path("NAME")
        asked, files = read_json(body, EmbeddingsJson, info, path, most)
        size = embedding(info).size
        if asked.dimensions not in (None, size):
            raise InvalidParameterError(
                f"`dimensions` is {asked.dimensions}, but the embeddings of '{info.name}' have"
                f" {size} dimensions; leave `dimensions` out"
            )
        return files, _Form(asked.encoding_format, asked.normalize)


def _encoded(vector: NDArray[np.float32], encoding: Encoding) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
