"""Implements Convoy's own API (`/v1`), which takes images and answers with labels."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec
from pydantic import Field, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from models import ChannelOrder, Maps, classes_of
from service.api.explain import (
    QUERY,
    MapRequest,
    check_number,
    classes_by_label,
    explain,
    map_bytes,
    maps_of,
    read_explain,
)
from service.api.json_images import ImagesJson, content_of, read_json
from service.api.query import read_query
from service.api.schemas import (
    ClassifyAnswer,
    ImageResult,
    ModelDescription,
    ModelsAnswer,
    answer_of,
    broken_model,
    errors,
)
from service.batching.policy import LEVELS, NO_HURRY, Urgency, urgency_of
from service.engine.ranking import DEFAULT_THRESHOLD, Ranking, likeliest, most_of, named
from service.errors import InvalidParameterError
from service.hosting.model_info import ModelInfo
from service.hosting.pipeline import Pipeline
from service.hosting.repository import Repository
from service.hosting.request import Files, ImageRequest, Scored
from service.http.asgi import answer_to
from service.http.body import (
    FILE_FIELDS,
    FORM_TYPE,
    IMAGE_TYPES,
    Headers,
    Pieces,
    boundary_of,
    images_of,
)
from service.http.exchange import AnyEndpoint
from service.http.responses import around, json_around, json_response
from service.images.clip import CLIP_TYPES, MOST_FRAMES, clips_of
from service.images.decode import as_png
from service.telemetry.counts import PHASES, Phases
from service.telemetry.record import RequestRecord

if TYPE_CHECKING:
    from fastapi import FastAPI

T = TypeVar("T")

CLASSIFY_PATH = "/v1/classify"
MODELS_PATH = "/v1/models"
DEFAULT_TOP_K = 5

# Parsing a form with more bytes or more parts takes longer than handing the form to a thread; each
# part takes 20 µs.
_LONG_FORM, _FEW_PARTS, _PART = 2**18, 16, b"\r\n--"

# The most bytes of an answer without its lines, the most bytes of a line without its label, and the
# most lines that are encoded at once.
_HEAD_BYTES, _LINE_BYTES, _MANY_LINES = 4096, 80, 500

_IMAGE = {"type": "string", "format": "binary"}
_FORM = {
    "type": "object",
    "properties": {name: {"type": "array", "items": _IMAGE} for name in FILE_FIELDS},
}
TIMEOUT_HEADER = "X-Timeout-Ms"
PRIORITY_HEADER = "X-Priority"

_DEADLINE = "deadline, in milliseconds after the request arrived; default: none"

_Timeout = TypeAdapter[float](
    Annotated[float, Field(gt=0, allow_inf_nan=False, description=_DEADLINE)]
)
_Priority = TypeAdapter[int](Annotated[int, Field(ge=0, description=LEVELS)])

_Share = TypeAdapter[float](
    Annotated[
        float,
        Field(
            ge=0,
            le=1,
            allow_inf_nan=False,
            description="the lowest probability of a class in the answer; the default is 0.5 for a"
            " multi-label model and 0 for other models",
        ),
    ]
)
_SHARE = "threshold must be a number from 0 to 1"

_TIMEOUT, _PRIORITY = (name.lower().encode() for name in (TIMEOUT_HEADER, PRIORITY_HEADER))
_timeout, _priority = _Timeout.validator.validate_python, _Priority.validator.validate_python
_share = _Share.validator.validate_python


def model_path(name: str) -> str:
    """Return the path at which the model with this name classifies images."""
    return f"/v1/models/{name}/classify"


def pixels_path(name: str) -> str:
    """Return the path that shows which pixels the named model gets for an image."""
    return f"/v1/models/{name}/pixels"


def body_of(*models: Pipeline) -> dict[str, Any]:
    """Return OpenAPI's description of a request body for these models. The body may be an image. It
    may also be a clip if one of the models takes clips."""
    clips = CLIP_TYPES if any(model.info.of_clips for model in models) else ()
    content: dict[str, Any] = {kind: {"schema": _IMAGE} for kind in (*IMAGE_TYPES, *clips)}
    content[FORM_TYPE] = {"schema": _FORM}
    return {"required": True, "content": content | content_of(ImagesJson)}


def endpoints_of(pipeline: Pipeline) -> dict[str, AnyEndpoint]:
    """Return a mapping from each path of a model to its endpoint."""
    name = pipeline.info.name
    return {model_path(name): Classify(pipeline), pixels_path(name): ShowPixels(pipeline)}


def add_routes(
    app: "FastAPI", repository: Repository, endpoints: Mapping[str, AnyEndpoint]
) -> None:
    """Add the routes of `/v1` to the application. The endpoint of the model in `endpoints` answers
    each request."""
    default = repository.default

    async def classify(request: Request) -> Response:
        """Classify one image, or several at once.

        The body is one image, a form with one or more files, or JSON with images in base64. A model
        for clips takes animations, ZIP archives and videos, or a form with the frames of one clip.
        A server with several models and no default model answers at `/v1/models/{model}/classify`.
        """
        asked = repository.find_default(model_path)
        return await answer_to(request, endpoints[model_path(asked.info.name)])

    async def classify_by(request: Request, model: str) -> Response:
        """Classify images with the named model. Request and answer are the same as for
        `/v1/classify`."""
        name = repository.find(model).info.name
        return await answer_to(request, endpoints[model_path(name)])

    async def show_pixels(request: Request, model: str) -> Response:
        """Return an image as the named model gets it: turned, resized and cropped, as PNG."""
        name = repository.find(model).info.name
        return await answer_to(request, endpoints[pixels_path(name)])

    async def list_models() -> Response:
        """List the models with their labels."""
        return json_response(
            ModelsAnswer(
                models=[
                    ModelDescription(
                        name=name,
                        version=pipeline.info.version,
                        default=pipeline is repository.default,
                        state=pipeline.runner.state.value,
                        classes=classes_of(pipeline.runner.classes),
                        output=pipeline.info.output.value,
                        multi_label=pipeline.info.is_multi_label,
                        scores=pipeline.info.meaning,
                        labels=pipeline.labels_json,
                        image=list(pipeline.info.image_shape),
                        device=pipeline.runner.device,
                        precision=pipeline.runner.precision,
                        layers=pipeline.runner.layers,
                        max_batch=pipeline.runner.max_batch,
                        error=pipeline.runner.failure,
                        guess=pipeline.info.guess,
                        warning=pipeline.info.warning,
                        origin=pipeline.info.origin,
                        no_maps=_why_no_maps(pipeline.info),
                        decoded={
                            why or "gpu": count
                            for why, count in pipeline.metrics.counts.decoders.items()
                        },
                    )
                    for name, pipeline in repository.models.items()
                ]
                + [broken_model(broken) for broken in repository.broken.values()]
            )
        )

    app.add_api_route(
        MODELS_PATH,
        list_models,
        responses=answer_of(ModelsAnswer),
        summary="List the models with their labels",
        tags=["models"],
    )
    served = repository.models.values()
    for path, route, summary, classes, asked in (
        (
            CLASSIFY_PATH,
            classify,
            "Classify images",
            classes_of(default.runner.classes) if default else None,
            [default] if default else served,
        ),
        (model_path("{model}"), classify_by, "Classify images with a named model", None, served),
    ):
        app.add_api_route(
            path,
            route,
            methods=["POST"],
            summary=summary,
            responses=answer_of(ClassifyAnswer)
            | errors(400, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504),
            openapi_extra={"requestBody": body_of(*asked), "parameters": _parameters(classes)},
            tags=["classify"],
        )
    app.add_api_route(
        pixels_path("{model}"),
        show_pixels,
        methods=["POST"],
        summary="Show an image as a model gets it",
        response_class=Response,
        responses={
            200: {"content": {"image/png": {"schema": _IMAGE}}, "description": "The pixels"},
            **errors(400, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504),
        },
        openapi_extra={"requestBody": body_of(*served), "parameters": parameters_of({})},
        tags=["models"],
    )


class _Form(NamedTuple):
    """The options for the answer to each image."""

    classes: int
    explained: MapRequest | None = None
    threshold: float = 0.0  # the least probability


class _ClassifyParameters(NamedTuple):
    """The options from a request's query and headers."""

    form: _Form
    urgency: Urgency
    boundary: bytes | None  # of a form; empty if the body is one image, None if it is JSON


