"""Bounds the memory that a model file will take once it is parsed.

A protobuf message of two bytes becomes an object of several hundred bytes. For example, 20 MB of
empty nodes become 3.5 GB. Therefore this module first counts the fields in the file's bytes,
without parsing them, and checks names. It stops at the first limit that is exceeded.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from onnx import ModelProto

from models.errors import ModelFileError
from models.onnx_loader.limits.bounds import FIELD_LIMIT, INTEGER_LIMIT, NAME_LIMIT
from models.varints import varint

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# protobuf's own limit on nested messages.
_DEEPEST = 100
# Fields that contain free text instead of a name.
_FREE_TEXT = {"doc_string", "value"}
_WHOLE_NUMBERS = {
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT64,
}
# The field that stores weights of type float16 or of one byte, with one integer per weight.
_WEIGHTS = "int32_data"


class MalformedError(ValueError):
    """Raised if the bytes are not a protobuf message."""


class _Kind(Enum):
    NAME = auto()
    INTEGERS = auto()


@dataclass(frozen=True, slots=True)
class _Message:
    """The fields of a protobuf message whose content is checked, by field number."""

    fields: dict[int, "_Message | _Kind"] = field(default_factory=dict)


@cache
def _model() -> _Message:
    """Return the fields of a ModelProto whose content is checked."""
    known: dict[str, _Message] = {}
    pending: list[Descriptor] = [ModelProto.DESCRIPTOR]
    known[ModelProto.DESCRIPTOR.full_name] = _Message()
    while pending:
        descriptor = pending.pop()
        fields = known[descriptor.full_name].fields
        for entry in descriptor.fields:
            if entry.type == FieldDescriptor.TYPE_MESSAGE:
                inner = entry.message_type
                if inner.full_name not in known:
                    known[inner.full_name] = _Message()
                    pending.append(inner)
                fields[entry.number] = known[inner.full_name]
            elif entry.type == FieldDescriptor.TYPE_STRING and entry.name not in _FREE_TEXT:
                fields[entry.number] = _Kind.NAME
            elif entry.type in _WHOLE_NUMBERS and entry.name != _WEIGHTS:
                fields[entry.number] = _Kind.INTEGERS
    return known[ModelProto.DESCRIPTOR.full_name]


def check_wire(data: bytes) -> None:
    """Raise an error if parsing a serialised ModelProto would take too much memory.

    Raises ModelFileError, whose message names the limit, or MalformedError if the bytes are not a
    protobuf message. The parser reports all other errors.
    """
    fields = integers = position = 0
    # The messages that contain the position, outermost first: the end and the type of each.
    inside: list[tuple[int, _Message]] = [(len(data), _model())]
    while inside:
        end, message = inside[-1]
        if position >= end:
            if position > end:
                raise MalformedError("a field is longer than its message")
            inside.pop()
            continue
        fields += 1
        if fields > FIELD_LIMIT:
            raise ModelFileError(
                f"it has more than {FIELD_LIMIT:,} protobuf fields, which is the limit"
            )
        tag, position = varint(data, position, end, _endless)
        wire_type = tag & 7
        if wire_type == _VARINT:
            _, position = varint(data, position, end, _endless)
        elif wire_type == _BYTES:
            length, position = varint(data, position, end, _endless)
            if length > end - position:
                raise MalformedError("a field is longer than its message")
            match message.fields.get(tag >> 3):
                case _Message() as inner:
                    if len(inside) > _DEEPEST:
                        raise MalformedError("messages are nested too deeply")
                    inside.append((position + length, inner))
                    continue
                case _Kind.NAME:
                    _check_name(data[position : position + length])
                case _Kind.INTEGERS:
                    packed = np.frombuffer(data, np.uint8, length, position)
                    integers += int(np.count_nonzero(packed < 0x80))
                    if integers > INTEGER_LIMIT:
                        raise ModelFileError(
                            f"its lists have more than {INTEGER_LIMIT:,} integers, which is the"
                            " limit; store large tensors as raw data"
                        )
            position += length
        elif wire_type == _FIXED64:
            position += 8
        elif wire_type == _FIXED32:
            position += 4
        else:
            raise MalformedError(f"the wire type {wire_type} is unknown")


def _endless() -> MalformedError:
    return MalformedError("an integer has no end")


def _check_name(name: bytes) -> None:
    if len(name) > NAME_LIMIT:
        raise ModelFileError(
            f"the name {_shown(name)} has {len(name):,} bytes; the limit is {NAME_LIMIT:,}"
        )
    try:
        printable = name.decode().isprintable()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"the name {_shown(name)} is not UTF-8 text") from error
    if not printable:
        raise ModelFileError(f"the name {_shown(name)} has characters that cannot be printed")


def _shown(name: bytes) -> str:
    return ascii(name[:40].decode(errors="replace")) + ("..." if len(name) > 40 else "")
