"""Reads protobuf's variable-length integers, in model files and in messages from clients."""

from collections.abc import Callable

_MOST_BITS = 70


def varint(
    data: bytes, position: int, end: int, endless: Callable[[], Exception]
) -> tuple[int, int]:
    """Return the integer that starts at `position`, and the position after it. Raises the error
    that `endless` returns if the integer does not end before `end`, or has more than ten bytes."""
    value = shift = 0
    while position < end and shift < _MOST_BITS:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise endless()