class Classify:
    """Reads the images in a request, and answers with their labels."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        classes = classes_of(pipeline.runner.classes)
        self._few = _Form(*_by_default(pipeline.info, classes))
        self._read_query = query_parser(pipeline.info, classes)
        self._line_bytes = _LINE_BYTES + pipeline.longest_label
        self._also = CLIP_TYPES if pipeline.info.of_clips else ()  # types of bodies, beside images

    def check(self, record: RequestRecord) -> _ClassifyParameters:
        """Return the options in a request's query and headers. Raises ServiceError if they are
        invalid."""
        query, headers = record.query, record.headers
        return _ClassifyParameters(
            self._read_query(query) if query else self._few,
            urgency_from(headers, record.started),
            boundary_of(headers, self._also),
        )

    def reads_quickly(self, headers: Headers, pieces: Pieces, length: int) -> bool:
        """Return whether parsing a body takes less time than passing it to a thread."""
        return not takes_long(headers, pieces, length)

    def read(self, head: _ClassifyParameters, body: bytes) -> tuple[ImageRequest, _Form]:
        """Return the images in the body, and the options for the answer."""
        files = files_of(body, head.boundary, self.pipeline)
        wanted = ImageRequest(files, None, head.urgency)
        explained = head.form.explained
        if explained is None:
            return wanted, head.form
        check_number(explained, len(files))
        features = maps_of(self.pipeline.info).features.name
        return wanted._replace(inner=[features], views=explained.views), head.form

    def answer_bytes(self, form: _Form, scored: Scored) -> int:
        """Return an upper limit on the answer's size in bytes, with the requested classes and
        maps."""
        lines = len(scored.results) * form.classes
        if form.threshold and lines > _MANY_LINES:
            output = self.pipeline.info.output
            lines = min(lines, most_of(scored.results, output, form.threshold))
        most = _HEAD_BYTES + lines * self._line_bytes
        if form.explained is None:
            return most
        return most + map_bytes(form.explained, scored.results, self.pipeline.info)

    def answer(self, form: _Form, scored: Scored, phases: Callable[[], Phases]) -> Response:
        """Return the HTTP answer, with the likeliest classes of each image, and maps if
        requested."""
        info, asked = self.pipeline.info, form.explained
        # Text of many lines takes a fifth of the memory of objects, and is encoded in pieces.
        many = form.classes * len(scored.results) > _MANY_LINES or asked is not None
        results, pieces = [], []
        for number, row in enumerate(scored.results):
            found = likeliest(row, form.classes, info.output, form.threshold)
            result: ImageResult = {"predictions": [] if many else named(found, info.labels)}
            if asked is not None:
                result["maps"] = explain(row, asked.views[number], asked, info)
            if many:
                pieces.append(around(result, "predictions", _lines(found, info.labels)))
            else:
                results.append(result)
        total, *parts = phases()
        timing: Any = {name: us / 1e3 for name, us in zip(PHASES, parts, strict=True)}
        timing["total"] = total / 1e3
        answer: ClassifyAnswer = {
            "model": info.name,
            "results": results,
            "timing_ms": timing,
            "batch_size": scored.batch_size,
            "version": info.version,
        }
        if info.warning:
            answer["warning"] = info.warning
        return json_around(answer, "results", pieces) if many else json_response(answer)


class ShowPixels(Classify):
    """Reads an image, and answers with the pixels that the model gets."""

    @override
    def check(self, record: RequestRecord) -> _ClassifyParameters:
        if record.query:
            query = record.query[:20].decode("latin-1")
            raise InvalidParameterError(
                f"the query is {query!r}, but this path takes no parameters; remove the query"
            )
        return super().check(record)

    @override
    def read(self, head: _ClassifyParameters, body: bytes) -> tuple[ImageRequest, _Form]:
        wanted, form = super().read(head, body)
        if wanted.size != 1:
            raise InvalidParameterError(f"the request has {wanted.size} images; send one image")
        return wanted._replace(pixels_only=True), form

    @override
    def answer_bytes(self, form: _Form, scored: Scored) -> int:
        pixels: Any = scored.results[0]
        return _HEAD_BYTES + 2 * int(pixels.nbytes)  # what is made of them, and the PNG

    @override
    def answer(self, form: _Form, scored: Scored, phases: Callable[[], Phases]) -> Response:
        pixels: Any = scored.results[0]
        pixels = pixels.reshape(-1, *pixels.shape[-2:])  # frames of a clip one below another
        if self.pipeline.info.channels is ChannelOrder.BGR:
            pixels = pixels[..., ::-1]
        return Response(as_png(pixels), media_type="image/png")


def _lines(found: Ranking, labels: Sequence[str]) -> list[bytes]:
    """Encode a ranking as the elements of a JSON list, in several pieces. Encoding all elements in
    one call would block other threads."""
    indices, probabilities = found
    pieces = []
    for at in range(0, len(indices), _MANY_LINES):
        end = at + _MANY_LINES
        some = named((indices[at:end], probabilities[at:end]), labels)
        pieces.append(msgspec.json.encode(some)[1:-1])
    return pieces


def files_of(body: bytes, boundary: bytes | None, pipeline: Pipeline) -> Files:
    """Return the image files in a body. For a model that takes clips, return clips; several image
    files then form one clip.

    `boundary` separates the parts of a form. It is empty if the body is an image, and None if the
    body is JSON. Raises the errors of `images_of`, `read_json` and `clips_of`.
    """
    info, of_clips = pipeline.info, pipeline.info.of_clips
    most = MOST_FRAMES if of_clips else pipeline.admission.max_images_a_request
    if boundary is None:
        _, files = read_json(body, ImagesJson, info, model_path("NAME"), most)
    else:
        files = images_of(body, boundary, most)
    return clips_of(files) if of_clips else files


def takes_long(headers: Headers, pieces: Pieces, length: int) -> bool:
    """Return whether parsing a body takes long. This is the case for a long form or JSON body, and
    for a form with many parts."""
    media_type = headers.get(b"content-type", b"").lower()
    if b"multipart/" in media_type:
        return length > _LONG_FORM or sum(each.count(_PART) for each in pieces) > _FEW_PARTS
    return length > _LONG_FORM and b"json" in media_type


def query_parser(info: ModelInfo, classes: int) -> Callable[[bytes], _Form]:
    """Return a function that parses the query of a request to a model with `classes` classes. The
    function raises InvalidParameterError if the query is invalid."""
    validate: Callable[[bytes | str], int] = _top_k(classes).validator.validate_python
    rule = f"top_k must be a whole number from 1 to {classes}"
    usual, labelled = _by_default(info, classes), classes_by_label(info)

    def parse(query: bytes) -> _Form:
        parameters = read_query(query, ("top_k", "threshold", *QUERY))
        asked, least = parameters.get("top_k"), parameters.get("threshold")
        top = usual.classes if asked is None else validated(validate, asked[-1], rule)
        threshold = usual.threshold if least is None else validated(_share, least[-1], _SHARE)
        return _Form(top, read_explain(parameters, info, classes, labelled), threshold)

    return parse


def _by_default(info: ModelInfo, classes: int) -> _Form:
    """Return the options for an empty query: the likeliest classes or, for a multi-label model,
    every label with a probability of at least 0.5."""
    if info.is_multi_label:
        return _Form(classes, threshold=DEFAULT_THRESHOLD)
    return _Form(min(DEFAULT_TOP_K, classes))


def _why_no_maps(info: ModelInfo) -> str:
    return "" if isinstance(info.maps, Maps) else info.maps.reason


def _top_k(classes: int | None) -> TypeAdapter[int]:
    """Return the type of the query parameter `top_k` for a model with `classes` classes. If
    `classes` is None, the type fits any model."""
    described = (
        "the most classes in the answer, likeliest first; the default for a multi-label model is"
        " all classes that reach the threshold"
    )
    return TypeAdapter(Annotated[int, Field(ge=1, le=classes, description=described)])


def _parameters(classes: int | None) -> list[dict[str, Any]]:
    """Return OpenAPI's description of the parameters that `Classify.check` reads."""
    fewest = min(DEFAULT_TOP_K, classes or DEFAULT_TOP_K)
    threshold = (_Share.json_schema(), 0)
    return parameters_of(
        {"top_k": (_top_k(classes).json_schema(), fewest), "threshold": threshold, **QUERY}
    )


