"""Parses an HTTP inference request's body: JSON, and the binary tensor extension.

    body = JSON                          tensors as lists of numbers, or of strings
    body = JSON | tensor                 Inference-Header-Content-Length is the JSON's length
    body = tensor, or one file           Inference-Header-Content-Length: 0

In JSON, files are base64. Binary tensors are little-endian; a 4-byte length precedes each element
of a BYTES tensor. A tensor's `data` remains text until the tensor's shape has been checked. If the
JSON is long, `data` is cut out before msgspec parses the JSON.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from service.api.v2.interpretation import (
    INPUT,
    NUMBERS,
    Elements,
    InferenceJson,
    InferRequest,
    InputTensor,
    WantedOutput,
    Whole,
    understand,
)
from service.api.v2.long_json import PIECE, Span, check_counts, cut
from service.api.v2.tensors import NAN, BinaryElements, JsonElements
from service.errors import BadRequestError, Code, PayloadTooLargeError
from service.hosting.model_info import ModelInfo
from service.hosting.regions import Regions
from service.http.body import content_coding
from service.http.compression import inflate
from service.images.file import FORMATS, ImageFormat

T = TypeVar("T")

# The most bytes that are parsed at once: parsing takes about 10 ms per megabyte.
MAX_JSON_BYTES = 8 * 2**20

# The most bytes of a request without tensors.
_MAX_SHORT_BYTES = 4096


class RegisterRequest(msgspec.Struct):
    """The body of a request to register system shared memory."""

    key: str  # as shm_open takes it: /images
    byte_size: Whole
    offset: Whole = 0


class IndexRequest(msgspec.Struct):
    """The optional body of a request for the list of models."""

    ready: Annotated[bool, Meta(description="list only models that are ready")] = False


class LoadRequest(msgspec.Struct):
    """The optional body of a request to load or unload a model."""

    parameters: dict[str, Any] = {}  # msgspec copies it


_SCHEMAS = "#/components/schemas/{name}"
_, REQUEST_SCHEMAS = msgspec.json.schema_components(
    (InferenceJson, IndexRequest), ref_template=_SCHEMAS
)


def content_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return OpenAPI's description of a request body, with a reference to the schema of `kind`."""
    return {"application/json": {"schema": {"$ref": _SCHEMAS.format(name=kind.__name__)}}}


def read_json(decode: Callable[[bytes], T], text: bytes) -> T:
    """Decode the JSON of a request. Raises BadRequestError if it is invalid."""
    try:
        return decode(text)
    except RecursionError:
        reason = "it is nested too deeply"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error)
        if "trailing characters" in reason:
            reason += (
                "; if binary data follow the JSON, set Inference-Header-Content-Length to the"
                " length of the JSON"
            )
    raise BadRequestError(f"failed to parse the request JSON buffer: {reason}")


async def short_body(request: Request) -> bytes:
    """Return the decompressed body of a request without tensors. Raises PayloadTooLargeError if it
    is too long."""
    coding = content_coding(dict(request.headers.raw))
    data = b""
    try:
        async for chunk in request.stream():
            data += chunk
            if len(data) > _MAX_SHORT_BYTES:
                raise PayloadTooLargeError(
                    f"the body has more than the {_MAX_SHORT_BYTES} bytes that this path allows"
                )
    except ClientDisconnect as error:
        raise HTTPException(Code.CLIENT_LEFT, "the client disconnected") from error
    return inflate(data, coding, _MAX_SHORT_BYTES) if coding else data


_decode = msgspec.json.Decoder(InferenceJson).decode


