"""Parses inference requests of the V2 protocol: JSON, and the binary tensor extension.

    body = JSON                          tensors as lists of numbers, or of strings
    body = JSON | tensor                 Inference-Header-Content-Length is the JSON's length
    body = tensor                        Inference-Header-Content-Length: 0

A request has one input: `image`, or the one that the model itself has, under its own name.

    image     UINT8 [n, H, W, C]       RGB pixels in the model's size, or grey ones; not normalised
    image     BYTES [n] or [n, 1]      JPEG, PNG or WebP files; in JSON as base64
    its own   FP32 [n, C, H, W]        normalised as the model expects; or [n, H, W, C], if it does

Binary tensors are little-endian; a 4-byte length precedes each element of a BYTES tensor.

The structures are the only description of the JSON: msgspec parses it by them, and the OpenAPI
document shows their schema. A tensor's `data` stays text until its shape has been checked; where
the JSON is long, it is cut out before msgspec sees it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from models import ChannelOrder
from service.api.v2.long_json import PIECE, Span, check_counts, cut
from service.api.v2.tensors import (
    Numbers,
    files_in_binary,
    files_in_json,
    numbers_in_binary,
    numbers_in_json,
)
from service.batching.policy import LEVELS
from service.errors import BadRequestError, PayloadTooLargeError, TooManyImagesError
from service.hosting.pipeline import ModelInfo

T = TypeVar("T")

INPUT = "image"

# Parsing takes about 10 ms per megabyte.
MAX_JSON_BYTES = 8 * 2**20

# The first bytes of JPEG, PNG and WebP files; a raw body that starts otherwise is pixels.
_FILE_MARKS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF")


# --- the JSON of a request; unknown fields and parameters are ignored -----------------------------

Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
NotSupported = Annotated[str | None, Meta(description="not supported")]


class RequestParameters(msgspec.Struct):
    """Holds parameters of the whole request."""

    timeout: Annotated[
        Whole, Meta(description="deadline, in microseconds after the request arrived; 0: none")
    ] = 0
    priority: Annotated[Whole, Meta(description=LEVELS)] = 0
    binary_data_output: Annotated[bool, Meta(description="answer with a binary tensor")] = False


class InputParameters(msgspec.Struct):
    """Holds parameters of the input."""

    binary_data_size: Annotated[
        Whole | None, Meta(description="bytes of this tensor, which follow the JSON")
    ] = None
    shared_memory_region: NotSupported = None


class OutputParameters(msgspec.Struct):
    """Holds parameters of the output."""

    binary_data: Annotated[
        bool | None, Meta(description="answer with a binary tensor; overrides binary_data_output")
    ] = None
    classification: Annotated[
        Whole, Meta(description="answer with this many `value:index:label`; 0: with the scores")
    ] = 0
    shared_memory_region: NotSupported = None


class InputTensor(msgspec.Struct):
    """Holds the one input of a request."""

    name: Annotated[str, Meta(examples=[INPUT])]
    datatype: Annotated[str, Meta(examples=["UINT8", "BYTES", "FP32"])]
    shape: Annotated[
        list[Whole],
        Meta(
            max_length=8,
            description="[n, H, W, C] of RGB pixels, [n] of encoded images, [n, C, H, W] of FP32",
        ),
    ]
    data: Annotated[
        msgspec.Raw,
        Meta(
            description="numbers from 0 to 255, base64, or FP32; flat or nested as `shape`; "
            "absent if binary data follows the JSON",
            extra_json_schema={"type": "array"},
        ),
    ] = msgspec.field(default_factory=msgspec.Raw)  # with a plain default there is no schema
    parameters: InputParameters | None = None


class OutputTensor(msgspec.Struct):
    """Names the one output of a request, and its parameters."""

    name: str
    parameters: OutputParameters | None = None


_Tensor = TypeVar("_Tensor", InputTensor, OutputTensor)


class InferenceJson(msgspec.Struct):
    """Holds the JSON of an inference request."""

    inputs: list[InputTensor]
    outputs: list[OutputTensor] | None = None
    id: Annotated[str, Meta(description="repeated in the answer")] = ""
    parameters: RequestParameters | None = None


class IndexRequest(msgspec.Struct):
    """Holds the optional body of a request for the list of models."""

    ready: Annotated[bool, Meta(description="list only models that are ready")] = False


_SCHEMAS = "#/components/schemas/{name}"
_, REQUEST_SCHEMAS = msgspec.json.schema_components(
    (InferenceJson, IndexRequest), ref_template=_SCHEMAS
)


def content_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return a reference to one of the structures as a request's body, for the OpenAPI document."""
    return {"application/json": {"schema": {"$ref": _SCHEMAS.format(name=kind.__name__)}}}


