"""Reads a ModelInferRequest of any length without blocking other threads.

protobuf's parser holds the interpreter's lock until it returns, and may create an object for every
two bytes of a message. So fields are counted first, and long parts are cut out:

    message ── fields counted ── cut ─┬─ a short message: parsed by protobuf
                                      ├─ raw_input_contents ┐ parts of the message, read after
                                      └─ inputs[].contents  ┘ the tensor's shape is checked

The wire types of protobuf are: 0 is a varint, 1 is eight bytes, 5 is four bytes, and 2 is a length
followed by that many bytes.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from models import varint
from service.api.v2.interpretation import (
    Elements,
    InferenceJson,
    InferRequest,
    InputTensor,
    understand,
)
from service.api.v2.tensors import BinaryElements, check_size, copied, numbers_in_binary
from service.errors import BadRequestError, PayloadTooLargeError
from service.grpc.messages import message_class, parse
from service.hosting.model_info import ModelInfo
from service.hosting.regions import Regions
from service.http.body import LONG_BODY

# The most fields of a request, and of all its inputs: an input and an output with their parameters
# are few.
_MOST_FIELDS = 256

# The most bytes besides the tensors, which protobuf parses at once.
_MOST_BESIDE = 2**16

# The most elements of typed contents that are handled at once.
_LONG = 2**16

_VARINT, _LENGTH, _FOUR = 0, 2, 5
_SIZES = {1: 8, 5: 4}

# The numbers of fields of ModelInferRequest, InferInputTensor and InferTensorContents.
_INPUTS, _RAW = 5, 7
_CONTENTS = 5
_WHOLE, _FLOAT, _BYTES = 4, 6, 8
_NAMES = {_WHOLE: "uint_contents", _FLOAT: "fp32_contents", _BYTES: "bytes_contents"}

_Request = message_class("inference.ModelInferRequest")


class _Field(NamedTuple):
    number: int
    kind: int  # the wire type
    start: int  # of the field
    value: int  # where its value starts
    end: int


def _endless() -> BadRequestError:
    return BadRequestError("malformed or truncated protobuf message: a number does not end")


def _fields(
    data: bytes, position: int, end: int, left: Iterator[int], what: str
) -> Iterator[_Field]:
    """Yield the protobuf fields between two positions of a message. `left` yields a number for each
    field that is still allowed; several parts of a message may share it. Raises
    PayloadTooLargeError for more fields."""
    for _ in left:
        if position == end:
            return
        start = position
        if (tag := data[position]) < 0x80:  # as almost always
            position += 1
        else:
            tag, position = varint(data, position, end, _endless)
        number, kind = tag >> 3, tag & 7
        if kind == _LENGTH:
            length, value = varint(data, position, end, _endless)
        elif kind == _VARINT:
            value = position
            length = varint(data, position, end, _endless)[1] - position
        elif kind in _SIZES:
            value, length = position, _SIZES[kind]
        else:
            raise BadRequestError(
                f"malformed protobuf message: a field has the unsupported wire type {kind}"
            )
        if not number or length > end - value:
            raise BadRequestError(
                f"malformed or truncated protobuf message: field {number} should have {length} "
                f"bytes, but {end - value} are left"
            )
        position = value + length
        yield _Field(number, kind, start, value, position)
    if position != end:
        raise PayloadTooLargeError(f"{what} fields; send fewer files or parameters")


class Message(NamedTuple):
    """A ModelInferRequest that is parsed except for the elements of its tensors."""

    head: Any  # the message without them
    raw: Sequence[memoryview]
    typed: "Sequence[_TypedElements]"  # of each input
    is_long: bool  # reading it takes longer than handing it to a thread


def read_message(data: bytes) -> Message:
    """Parse a message, except for the elements of its tensors.

    Raises BadRequestError for a malformed message, and PayloadTooLargeError if it has more fields
    than any request needs.
    """
    kept: list[bytes] = []
    raw: list[memoryview] = []
    typed: list[_TypedElements] = []
    left, left_of_inputs = iter(range(_MOST_FIELDS)), iter(range(_MOST_FIELDS))
    for entry in _fields(data, 0, len(data), left, f"the request has more than {_MOST_FIELDS}"):
        if entry.number == _RAW and entry.kind == _LENGTH:
            raw.append(memoryview(data)[entry.value : entry.end])
        elif entry.number == _INPUTS and entry.kind == _LENGTH:
            beside, contents = _cut_input(data, entry, left_of_inputs)
            kept += (b"\x2a", encoded_varint(len(beside)), beside)
            typed.append(contents)
        else:
            kept.append(_short(data[entry.start : entry.end]))
    head = _short(b"".join(kept))
    parts = [part for elements in typed for part in elements.parts]
    is_long = sum(part.end - part.start for part in parts) > _LONG or sum(map(len, raw)) > LONG_BODY
    return Message(parse(_Request, head), raw, typed, is_long)


def _cut_input(data: bytes, whole: _Field, left: Iterator[int]) -> "tuple[bytes, _TypedElements]":
    kept = []
    contents = _TypedElements(data)
    what = f"the inputs have more than {_MOST_FIELDS}"
    for entry in _fields(data, whole.value, whole.end, left, what):
        if entry.number == _CONTENTS and entry.kind == _LENGTH:
            contents.parts.append(entry)
        else:
            kept.append(_short(data[entry.start : entry.end]))
    return _short(b"".join(kept)), contents


def _short(beside: bytes) -> bytes:
    if len(beside) > _MOST_BESIDE:
        raise PayloadTooLargeError(
            f"the message has more than {_MOST_BESIDE} bytes besides its tensors; "
            "send a shorter id and parameters"
        )
    return beside


def encoded_varint(number: int) -> bytes:
    """Encode a number as a protobuf varint."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def infer_request(
    message: Message, info: ModelInfo, max_images: int, regions: Regions | None = None
) -> InferRequest:
    """Convert a parsed message to an inference request with its images, which may be views of the
    message.

    The time is proportional to the message's length. Raises the errors of `understand`.
    """
    head = message.head
    if message.raw and any(elements.parts for elements in message.typed):
        raise BadRequestError(
            "the message has both raw_input_contents and contents; send tensors in one of the two"
        )
    if message.raw and len(message.raw) != len(head.inputs):
        raise BadRequestError(
            f"the message has {len(message.raw)} raw_input_contents for {len(head.inputs)} inputs; "
            "send one per input"
        )
    fields = {
        "id": head.id,
        # Triton answers with raw bytes, in whichever form the request sent its tensors.
        "parameters": {"binary_data_output": True} | _plain(head.parameters),
        "inputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": list(tensor.shape),
                "parameters": _plain(tensor.parameters),
            }
            for tensor in head.inputs
        ],
        "outputs": [
            {"name": tensor.name, "parameters": _plain(tensor.parameters)}
            for tensor in head.outputs
        ],
    }
    try:
        asked = msgspec.convert(fields, InferenceJson)
    except msgspec.ValidationError as error:
        raise BadRequestError(f"failed to read the request: {error}") from error

    def elements(tensor: InputTensor) -> Elements:
        if message.raw:
            return BinaryElements(message.raw[0], tensor.name)
        typed = message.typed[0]
        if not typed.parts:
            raise BadRequestError(
                f"input '{tensor.name}' has no `data`: send raw_input_contents, or contents"
            )
        typed.most_files = max_images
        return typed

    return understand(asked, elements, info, max_images, regions)


