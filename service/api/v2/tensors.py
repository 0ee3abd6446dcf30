"""A tensor's elements: numbers and files, in JSON or in binary.

Nested lists of numbers never become Python lists. Without its digits, a valid JSON array is a
skeleton of brackets and commas, to compare with the skeleton of the shape; without its brackets, it
is one flat list. Both take about 15 ms per megabyte, however deep the nesting.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.errors import BadRequestError

Numbers = NDArray[np.uint8] | NDArray[np.float32]

_DIGITS = b"0123456789"
_SPACE = b" \t\r\n"

_numbers = msgspec.json.Decoder(list[int]).decode
_files = msgspec.json.Decoder(list[bytes | list[bytes]]).decode  # base64


def numbers_in_json(data: bytes, shape: Sequence[int], kind: type[np.generic]) -> Any:
    """The numbers of a valid JSON array, as uint8 or float32; those too large become infinite.

    The array may be flat, nested as `shape`, or nested less deep with the last axes flattened; the
    first axis may be absent if it is 1. BadRequestError: another structure, another number of
    elements, or elements of another kind.
    """
    digits, what = _DIGITS + b"+-.eE", "numbers"
    if kind is np.uint8:
        digits, what = _DIGITS, "whole numbers from 0 to 255"
    skeleton = data.translate(None, digits + _SPACE)
    if skeleton.translate(None, b"[],"):
        raise BadRequestError(f"`data` must be {what}")
    check_size(skeleton.count(b",") + bool(data.strip(b"[]" + _SPACE)), prod(shape))
    if not _is_nested_as(skeleton, shape) and not (
        shape[0] == 1 and _is_nested_as(skeleton, shape[1:])
    ):
        raise BadRequestError(
            f"`data` must be one flat list, or lists nested as the shape {list(shape)}"
        )
    flat = data.translate(None, b"[]" + _SPACE)
    if kind is not np.uint8:
        with np.errstate(over="ignore"):
            return np.fromstring(flat.decode(), np.float64, sep=",").reshape(shape).astype(kind)
    try:
        # bytes() refuses numbers above 255.
        return np.frombuffer(bytes(_numbers(b"[%b]" % flat)), np.uint8).reshape(shape)
    except ValueError:  # msgspec's errors too
        raise BadRequestError(f"`data` must be {what}") from None


def numbers_in_binary(
    data: bytes | memoryview, shape: Sequence[int], kind: type[np.generic]
) -> Any:
    """The numbers, little-endian: a view of bytes; a copy of others, which may begin anywhere."""
    stored = np.dtype(kind).newbyteorder("<")
    check_size(-(-len(data) // stored.itemsize), prod(shape))
    whole = data if stored.itemsize == 1 else bytes(data)
    return np.frombuffer(whole, stored).reshape(shape).astype(kind, copy=False)


def files_in_json(data: bytes, n: int) -> list[bytes]:
    """The n files of a valid JSON array of base64, of shape [n] or [n, 1].

    BadRequestError: another number of elements, or an element that is not base64.
    """
    # Every element has two quotes, and base64 contains none.
    check_size(max(n, data.count(b'"') // 2), n)
    try:
        rows = _files(data)
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadRequestError(
            f"each file in `data` must be base64: {error}; or send binary data, after the JSON"
        ) from None
    files = [file for row in rows for file in (row if isinstance(row, list) else [row])]
    check_size(len(files), n)
    return files


def files_in_binary(data: memoryview, n: int, name: str) -> list[bytes]:
    """The n files, a length of four bytes before each."""
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
        files.append(bytes(data[start:end]))
    if end != len(data):
        raise BadRequestError(
            f"{len(data) - end} bytes are left after the {n} elements of input '{name}'"
        )
    return files


def check_size(got: int, expected: int) -> None:
    """BadRequestError unless there are as many elements as the shape says."""
    if got != expected:
        raise BadRequestError(f"unexpected total size: got {got} elements, expecting {expected}")


def _is_nested_as(skeleton: bytes, shape: Sequence[int]) -> bool:
    """Whether the brackets and commas are those of lists nested as the shape."""
    depth = len(skeleton) - len(skeleton.lstrip(b"["))
    if depth > len(shape):
        return False
    expected = b""
    for side in (prod(shape[depth - 1 :]), *reversed(shape[: depth - 1])):
        expected = b"[%b%b]" % (expected, (b"," + expected) * (side - 1))
    return skeleton == expected