def read_json(decode: Callable[[bytes], T], text: bytes) -> T:
    """Decode the JSON of a request. Raises BadRequestError where it is invalid."""
    try:
        return decode(text)
    except RecursionError:
        reason = "it is nested too deeply"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error)
    raise BadRequestError(f"failed to parse the request JSON buffer: {reason}")


_decode = msgspec.json.Decoder(InferenceJson).decode


# --- a request, from its body ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InferRequest:
    """Holds n images, encoded or decoded, and the requested form of the answer."""

    files: list[bytes]  # n of them; empty if there are images
    images: Numbers | None  # n pixels or tensors
    id: str = ""
    priority: int = 0  # 0: the default; otherwise 1 is the highest
    timeout_s: float | None = None
    binary: bool = False  # the scores as a binary tensor
    classes: int | None = None  # this many as "value:index:label", instead of all the scores


def parse_request(
    body: bytes, header_length: int | None, info: ModelInfo, max_images: int
) -> InferRequest:
    """Return the request in a body; `header_length` is None without the header.

    The images may be a view of `body`. Takes time in proportion to the body's length. Raises
    BadRequestError where the body is invalid, PayloadTooLargeError for too much JSON or more than
    `max_images`.
    """
    if header_length == 0:
        return _parse_raw(body, info)
    end = len(body) if header_length is None else header_length
    if end > len(body):
        raise BadRequestError(
            f"Inference-Header-Content-Length is {end}, but the body has {len(body)} bytes"
        )
    if end > MAX_JSON_BYTES:
        raise PayloadTooLargeError(
            f"the JSON has {end} bytes; at most {MAX_JSON_BYTES} are allowed, "
            "so send tensors as binary data, after the JSON"
        )
    asked, lists = _read_head(body, end, max_images)
    tensor = _only("input", asked.inputs, [name for name in (INPUT, info.tensor) if name], info)
    output = _only("output", asked.outputs or [OutputTensor(info.scores)], [info.scores], info)
    wanted = output.parameters or OutputParameters()
    parameters = asked.parameters or RequestParameters()
    files, images = _read_input(tensor, lists, memoryview(body)[end:], info, max_images)
    return InferRequest(
        files,
        images,
        id=asked.id,
        priority=parameters.priority,
        timeout_s=parameters.timeout / 1e6 if parameters.timeout else None,
        binary=parameters.binary_data_output if wanted.binary_data is None else wanted.binary_data,
        classes=wanted.classification or None,
    )


def _parse_raw(body: bytes, info: ModelInfo) -> InferRequest:
    """Return the request of one image without JSON; the answer is binary, as Triton's is."""
    if body.startswith(_FILE_MARKS):
        return InferRequest([body], None, binary=True)
    expected = math.prod(info.image_shape)
    if len(body) != expected:
        raise BadRequestError(
            f"a raw body is one JPEG, PNG or WebP file, or the {expected} bytes "
            f"of pixels {'×'.join(map(str, info.image_shape))}; this one has {len(body)} bytes"
        )
    pixels = numbers_in_binary(body, (1, *info.image_shape), np.uint8)
    return InferRequest([], _in_engine_order(pixels, info), binary=True)


def _only(kind: str, tensors: Sequence[_Tensor], names: Sequence[str], info: ModelInfo) -> _Tensor:
    """Return the request's one tensor. Raises unless it has one of `names` and lies in the body."""
    for tensor in tensors:
        if tensor.name not in names:
            raise BadRequestError(
                f"unexpected inference {kind} '{tensor.name[:50]}' for model '{info.name}'; "
                f"its {kind} is {' or '.join(map(repr, dict.fromkeys(names)))}"
            )
        if tensor.parameters and tensor.parameters.shared_memory_region is not None:
            raise BadRequestError("shared memory is not supported; send tensors in the body")
    if len(tensors) != 1:
        raise BadRequestError(
            f"expected 1 {kind} but got {len(tensors)} {kind}s for model '{info.name}'"
        )
    return tensors[0]