def _plain(parameters: Any) -> dict[str, Any]:
    """Return the parameters of a message as a dictionary with the types of JSON."""
    if not parameters:
        return {}
    plain = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        plain[name] = None if choice is None else getattr(parameter, choice)
    return plain


@dataclass(slots=True)
class _TypedElements:
    """Reads a tensor's elements from the protobuf field `contents`."""

    written: ClassVar = False

    data: bytes  # the message
    parts: list[_Field] = field(default_factory=list)  # parts that are the contents
    most_files: int = 0

    def numbers(self, shape: Sequence[int], kind: type[np.generic]) -> Any:
        """Return the values as an array. Raises BadRequestError if the values are in a field for
        another type."""
        if kind is np.float32:
            return numbers_in_binary(self._packed(_FLOAT, _FOUR), shape, kind)
        if kind is np.float16:
            raise BadRequestError("`contents` has no field for FP16; send raw_input_contents")
        return _small_numbers(self._packed(_WHOLE, _VARINT), prod(shape)).reshape(shape)

    def files(self, n: int) -> list[bytes]:
        """Return the `n` files in bytes_contents."""
        found = self._found(_BYTES)
        check_size(len(found), n)
        return [copied(memoryview(self.data)[entry.value : entry.end]) for entry in found]

    def _packed(self, number: int, single: int) -> bytes | memoryview:
        """Return the bytes of all numbers in a field. In the message, they may be one packed field
        or several fields."""
        found = self._found(number)
        if wrong := {entry.kind for entry in found} - {_LENGTH, single}:
            raise BadRequestError(
                f"malformed protobuf message: the field {_NAMES[number]} has the wire type"
                f" {min(wrong)}; it must be {_LENGTH} or {single}"
            )
        views = [memoryview(self.data)[entry.value : entry.end] for entry in found]
        return views[0] if len(views) == 1 else b"".join(views)

    def _found(self, number: int) -> list[_Field]:
        """Return all fields with this number in `contents`. Raises BadRequestError if there are
        other fields."""
        most = _MOST_FIELDS + self.most_files
        left, what = iter(range(most)), f"the contents have more than {most}"
        found: defaultdict[int, list[_Field]] = defaultdict(list)
        for part in self.parts:
            for entry in _fields(self.data, part.value, part.end, left, what):
                found[entry.number].append(entry)
        if others := found.keys() - {number}:
            other = _NAMES.get(min(others), f"field {min(others)}")
            raise BadRequestError(
                f"the input's elements are in {other}; they must be in {_NAMES[number]}"
            )
        return found[number]


def _small_numbers(data: bytes | memoryview, expected: int) -> NDArray[np.uint8]:
    """Decode varints that are at most 255. Numbers below 128 have one byte, larger numbers have
    two."""
    encoded = np.frombuffer(data, np.uint8)
    check_size(int(np.count_nonzero(encoded < 0x80)), expected)
    parts, begin = [encoded[:0]], 0
    while begin < len(encoded):
        piece = encoded[begin : begin + _LONG]
        if begin + _LONG < len(encoded) and piece[-1] > 0x7F:
            piece = piece[:-1]  # its second byte is in the next piece
        parts.append(_small_numbers_at_once(piece))
        begin += len(piece)
    return np.concatenate(parts)


def _small_numbers_at_once(encoded: NDArray[np.uint8]) -> NDArray[np.uint8]:
    goes_on = encoded > 0x7F
    firsts = np.flatnonzero(goes_on)
    if not len(firsts):
        return encoded
    if firsts[-1] + 1 == len(encoded) or (encoded[firsts + 1] > 1).any():
        raise BadRequestError("uint_contents must be whole numbers from 0 to 255")
    numbers = encoded.copy()
    numbers[firsts + 1] = encoded[firsts] & 0x7F | encoded[firsts + 1] << 7
    return numbers[~goes_on]
