"""Inference requests of the V2 protocol: JSON, and the binary tensor extension.

    body = JSON                          tensors as lists of numbers, or of strings
    body = JSON | tensor | tensor ...    Inference-Header-Content-Length says how long the JSON is
    body = tensor                        Inference-Header-Content-Length: 0

A model has one input, `image`, in either of two forms:

    UINT8 [n, H, W, C]       pixels as the engine takes them; what the metadata declares
    BYTES [n] or [n, 1]      JPEG, PNG or WebP files, which the server decodes; in JSON as base64

Binary tensors are little-endian; each element of a BYTES tensor follows its length in 4 bytes.

The structures below are the only description of the JSON: msgspec checks it against them, and the
OpenAPI document shows their schema. A tensor's `data` is checked for JSON syntax but becomes no
Python objects until its shape is known to be one that is taken (`service/api/v2/tensor_json.py`).
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from service.api.v2.tensor_json import read_files, read_pixels, wrong_size
from service.errors import BadRequestError, PayloadTooLargeError, TooManyImagesError
from service.hosting.pipeline import ModelInfo

INPUT = "image"

# The interpreter's lock is held while JSON is read, about 15 ms a megabyte.
MAX_JSON_BYTES = 8 * 2**20

_LENGTH = struct.Struct("<I")

# How the files begin that are decoded here; a raw body that does not is pixels.
_FILE_MARKS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF")


# --- the JSON of a request; unknown fields and parameters are left alone --------------------------

Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class RequestParameters(msgspec.Struct):
    """What the request as a whole may say."""

    timeout: Annotated[
        Whole, Meta(description="deadline, in microseconds after the request arrived; 0: none")
    ] = 0
    priority: Annotated[Whole, Meta(description="1: the highest; 0: the default")] = 0
    binary_data_output: Annotated[bool, Meta(description="answer with a binary tensor")] = False


class InputParameters(msgspec.Struct):
    """What an input tensor may say."""

    binary_data_size: Annotated[
        Whole | None, Meta(description="bytes of this tensor, which follow the JSON")
    ] = None
    shared_memory_region: Annotated[str | None, Meta(description="not supported")] = None


class OutputParameters(msgspec.Struct):
    """What a requested output may say."""

    binary_data: Annotated[
        bool | None, Meta(description="answer with a binary tensor; wins over the request's")
    ] = None
    classification: Annotated[
        Whole, Meta(description="so many classes as `value:index:label`; 0: the scores")
    ] = 0
    shared_memory_region: Annotated[str | None, Meta(description="not supported")] = None


class InputTensor(msgspec.Struct):
    """The one input."""

    name: Annotated[str, Meta(examples=[INPUT])]
    datatype: Annotated[str, Meta(examples=["UINT8", "BYTES"])]
    shape: Annotated[
        list[Whole],
        Meta(max_length=8, description="[n, H, W, C] of pixels, [n] of encoded images"),
    ]
    data: Annotated[
        msgspec.Raw,
        Meta(
            description="numbers from 0 to 255, or base64, flat or nested as `shape` says; "
            "or none here, and binary data after the JSON",
            extra_json_schema={"type": "array"},
        ),
    ] = msgspec.field(default_factory=msgspec.Raw)  # with a plain default there is no schema
    parameters: InputParameters | None = None


class OutputTensor(msgspec.Struct):
    """The one output."""

    name: str
    parameters: OutputParameters | None = None


class InferenceJson(msgspec.Struct):
    """The JSON of an inference request."""

    inputs: list[InputTensor]
    outputs: list[OutputTensor] | None = None
    id: Annotated[str, Meta(description="comes back with the answer")] = ""
    parameters: RequestParameters | None = None


_decode = msgspec.json.Decoder(InferenceJson).decode


# --- what is made of it ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InferRequest:
    """What a client asks: n images, encoded or as pixels, and how it wants the scores."""

    files: list[bytes]  # n of them, or none if there are pixels
    pixels: NDArray[np.uint8] | None  # n×H×W×C
    id: str = ""
    priority: int = 0  # 0: the default; otherwise 1 is the highest
    timeout_s: float | None = None
    binary: bool = False  # the scores as a binary tensor
    classes: int | None = None  # so many as "value:index:label", instead of all the scores


def parse_request(
    body: bytes, header_length: int | None, info: ModelInfo, max_images: int
) -> InferRequest:
    """A request from its body; `header_length` is None without the header.

    BadRequestError: anything wrong with it. PayloadTooLargeError: too much JSON, or more than
    `max_images`. The pixels may be a view of `body`. Takes time proportional to the body's length.
    """
    if header_length == 0:
        return _parse_raw(body, info)
    if header_length is not None and header_length > len(body):
        raise BadRequestError(
            f"Inference-Header-Content-Length is {header_length}, "
            f"but the body has {len(body)} bytes"
        )
    end = len(body) if header_length is None else header_length
    asked = _parse_json(body if header_length is None else body[:end])
    parameters = asked.parameters or RequestParameters()
    binary = None if header_length is None else memoryview(body)[end:]
    files, pixels = _read_input(_only_input(asked, info), binary, info, max_images)
    wants_binary, classes = _wanted_output(asked, info, binary=parameters.binary_data_output)
    return InferRequest(
        files,
        pixels,
        id=asked.id,
        priority=parameters.priority,
        timeout_s=parameters.timeout / 1e6 if parameters.timeout else None,
        binary=wants_binary,
        classes=classes,
    )


def _parse_raw(body: bytes, info: ModelInfo) -> InferRequest:
    """One image without any JSON; the answer is binary, as Triton does it."""
    if body.startswith(_FILE_MARKS):
        return InferRequest([body], None, binary=True)
    expected = math.prod(info.image_shape)
    if len(body) != expected:
        raise BadRequestError(
            f"a raw body is one JPEG, PNG or WebP file, or the {expected} bytes "
            f"of pixels {'×'.join(map(str, info.image_shape))}; this one has {len(body)} bytes"
        )
    return InferRequest([], _as_pixels(body, 1, info), binary=True)


def _parse_json(text: bytes) -> InferenceJson:
    if len(text) > MAX_JSON_BYTES:
        raise PayloadTooLargeError(
            f"at most {MAX_JSON_BYTES} bytes of JSON are taken, and this has {len(text)}; "
            "send tensors as binary data, after the JSON"
        )
    try:
        return _decode(text)
    except msgspec.ValidationError as error:
        raise BadRequestError(f"the request JSON has a wrong value: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequestError(f"failed to parse the request JSON buffer: {error}") from error
    except RecursionError:
        raise BadRequestError(
            "failed to parse the request JSON buffer: it is nested too deeply"
        ) from None


def _only_input(asked: InferenceJson, info: ModelInfo) -> InputTensor:
    for tensor in asked.inputs:
        if tensor.name != INPUT:
            raise BadRequestError(
                f"unexpected inference input '{tensor.name[:50]}' for model '{info.name}'; "
                f"it takes '{INPUT}'"
            )
    if len(asked.inputs) != 1:
        raise BadRequestError(
            f"expected 1 input but got {len(asked.inputs)} inputs for model '{info.name}'"
        )
    return asked.inputs[0]


def _wanted_output(
    asked: InferenceJson, info: ModelInfo, *, binary: bool
) -> tuple[bool, int | None]:
    """Whether the scores are wanted as a binary tensor, and of how many classes."""
    outputs = asked.outputs or []
    if len(outputs) > 1:
        raise BadRequestError(f"{len(outputs)} outputs are requested; there is '{info.scores}'")
    for tensor in outputs:
        if tensor.name != info.scores:
            raise BadRequestError(
                f"unexpected inference output '{tensor.name[:50]}' for model '{info.name}'; "
                f"it gives '{info.scores}'"
            )
        parameters = tensor.parameters or OutputParameters()
        _no_shared_memory(parameters)
        if parameters.binary_data is not None:
            binary = parameters.binary_data
        return binary, parameters.classification or None
    return binary, None


def _read_input(
    tensor: InputTensor, binary: memoryview | None, info: ModelInfo, max_images: int
) -> tuple[list[bytes], NDArray[np.uint8] | None]:
    """The files or the pixels of the one input; `binary` is what follows the JSON."""
    n = _image_count(tensor.datatype, tensor.shape, info)
    if n > max_images:
        raise TooManyImagesError(
            f"{n} images in one request; at most {max_images} are allowed, so send them in several"
        )
    parameters = tensor.parameters or InputParameters()
    _no_shared_memory(parameters)
    size = parameters.binary_data_size
    if size is None:
        if binary:
            raise BadRequestError(f"{len(binary)} bytes follow the JSON, but no tensor claims them")
        data = bytes(tensor.data)
        if not data.startswith(b"["):
            raise BadRequestError(
                f"input '{INPUT}' has no `data`: give a list, or binary data and its "
                "binary_data_size"
            )
        if tensor.datatype == "BYTES":
            return _none_empty(read_files(data, n)), None
        return [], read_pixels(data, (n, *info.image_shape))
    if binary is None or size != len(binary):
        raise BadRequestError(
            f"input '{INPUT}': binary_data_size is {size}, "
            f"but {len(binary or b'')} bytes follow the JSON of Inference-Header-Content-Length"
        )
    if tensor.datatype == "BYTES":
        return _none_empty(_elements(binary, n)), None
    return [], _as_pixels(binary, n, info)


def _image_count(datatype: str, shape: Sequence[int], info: ModelInfo) -> int:
    """n, of a datatype and a shape that are taken."""
    if (
        datatype == "UINT8"
        and len(shape) == 4
        and tuple(shape[1:]) == info.image_shape
        and shape[0]
    ):
        return shape[0]
    if datatype == "BYTES" and shape and shape[0] and list(shape[1:]) in ([], [1]):
        return shape[0]
    height, width, channels = info.image_shape
    raise BadRequestError(
        f"input '{INPUT}' of model '{info.name}' takes UINT8 pixels of shape "
        f"[n, {height}, {width}, {channels}], not normalised, or BYTES of shape [n], each a JPEG, "
        f"PNG or WebP file; got {datatype[:20]} of shape {str(list(shape))[:80]}"
    )


def _as_pixels(data: bytes | memoryview, n: int, info: ModelInfo) -> NDArray[np.uint8]:
    expected = n * math.prod(info.image_shape)
    if len(data) != expected:
        raise wrong_size(len(data), expected)
    return np.frombuffer(data, np.uint8).reshape(n, *info.image_shape)


def _elements(data: memoryview, n: int) -> list[bytes]:
    """The n elements of a binary BYTES tensor."""
    files = []
    place = 0
    for number in range(1, n + 1):
        start = place + _LENGTH.size
        if start > len(data):
            raise BadRequestError(
                f"the binary data of input '{INPUT}' ends before element {number} of {n}"
            )
        (length,) = _LENGTH.unpack_from(data, place)
        place = start + length
        if place > len(data):
            raise BadRequestError(
                f"element {number} of input '{INPUT}' should have {length} bytes, "
                f"but {len(data) - start} are left"
            )
        files.append(bytes(data[start:place]))
    if place != len(data):
        raise BadRequestError(
            f"{len(data) - place} bytes are left after the {n} elements of input '{INPUT}'"
        )
    return files


def _none_empty(files: list[bytes]) -> list[bytes]:
    for number, file in enumerate(files, 1):
        if not file:
            raise BadRequestError(f"element {number} of input '{INPUT}' is empty")
    return files


def _no_shared_memory(parameters: InputParameters | OutputParameters) -> None:
    if parameters.shared_memory_region is not None:
        raise BadRequestError("shared memory is not supported; send tensors in the body")