def _read_head(
    body: bytes, end: int, max_images: int
) -> tuple[InferenceJson, Sequence[Span] | None]:
    """Return the JSON up to `end`, and its `data` lists where it is too long to parse with them."""
    check_counts(body, end, max_images)
    if end <= PIECE:
        return read_json(_decode, body[:end]), None
    head, lists = cut(body, end)
    return read_json(_decode, head), lists


def _data_of(tensor: InputTensor, lists: Sequence[Span] | None) -> Span:
    """Return the list `data` of a tensor. Raises BadRequestError where it has none."""
    data = bytes(tensor.data)
    if data.startswith(b"["):
        if lists is None:
            return Span(data, 0, len(data))
        place = data[1:-1]
        # A key that is spelled with escapes was not found; no client writes it so.
        if place.isdigit() and int(place) < len(lists):
            return lists[int(place)]
    raise BadRequestError(
        f"input '{tensor.name}' has no `data`: send a list, or binary data with binary_data_size"
    )


def _read_input(
    tensor: InputTensor,
    lists: Sequence[Span] | None,
    binary: memoryview,
    info: ModelInfo,
    max_images: int,
) -> tuple[list[bytes], Numbers | None]:
    """Return the files, pixels or tensors of the input; `binary` follows the JSON."""
    n = _image_count(tensor, info)
    if n > max_images:
        raise TooManyImagesError(
            f"{n} images in one request; at most {max_images} are allowed, so send several requests"
        )
    size = tensor.parameters and tensor.parameters.binary_data_size
    given: Span | memoryview = binary
    if size is None:
        if binary:
            raise BadRequestError(f"{len(binary)} bytes follow the JSON, but no tensor claims them")
        given = _data_of(tensor, lists)
    elif size != len(binary):
        raise BadRequestError(
            f"input '{tensor.name}': binary_data_size is {size}, "
            f"but {len(binary)} bytes follow the JSON of Inference-Header-Content-Length"
        )
    if tensor.datatype == "BYTES":
        files = (
            files_in_json(given, n) if isinstance(given, Span) else files_in_binary(given, n, INPUT)
        )
        if not all(files):
            raise BadRequestError(f"element {files.index(b'') + 1} of input '{INPUT}' is empty")
        return files, None
    own = tensor.datatype == "FP32"
    shape, kind = (info.tensor_shape, np.float32) if own else (info.image_shape, np.uint8)
    if isinstance(given, Span):
        numbers = numbers_in_json(given, (n, *shape), kind)
    else:
        numbers = numbers_in_binary(given, (n, *shape), kind)
    if not own:
        return [], _in_engine_order(numbers, info)
    if not np.isfinite(numbers).all():
        raise BadRequestError(f"input '{tensor.name}' has a value that is NaN or infinite")
    return [], numbers


def _image_count(tensor: InputTensor, info: ModelInfo) -> int:
    """Return n, the number of images. Raises where name, datatype or shape is unsupported."""
    n, *rest = tensor.shape or [0]
    forms = [
        (INPUT, "UINT8", [*info.image_shape]),
        (INPUT, "BYTES", []),
        (INPUT, "BYTES", [1]),
        (info.tensor, "FP32", [*info.tensor_shape]),
    ]
    if n and (tensor.name, tensor.datatype, rest) in forms:
        return n
    channels = "grey" if info.channels is ChannelOrder.GREY else "RGB"
    takes = (
        f"input '{INPUT}' of model '{info.name}' takes UINT8 {channels} pixels of shape "
        f"{['n', *info.image_shape]}, not normalised, or BYTES of shape [n], each a JPEG, PNG or "
        "WebP file"
    )
    if info.tensor:
        takes += f"; '{info.tensor}' takes FP32 of shape {['n', *info.tensor_shape]}, normalised"
    raise BadRequestError(
        f"{takes}; got {tensor.datatype[:20]} of shape {str(list(tensor.shape))[:80]}".replace(
            "['n'", "[n"
        )
    )


def _in_engine_order(pixels: NDArray[np.uint8], info: ModelInfo) -> NDArray[np.uint8]:
    """Return RGB pixels in the engine's order of channels, as a view."""
    return pixels[..., ::-1] if info.channels is ChannelOrder.BGR else pixels