def parse_request(
    body: bytes,
    header_length: int | None,
    info: ModelInfo,
    max_images: int,
    regions: Regions | None = None,
) -> InferRequest:
    """Return the inference request that a body contains. `header_length` is the length of the JSON,
    or None if the client sent no Inference-Header-Content-Length.

    The images may be a view of `body`. Parsing takes time in proportion to the body's length.
    Raises BadRequestError if the body is invalid, TooManyImagesError for more than `max_images`
    images, and PayloadTooLargeError if the JSON is too long.
    """
    if header_length == 0:
        return _parse_raw(body, info)
    end = len(body) if header_length is None else header_length
    if end > len(body):
        raise BadRequestError(
            f"Inference-Header-Content-Length is {end}, but the body has {len(body)} bytes; the"
            " header must be the length of the JSON, with which the body begins"
        )
    if end > MAX_JSON_BYTES:
        raise PayloadTooLargeError(
            f"the JSON has {end} bytes; at most {MAX_JSON_BYTES} are allowed, "
            "so send tensors as binary data, after the JSON"
        )
    try:
        asked, lists = _read_head(body, end, max_images)
    except BadRequestError as error:
        if header_length is None and (kind := ImageFormat.of(body)) is not None:
            raise BadRequestError(
                f"the body is a {kind.value}, not JSON; to send a file in place of JSON, set"
                " Inference-Header-Content-Length: 0"
            ) from error
        raise
    binary = memoryview(body)[end:]

    def elements(tensor: InputTensor) -> Elements:
        return _elements(tensor, lists, binary)

    return understand(asked, elements, info, max_images, regions)


def _parse_raw(body: bytes, info: ModelInfo) -> InferRequest:
    """Return the request for a body without JSON, which is one image. As in Triton, the answer is
    binary.

    If the first bytes are those of an image format, the body is a file. Otherwise, the body's
    length shows whether it is a tensor for the model's own input, as in Triton, or pixels.
    """
    outputs = [WantedOutput(info.scores, binary=True)]
    if ImageFormat.of(body) is not None:
        return InferRequest([body], None, outputs)
    forms = [(INPUT, "UINT8", info.image_shape)]
    if info.tensor:
        forms.insert(0, (info.tensor, info.tensor_type, info.tensor_shape))
    sizes = [math.prod(shape) * NUMBERS[kind]().itemsize for _, kind, shape in forms]
    if len(body) not in sizes:
        each = [
            f"the {size} bytes of {kind} {'×'.join(map(str, shape))} as input '{name}'"
            for size, (name, kind, shape) in zip(sizes, forms, strict=True)
        ]
        raise BadRequestError(
            f"a raw body must be one {FORMATS} file, or {' or '.join(each)};"
            f" the body has {len(body)} bytes"
        )
    name, kind, shape = forms[sizes.index(len(body))]
    asked = InferenceJson([InputTensor(name, kind, [1, *shape])])
    read = understand(asked, lambda _: BinaryElements(body, name), info, 1)
    return replace(read, outputs=outputs)


def _read_head(
    body: bytes, end: int, max_images: int
) -> tuple[InferenceJson, Sequence[Span] | None]:
    """Parse the JSON up to `end`. If it is long or contains NaN, which the parser refuses, first
    cut out the `data` lists. Return the parsed JSON, and the lists that were cut out as texts."""
    check_counts(body, end, max_images)
    if end <= PIECE and NAN not in body[:end]:
        return read_json(_decode, body[:end]), None
    head, lists = cut(body, end)
    return read_json(_decode, head), lists


def _elements(tensor: InputTensor, lists: Sequence[Span] | None, binary: memoryview) -> Elements:
    """Return an object that reads a tensor's elements, from the JSON or from the bytes after it."""
    size = tensor.parameters and tensor.parameters.binary_data_size
    if size is None:
        if binary:
            raise BadRequestError(
                f"{len(binary)} bytes follow the JSON, but no tensor has binary_data_size"
            )
        return JsonElements(_data_of(tensor, lists))
    if size != len(binary):
        raise BadRequestError(
            f"input '{tensor.name}': binary_data_size is {size}, "
            f"but {len(binary)} bytes follow the JSON"
        )
    return BinaryElements(binary, tensor.name)


def _data_of(tensor: InputTensor, lists: Sequence[Span] | None) -> Span:
    """Return the list `data` of a tensor. Raises BadRequestError if the tensor has none."""
    data = bytes(tensor.data)
    if data.startswith(b"["):
        if lists is None:
            return Span(data, 0, len(data))
        index = data[1:-1]
        # A key that is written with escapes is not found; no client writes it in this way.
        if index.isdigit() and int(index) < len(lists):
            return lists[int(index)]
    raise BadRequestError(
        f"input '{tensor.name}' has no `data`: send a list, or binary data with binary_data_size"
    )