def parameters_of(query: Mapping[str, tuple[dict[str, Any], Any]]) -> list[dict[str, Any]]:
    """Return OpenAPI's description of the parameters in `query` and of the headers that
    `urgency_from` reads. `query` maps the name of each parameter to its schema and default."""
    described = [
        ("query", name, schema | {"default": default}) for name, (schema, default) in query.items()
    ]
    described.append(("header", TIMEOUT_HEADER, _Timeout.json_schema()))
    described.append(("header", PRIORITY_HEADER, _Priority.json_schema() | {"default": 0}))
    return [
        {
            "in": where,
            "name": name,
            "required": False,
            "description": schema["description"],
            "schema": schema,
        }
        for where, name, schema in described
    ]


def urgency_from(headers: Mapping[bytes, bytes], started: float) -> Urgency:
    """Return the deadline and the priority in a request's headers. `started` is the time in seconds
    at which the request began to arrive, on the clock `perf_counter`.

    Raises InvalidParameterError if a header's value does not fit `_Timeout` or `_Priority`.
    """
    timeout, priority = headers.get(_TIMEOUT), headers.get(_PRIORITY, b"0")
    if timeout is None and priority == b"0":
        return NO_HURRY
    level, timeout_s = 0, None
    if priority != b"0":
        rule = f"{PRIORITY_HEADER} must be a whole number ({LEVELS})"
        level = validated(_priority, priority, rule)
    if timeout is not None:
        rule = f"{TIMEOUT_HEADER} must be a positive number of milliseconds"
        timeout_s = validated(_timeout, timeout, rule) / 1e3
    return urgency_of(started, timeout_s, level)


def validated(validate: Callable[[bytes | str], T], value: bytes | str, rule: str) -> T:
    """Return the parsed value of a parameter. Raises InvalidParameterError with `rule` in the
    message if the value is invalid."""
    try:
        return validate(value)
    except ValidationError:
        shown = value if isinstance(value, str) else value.decode("latin-1")
        raise InvalidParameterError(f"{rule}; got {shown[:20]!r}") from None
