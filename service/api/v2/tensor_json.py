"""A tensor's `data` in JSON: pixels as numbers, files as base64.

Nested lists of numbers never become Python lists. Without its digits, a valid JSON array is a
skeleton of brackets and commas, to compare with the skeleton of the shape; without its brackets, it
is one flat list. Both take about 15 ms per megabyte, however deep the nesting.
"""

from collections.abc import Sequence
from math import prod

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.errors import BadRequestError

_DIGITS = b"0123456789"
_SPACE = b" \t\r\n"

_numbers = msgspec.json.Decoder(list[int]).decode
_files = msgspec.json.Decoder(list[bytes | list[bytes]]).decode  # base64


def read_pixels(data: bytes, shape: Sequence[int]) -> NDArray[np.uint8]:
    """The pixels n×H×W×C of a valid JSON array.

    The array may be flat, nested as `shape`, or nested less deep with the last axes flattened; the
    first axis may be absent if it is 1. BadRequestError: another structure, another number of
    elements, or an element that is not a whole number from 0 to 255.
    """
    flat = _flat(data, shape, _DIGITS, "whole numbers from 0 to 255")
    try:
        # bytes() refuses numbers above 255.
        pixels = bytes(_numbers(b"[%b]" % flat))
    except ValueError:  # msgspec's errors too
        raise _not("whole numbers from 0 to 255") from None
    return np.frombuffer(pixels, np.uint8).reshape(shape)


def read_numbers(data: bytes, shape: Sequence[int]) -> NDArray[np.float32]:
    """The numbers of a valid JSON array, nested as for `read_pixels`; too large: infinite."""
    flat = _flat(data, shape, _DIGITS + b"+-.eE", "numbers")
    with np.errstate(over="ignore"):
        return np.fromstring(flat.decode(), np.float64, sep=",").reshape(shape).astype(np.float32)


def _flat(data: bytes, shape: Sequence[int], digits: bytes, numbers: str) -> bytes:
    """The numbers alone, with commas; `digits` are the characters that they may have."""
    skeleton = data.translate(None, digits + _SPACE)
    if skeleton.translate(None, b"[],"):
        raise _not(numbers)
    count = skeleton.count(b",") + bool(data.strip(b"[]" + _SPACE))
    if count != prod(shape):
        raise wrong_size(count, prod(shape))
    if not _is_nested_as(skeleton, shape) and not (
        shape[0] == 1 and _is_nested_as(skeleton, shape[1:])
    ):
        raise BadRequestError(
            f"`data` must be one flat list, or lists nested as the shape {list(shape)}"
        )
    return data.translate(None, b"[]" + _SPACE)


def _is_nested_as(skeleton: bytes, shape: Sequence[int]) -> bool:
    """Whether the brackets and commas are those of lists nested as the shape."""
    depth = len(skeleton) - len(skeleton.lstrip(b"["))
    if depth > len(shape):
        return False
    expected = b""
    for side in (prod(shape[depth - 1 :]), *reversed(shape[: depth - 1])):
        expected = b"[%b%b]" % (expected, (b"," + expected) * (side - 1))
    return skeleton == expected


def read_files(data: bytes, n: int) -> list[bytes]:
    """The n files of a valid JSON array of base64, of shape [n] or [n, 1].

    BadRequestError: another number of elements, or an element that is not base64.
    """
    # Every element has two quotes, and base64 contains none.
    if (count := data.count(b'"') // 2) > n:
        raise wrong_size(count, n)
    try:
        rows = _files(data)
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadRequestError(
            f"each file in `data` must be base64: {error}; or send binary data, after the JSON"
        ) from None
    files = [file for row in rows for file in (row if isinstance(row, list) else [row])]
    if len(files) != n:
        raise wrong_size(len(files), n)
    return files


def wrong_size(got: int, expected: int) -> BadRequestError:
    """The error for a tensor whose shape promises another number of elements."""
    return BadRequestError(f"unexpected total size: got {got} elements, expecting {expected}")


def _not(numbers: str) -> BadRequestError:
    return BadRequestError(f"`data` must be {numbers}")
