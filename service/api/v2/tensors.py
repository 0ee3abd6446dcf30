"""Reads the elements of tensors, which are numbers or files, from JSON or from bytes.

Nested lists of numbers in JSON are not parsed as nested lists. First, the numbers are deleted from
the text, and the remaining brackets and commas are compared with the brackets and commas that the
shape requires. Then the brackets are deleted, and the numbers are parsed as one flat list. All of
this is done piece by piece, so that no call holds the interpreter's lock for long.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.api.v2.long_json import PIECE, Span, string_end
from service.errors import BadRequestError

Numbers = NDArray[np.uint8] | NDArray[np.float32]

_SPACE = b" \t\r\n"
_DIGITS = b"0123456789"
_SIGNS = b"+-.eEaN"  # and the letters of NaN

NAN = b"NaN"

# Replaces brackets by spaces, so that nested lists become one flat list.
_FLAT = bytes.maketrans(b"[]", b"  ")

# Codes of characters. A `[` after a number, and a number after a `]`, are wrong; only in these two
# cases is a code greater by one, modulo 256, than the code before it.
_CODES = bytes.maketrans(_DIGITS + _SIGNS + b"[],", bytes([0] * 17 + [1, 255, 100]))
_CLOSED = bytes([255])

# The length of the longest escape (`\u0041`) without its first character.
_ESCAPE = 5

# The most bytes that are copied at once. Joining several pieces lets other threads run.
_COPIED = 2**20

_whole_numbers = msgspec.json.Decoder(list[int]).decode
_fractions = msgspec.json.Decoder(list[float]).decode
_base64 = msgspec.json.Decoder(bytes).decode
_characters = msgspec.json.Decoder(str).decode


@dataclass(frozen=True, slots=True)
class JsonElements:
    """Reads a tensor's elements from a JSON array."""

    written: ClassVar = True

    data: Span

    def numbers(self, shape: Sequence[int], kind: type[np.generic]) -> Any:
        """Return the result of `numbers_in_json`."""
        return numbers_in_json(self.data, shape, kind)

    def files(self, n: int) -> list[bytes]:
        """Return the result of `files_in_json`."""
        return files_in_json(self.data, n)


@dataclass(frozen=True, slots=True)
class BinaryElements:
    """Reads a tensor's elements from bytes."""

    written: ClassVar = False

    data: bytes | memoryview
    name: str  # of the input

    def numbers(self, shape: Sequence[int], kind: type[np.generic]) -> Any:
        """Return the result of `numbers_in_binary`."""
        return numbers_in_binary(self.data, shape, kind)

    def files(self, n: int) -> list[bytes]:
        """Return the result of `files_in_binary`."""
        return files_in_binary(memoryview(self.data), n, self.name)


def numbers_in_json(data: Span, shape: Sequence[int], kind: type[np.generic]) -> Any:
    """Return the numbers in a JSON array as uint8 or float32. Numbers that are too large for
    float32 become infinite.

    The array may be flat or nested like `shape`. The last axes may be flattened, and the first axis
    may be left out if it is 1. Raises BadRequestError for any other structure, for a wrong number
    of elements, and for elements that are not numbers.
    """
    whole = kind is np.uint8
    wrong = f"`data` must be {'whole numbers from 0 to 255' if whole else 'numbers'}"
    skeleton = _skeleton(data, _DIGITS if whole else _DIGITS + _SIGNS, wrong)
    check_size(_elements(skeleton, data, wrong), prod(shape))
    if not _is_nested_as(skeleton, shape) and not (
        shape[0] == 1 and _is_nested_as(skeleton, shape[1:])
    ):
        raise BadRequestError(
            f"`data` must be one flat list, or lists nested as the shape {list(shape)}"
        )
    try:
        parts = [_numbers(part, kind) for part in _flat(data, wrong)]
    except ValueError:  # msgspec's errors too
        raise BadRequestError(wrong) from None
    # If a part begins or ends with a comma, no number is next to the comma.
    if not all(map(len, parts)):
        raise BadRequestError(wrong)
    return np.concatenate(parts).reshape(shape)


