"""Inference requests of the V2 protocol: JSON, and the binary tensor extension.

    body = JSON                          tensors as lists of numbers, or of strings
    body = JSON | tensor | tensor ...    Inference-Header-Content-Length says how long the JSON is
    body = tensor                        Inference-Header-Content-Length: 0

A model has one input, `image`, in either of two forms:

    UINT8 [n, H, W, C]       pixels as the engine takes them; what the metadata declares
    BYTES [n] or [n, 1]      JPEG, PNG or WebP files, which the server decodes; in JSON as base64

Binary tensors are little-endian; each element of a BYTES tensor follows its length in 4 bytes.
"""

import base64
import binascii
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from service.errors import BadRequestError, PayloadTooLargeError, TooManyImagesError
from service.pipeline import ModelInfo

INPUT = "image"

# JSON becomes Python objects, many times its size, and nothing else runs while it does. Lists cost
# most: each is looked at again and again by the garbage collector.
MAX_JSON_BYTES = 8 * 2**20
MAX_JSON_LISTS = 200_000

_LENGTH = struct.Struct("<I")

# How the files begin that are decoded here; a raw body that does not is pixels.
_FILE_MARKS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF")


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
    `max_images`. The pixels may be a view of `body`.
    """
    if header_length == 0:
        return _parse_raw(body, info)
    if header_length is not None and header_length > len(body):
        raise BadRequestError(
            f"Inference-Header-Content-Length is {header_length}, "
            f"but the body has {len(body)} bytes"
        )
    end = len(body) if header_length is None else header_length
    asked = _json(body[:end])
    parameters = _mapping(asked, "parameters", "the request")
    tensor = _only_input(asked, info)
    binary = None if header_length is None else memoryview(body)[end:]
    files, pixels = _read_input(tensor, binary, info, max_images)
    wants_binary = _flag(parameters, "binary_data_output", default=False)
    wants_binary, classes = _only_output(asked, info, binary=wants_binary)
    timeout_us = _whole(parameters, "timeout", "the request")
    return InferRequest(
        files,
        pixels,
        id=_text(asked, "id"),
        priority=_whole(parameters, "priority", "the request") or 0,
        timeout_s=timeout_us / 1e6 if timeout_us else None,
        binary=wants_binary,
        classes=classes,
    )


# --- reading -------------------------------------------------------------------------------------


def _parse_raw(body: bytes, info: ModelInfo) -> InferRequest:
    """One image without any JSON; the answer is binary, as Triton does it."""
    if body.startswith(_FILE_MARKS):
        return InferRequest([body], None, binary=True)
    if len(body) != math.prod(info.image_shape):
        raise BadRequestError(
            f"a raw body is one JPEG, PNG or WebP file, or the {math.prod(info.image_shape)} bytes "
            f"of pixels {_shown(info.image_shape)}; this one has {len(body)} bytes"
        )
    return InferRequest([], _as_pixels(body, 1, info), binary=True)


def _json(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_JSON_BYTES:
        raise PayloadTooLargeError(
            f"at most {MAX_JSON_BYTES} bytes of JSON are taken, and this has {len(text)}; "
            "send tensors as binary data, after the JSON"
        )
    lists = text.count(b"[") + text.count(b"{")
    if lists > MAX_JSON_LISTS:
        raise PayloadTooLargeError(
            f"at most {MAX_JSON_LISTS} lists are taken in JSON, and this has {lists}; send `data` "
            "as one list, or tensors as binary data, after the JSON"
        )
    try:
        asked = from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise BadRequestError(f"failed to parse the request JSON buffer: {error}") from error
    if not isinstance(asked, dict):
        raise BadRequestError("the request must be a JSON object with `inputs`")
    return asked


def _only_input(asked: Mapping[str, Any], info: ModelInfo) -> dict[str, Any]:
    inputs = asked.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(tensor, dict) for tensor in inputs):
        raise BadRequestError("`inputs` must be a list of tensors")
    for tensor in inputs:
        if tensor.get("name") != INPUT:
            name = str(tensor.get("name"))[:50]
            raise BadRequestError(
                f"unexpected inference input '{name}' for model '{info.name}'; it takes '{INPUT}'"
            )
    if len(inputs) != 1:
        raise BadRequestError(
            f"expected 1 input but got {len(inputs)} inputs for model '{info.name}'"
        )
    tensor = inputs[0]
    assert isinstance(tensor, dict)  # noqa: S101  as just checked; narrows the type
    return tensor


def _only_output(
    asked: Mapping[str, Any], info: ModelInfo, *, binary: bool
) -> tuple[bool, int | None]:
    """Whether the scores are wanted as a binary tensor, and of how many classes."""
    outputs = asked.get("outputs")
    if outputs is None:
        return binary, None
    if not isinstance(outputs, list) or not all(isinstance(tensor, dict) for tensor in outputs):
        raise BadRequestError("`outputs` must be a list of tensors")
    if len(outputs) > 1:
        raise BadRequestError(f"{len(outputs)} outputs are requested; there is '{info.scores}'")
    for tensor in outputs:
        if tensor.get("name") != info.scores:
            name = str(tensor.get("name"))[:50]
            raise BadRequestError(
                f"unexpected inference output '{name}' for model '{info.name}'; "
                f"it gives '{info.scores}'"
            )
        where = f"output '{info.scores}'"
        parameters = _mapping(tensor, "parameters", where)
        _no_shared_memory(parameters)
        classes = _whole(parameters, "classification", where)
        return _flag(parameters, "binary_data", default=binary), classes or None
    return binary, None


def _read_input(
    tensor: Mapping[str, Any], binary: memoryview | None, info: ModelInfo, max_images: int
) -> tuple[list[bytes], NDArray[np.uint8] | None]:
    """The files or the pixels of the one input; `binary` is what follows the JSON."""
    where = f"input '{INPUT}'"
    datatype, shape = tensor.get("datatype"), tensor.get("shape")
    if not isinstance(shape, list) or not all(type(side) is int and side >= 0 for side in shape):
        raise BadRequestError(f"{where}: `shape` must be a list of whole numbers")
    n = _image_count(str(datatype), shape, info)
    if n > max_images:
        raise TooManyImagesError(
            f"{n} images in one request; at most {max_images} are allowed, so send them in several"
        )
    parameters = _mapping(tensor, "parameters", where)
    _no_shared_memory(parameters)
    size = _whole(parameters, "binary_data_size", where)
    if size is None:
        if binary:
            raise BadRequestError(f"{len(binary)} bytes follow the JSON, but no tensor claims them")
        values = _flat(tensor.get("data"))
        if datatype == "BYTES":
            return _files_of(values, n), None
        return [], _pixels_of(values, n, info)
    if binary is None or size != len(binary):
        raise BadRequestError(
            f"{where}: binary_data_size is {size}, "
            f"but {len(binary or b'')} bytes follow the JSON of Inference-Header-Content-Length"
        )
    if datatype == "BYTES":
        return _elements(binary, n), None
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


def _flat(data: Any) -> list[Any]:
    """The elements of nested lists, in row-major order."""
    if not isinstance(data, list):
        raise BadRequestError(
            f"input '{INPUT}' has no `data`: give a list, or binary data and its binary_data_size"
        )
    try:
        while data and isinstance(data[0], list):
            data = list(chain.from_iterable(data))
    except TypeError:
        raise BadRequestError(f"`data` of input '{INPUT}' mixes lists and elements") from None
    return list(data)


def _pixels_of(values: list[Any], n: int, info: ModelInfo) -> NDArray[np.uint8]:
    expected = n * math.prod(info.image_shape)
    if len(values) != expected:
        raise _wrong_size(len(values), expected)
    # The types first: NumPy would make something of strings and fractions too.
    if any(kind is not int for kind in set(map(type, values))) or not (
        min(values) >= 0 and max(values) <= 255
    ):
        raise BadRequestError(f"`data` of input '{INPUT}' must be whole numbers from 0 to 255")
    return np.array(values, np.uint8).reshape(n, *info.image_shape)


def _files_of(values: list[Any], n: int) -> list[bytes]:
    if len(values) != n:
        raise _wrong_size(len(values), n)
    files = []
    for number, value in enumerate(values, 1):
        try:
            files.append(base64.b64decode(value, validate=True))
        except (TypeError, ValueError, binascii.Error):
            raise BadRequestError(
                f"element {number} of input '{INPUT}' is no base64, which files are sent as in "
                "JSON; or send them as binary data"
            ) from None
    return _none_empty(files)


def _as_pixels(data: bytes | memoryview, n: int, info: ModelInfo) -> NDArray[np.uint8]:
    expected = n * math.prod(info.image_shape)
    if len(data) != expected:
        raise _wrong_size(len(data), expected)
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
    return _none_empty(files)


def _none_empty(files: list[bytes]) -> list[bytes]:
    for number, file in enumerate(files, 1):
        if not file:
            raise BadRequestError(f"element {number} of input '{INPUT}' is empty")
    return files


def _wrong_size(got: int, expected: int) -> BadRequestError:
    return BadRequestError(
        f"unexpected total size of input '{INPUT}': got {got} elements, expecting {expected}"
    )


def _shown(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


# --- fields --------------------------------------------------------------------------------------


def _mapping(parent: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequestError(f"{where}: `{key}` must be an object")
    return value


def _text(parent: Mapping[str, Any], key: str) -> str:
    value = parent.get(key, "")
    if not isinstance(value, str):
        raise BadRequestError(f"`{key}` must be a string")
    return value


def _whole(parameters: Mapping[str, Any], key: str, where: str) -> int | None:
    """A whole number, at least 0; None if it is not there."""
    value = parameters.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**64:
        raise BadRequestError(f"{where}: parameter '{key}' must be a whole number from 0 on")
    return value


def _flag(parameters: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise BadRequestError(f"parameter '{key}' must be true or false")
    return value


def _no_shared_memory(parameters: Mapping[str, Any]) -> None:
    if "shared_memory_region" in parameters:
        raise BadRequestError("shared memory is not supported; send tensors in the body")
