"""Reads a request's JSON of any length without blocking other threads.

The JSON parser holds the interpreter's lock until it returns. So only short JSON is passed to it.
JSON with more objects or strings than a request needs is refused. The lists `data`, the only parts
that may be long, are cut out and read in pieces:

    text ── objects and strings counted ── cut ─┬─ short JSON, with placeholders for `data`: parsed
                                                └─ lists: spans of the text, read by `tensors`

Searches for a byte hold the lock too, but take less than a millisecond for 8 MB.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from service.errors import BadRequestError, PayloadTooLargeError

PIECE = 2**16
"""The most bytes that are parsed or translated in one call, which takes a millisecond."""

# The most objects. A request, its input, its output and their parameters are five; clients add a
# few of their own.
_MOST_OBJECTS = 256

# The most strings besides the files: names, keys and values.
_MOST_STRINGS = 512

# The most bytes besides `data`, which are parsed at once.
_MOST_BESIDE = 2**16

# The most white space between a key and its colon or list, and the most backslashes before a quote.
_NEAR = 256

_LIST_FOLLOWS = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*\[")
_COLON_FOLLOWS = re.compile(rb"[ \t\r\n]*:")
_KEY = b'"data"'


class Span(NamedTuple):
    """The part of a text from `start` to `end`."""

    text: bytes
    start: int
    end: int


def check_counts(text: bytes, end: int, max_files: int) -> None:
    """Raise BadRequestError if the text up to `end` has more objects or strings than a request with
    `max_files` images needs."""
    if has_more(text, b"{", end, _MOST_OBJECTS):
        raise BadRequestError(
            f"the JSON has more than {_MOST_OBJECTS} objects; a request has one input, "
            "one output and their parameters"
        )
    limit = max_files + _MOST_STRINGS
    if has_more(text, b'"', end, 2 * limit):
        raise BadRequestError(
            f"the JSON has more than {limit} strings; send at most {max_files} images per request, "
            "and few parameters"
        )


def has_more(text: bytes, byte: bytes, end: int, limit: int) -> bool:
    """Return whether a byte occurs more than `limit` times in the text up to `end`."""
    found = 0
    for start in range(0, end, PIECE):
        found += text.count(byte, start, min(start + PIECE, end))
        if found > limit:
            return True
    return False


def cut(text: bytes, end: int) -> tuple[bytes, Sequence[Span]]:
    """Replace each list with the key `data` in the JSON by `[0]`, `[1]` and so on. Return the
    shortened JSON, and the position of each list in the text.

    The contents of the lists are not checked. Raises BadRequestError if the text is not JSON, and
    PayloadTooLargeError if the shortened JSON is too long.
    """
    kept: list[bytes] = []
    lists: list[Span] = []
    kept_from = position = kept_bytes = 0
    while (quote := text.find(b'"', position, end)) >= 0:
        position = string_end(text, quote + 1, end) + 1
        if position - quote != len(_KEY) or not text.startswith(_KEY, quote):
            continue
        if follows := _LIST_FOLLOWS.match(text, position, min(position + _NEAR, end)):
            start = follows.end() - 1
            position = _list_end(text, start, end)
            kept_bytes += start - kept_from
            _check_short(kept_bytes)
            kept += [text[kept_from:start], b"[%d]" % len(lists)]
            lists.append(Span(text, start, position))
            kept_from = position
    _check_short(kept_bytes + end - kept_from)
    return b"".join([*kept, text[kept_from:end]]), lists


def string_end(text: bytes, start: int, end: int) -> int:
    """Return the position of the quote that ends a string. `start` is the position after the quote
    that begins it."""
    quote = start
    while (quote := text.find(b'"', quote, end)) >= 0:
        before = text[max(start, quote - _NEAR) : quote]
        backslashes = len(before) - len(before.rstrip(b"\\"))
        if backslashes == _NEAR:
            break
        if backslashes % 2 == 0:
            return quote
        quote += 1
    raise BadRequestError("failed to parse the request JSON buffer: a string does not end")


def _list_end(text: bytes, start: int, end: int) -> int:
    """Return the position after the list that begins at `start` and contains lists, numbers and
    strings. Its end is the last bracket before the next key."""
    position = start
    while True:
        quote = text.find(b'"', position, end)
        stop = text.find(b"}", position, end if quote < 0 else quote)
        if stop >= 0 or quote < 0:
            break
        after = string_end(text, quote + 1, end) + 1
        if _COLON_FOLLOWS.match(text, after, min(after + _NEAR, end)):
            stop = quote
            break
        position = after
    last = text.rfind(b"]", position, max(stop, position))
    if last < 0:
        raise BadRequestError("`data` must be a list of numbers, or of strings in base64")
    return last + 1


def _check_short(length: int) -> None:
    if length > _MOST_BESIDE:
        raise PayloadTooLargeError(
            f"the JSON has more than {_MOST_BESIDE} bytes besides `data`; "
            "send a shorter id and parameters"
        )