def _numbers(flat: bytes, kind: type[np.generic]) -> Numbers:
    if kind is np.uint8:
        return np.frombuffer(bytearray(_whole_numbers(flat)), np.uint8)  # refuses those above 255
    # JSON has no NaN, but Triton takes it, and its perf_analyzer sends it.
    # It reads whole numbers as int, of which NumPy refuses those that are too large for float64.
    fractions = json.loads(flat, parse_int=float) if NAN in flat else _fractions(flat)
    with np.errstate(over="ignore"):
        return np.array(fractions, np.float64).astype(np.float32)


def _skeleton(data: Span, of_numbers: bytes, wrong: str) -> bytearray:
    """Return only the brackets and commas of an array. Raises BadRequestError with the message
    `wrong` if an element is not a number."""
    skeleton = bytearray()  # grows in pieces: joining them at the end would take 2 ms
    last = b""
    for start in range(data.start, data.end, PIECE):
        piece = data.text[start : min(start + PIECE, data.end)]
        part = piece.translate(None, of_numbers + _SPACE)
        if last == _CLOSED or part.strip(b","):
            if part.translate(None, b"[],"):
                raise BadRequestError(wrong)
            codes = np.frombuffer(last + piece.translate(_CODES, _SPACE), np.uint8)
            if (np.diff(codes) == 1).any():
                raise BadRequestError(wrong)
        last = piece.rstrip(_SPACE)[-1:].translate(_CODES) or last
        skeleton += part
    return skeleton


def _elements(skeleton: bytearray, data: Span, wrong: str) -> int:
    """Return the number of elements of an array whose numbers are correctly separated by brackets
    and commas."""
    commas = sum(skeleton.count(b",", at, at + PIECE) for at in range(0, len(skeleton), PIECE))
    if commas:
        return commas + 1
    return sum(bool(part.strip(b"[]" + _SPACE)) for part in _flat(data, wrong))


def _flat(data: Span, wrong: str) -> Iterator[bytes]:
    """Yield the numbers of the array in several parts, each a flat JSON array. Raises
    BadRequestError if a number is too long."""
    text, position, end = data
    while position < end:
        stop = end if end - position <= PIECE else text.rfind(b",", position, position + PIECE)
        if stop < 0:
            raise BadRequestError(wrong)
        yield b"[%b]" % text[position:stop].translate(_FLAT)
        position = stop + 1


