"""A tensor's `data` in JSON, as its shape says: pixels as numbers, files as base64.

Nested lists of numbers are not made into Python lists. Without its digits a valid JSON array is a
skeleton of brackets and commas, which is compared with the one that the shape has; without its
brackets it is one flat list. Both take time proportional to the length, about 15 ms a megabyte,
however the text is nested.
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
_strings = msgspec.json.Decoder(list[bytes]).decode  # base64
_nested_strings = msgspec.json.Decoder(list[list[bytes]]).decode


def read_pixels(data: bytes, shape: Sequence[int]) -> NDArray[np.uint8]:
    """The pixels n×H×W×C of a valid JSON array.

    It may be flat, or nested: as deep as `shape` or less deep, the last axes then being one, and
    without the first axis where that is 1. BadRequestError: another structure, another number of
    elements, or one that is no whole number from 0 to 255.
    """
    skeleton = data.translate(None, _DIGITS + _SPACE)
    if skeleton.translate(None, b"[],"):
        raise _no_pixels()
    count = skeleton.count(b",") + bool(data.strip(b"[]" + _SPACE))
    if count != prod(shape):
        raise wrong_size(count, prod(shape))
    if not _is_nested_as(skeleton, shape) and not (
        shape[0] == 1 and _is_nested_as(skeleton, shape[1:])
    ):
        raise BadRequestError(
            f"`data` must be one flat list, or lists nested as the shape {list(shape)} says"
        )
    try:
        # bytes() itself refuses numbers that are none.
        pixels = bytes(_numbers(b"[%b]" % data.translate(None, b"[]" + _SPACE)))
    except ValueError:  # msgspec's are too
        raise _no_pixels() from None
    return np.frombuffer(pixels, np.uint8).reshape(shape)


def _is_nested_as(skeleton: bytes, shape: Sequence[int]) -> bool:
    """Whether these are the brackets and commas of lists nested as the shape says."""
    depth = len(skeleton) - len(skeleton.lstrip(b"["))
    if depth > len(shape):
        return False
    expected = b""
    for side in (prod(shape[depth - 1 :]), *reversed(shape[: depth - 1])):
        expected = b"[%b%b]" % (expected, (b"," + expected) * (side - 1))
    return skeleton == expected


def read_files(data: bytes, n: int) -> list[bytes]:
    """The n files of a valid JSON array of base64, of shape [n] or [n, 1].

    BadRequestError: another number of elements, or one that is no base64.
    """
    nested = data[1:].lstrip(_SPACE).startswith(b"[")
    # Every element has its quotes, and base64 has no others.
    if (count := data.count(b'"') // 2) > n:
        raise wrong_size(count, n)
    try:
        if nested:
            files = [file for row in _nested_strings(data) for file in row]
        else:
            files = _strings(data)
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadRequestError(
            f"`data` must be base64, which is how JSON carries files: {error}; "
            "or send them as binary data, after the JSON"
        ) from None
    if len(files) != n:
        raise wrong_size(len(files), n)
    return files


def wrong_size(got: int, expected: int) -> BadRequestError:
    """For a tensor that has not as many elements as its shape says."""
    return BadRequestError(f"unexpected total size: got {got} elements, expecting {expected}")


def _no_pixels() -> BadRequestError:
    return BadRequestError("`data` must be whole numbers from 0 to 255")