def numbers_in_binary(
    data: bytes | memoryview, shape: Sequence[int], kind: type[np.generic]
) -> Any:
    """Return the little-endian numbers in the bytes as an array. A uint8 array is a view of the
    bytes. Other arrays are copies, because the bytes may be unaligned. Raises BadRequestError for a
    wrong number of bytes."""
    stored = np.dtype(kind).newbyteorder("<")
    if len(data) % stored.itemsize:
        raise BadRequestError(
            f"the tensor has {len(data)} bytes, which is not a multiple of the"
            f" {stored.itemsize} bytes of an element; expecting {prod(shape)} elements"
        )
    check_size(len(data) // stored.itemsize, prod(shape))
    # NumPy lets other threads run while it copies.
    return np.frombuffer(data, stored).reshape(shape).astype(kind, copy=stored.itemsize > 1)


def files_in_json(data: Span, n: int) -> list[bytes]:
    """Return the n files in a JSON array of base64 strings. The array's shape is [n] or [n, 1].

    Raises BadRequestError for a wrong number of elements, or if an element is not base64.
    """
    text, start, end = data
    files, outside, position = [], [], start
    while (quote := text.find(b'"', position, end)) >= 0:
        outside.append(Span(text, position, quote))
        position = string_end(text, quote + 1, end) + 1
        files.append(Span(text, quote + 1, position - 1))
    outside.append(Span(text, position, end))
    if not _is_list_of(len(files), outside):
        raise BadRequestError("`data` must be a list of strings, each a file in base64")
    check_size(len(files), n)
    return [_file(file, number) for number, file in enumerate(files, 1)]


def _is_list_of(strings: int, outside: Sequence[Span]) -> bool:
    """Return whether the JSON is a list of strings, or a list of lists with one string each.

    `strings` is the number of strings. `outside` is the text before, between and after the strings.
    """
    if any(end - start > PIECE for _, start, end in outside):
        return False
    found = b"0".join(text[start:end].translate(None, _SPACE) for text, start, end in outside)
    return found in (b"[%b]" % b",".join(empty * strings) for empty in ([b"0"], [b"[0]"]))


def _file(base64: Span, number: int) -> bytes:
    try:
        return decode_base64(base64)
    except (ValueError, msgspec.DecodeError):
        raise BadRequestError(
            f"element {number} of `data` is not base64; send each file in base64, or as binary"
            " data after the JSON"
        ) from None


def decode_base64(base64: Span) -> bytes:
    """Decode a JSON string in base64, piece by piece. Raises ValueError or msgspec.DecodeError."""
    text, position, end = base64
    parts, rest = [], b""
    while position < end:
        stop = min(position + PIECE, end)
        if stop < end:  # not within an escape
            escape = text.find(b"\\", stop - _ESCAPE, stop)
            stop = stop if escape < 0 else escape
        part = text[position:stop]
        if b"\\" in part:
            part = _characters(b'"%b"' % part).encode()
        position = stop
        if position < end or rest:
            part = rest + part
            rest = part[len(part) & ~3 :] if position < end else b""
            part = part[: len(part) - len(rest)]
            if position < end and part.endswith(b"="):
                raise ValueError("text follows the `=`, which may only be at the end")
        parts.append(_base64(b'"%b"' % part))
    return b"".join(parts)


def files_in_binary(data: memoryview, n: int, name: str) -> list[bytes]:
    """Return the n files in a binary tensor. The length of each file precedes the file, in four
    bytes."""
    files = []
    end = 0
    for number in range(1, n + 1):
        start = end + 4
        if start > len(data):
            raise BadRequestError(
                f"the binary data of input '{name}' ends before element {number} of {n}"
            )
        length = int.from_bytes(data[end:start], "little")
        end = start + length
        if end > len(data):
            raise BadRequestError(
                f"element {number} of input '{name}' should have {length} bytes, "
                f"but {len(data) - start} are left"
            )
        files.append(copied(data[start:end]))
    if end != len(data):
        raise BadRequestError(
            f"{len(data) - end} bytes are left after the {n} elements of input '{name}'"
        )
    return files


def copied(data: memoryview) -> bytes:
    """Return a copy of the bytes, without holding the interpreter's lock for long."""
    parts = range(0, len(data), _COPIED)
    return b"".join([bytes(data[start : start + _COPIED]) for start in parts])


def check_size(got: int, expected: int) -> None:
    """Raise BadRequestError if the number of elements does not match the shape."""
    if got != expected:
        raise BadRequestError(f"unexpected total size: got {got} elements, expecting {expected}")


def _is_nested_as(skeleton: bytearray, shape: Sequence[int]) -> bool:
    """Return whether `skeleton`, the brackets and commas of a JSON text, is nested like an array of
    this shape. The last axes may be flattened."""
    first = skeleton[: len(shape) + 1]
    depth = len(first) - len(first.lstrip(b"["))
    if depth > len(shape):
        return False
    expected = bytearray()
    for side in (prod(shape[depth - 1 :]), *reversed(shape[: depth - 1])):
        expected = _list_of(expected, side)
    return skeleton == expected


def _list_of(element: bytearray, count: int) -> bytearray:
    """Return the brackets and commas of a JSON list with `count` elements. `element` is the
    brackets and commas of one element.

    The text is created in pieces, so that other threads can run in between. For millions of
    elements, one piece would take 6 ms.
    """
    text = bytearray(b"[")
    text += element
    if count > 1:
        more = b"," + element
        at_once = max(1, PIECE // len(more))
        piece = more * at_once
        for _ in range((count - 1) // at_once):
            text += piece
        text += more * ((count - 1) % at_once)
    text += b"]"
    return text
