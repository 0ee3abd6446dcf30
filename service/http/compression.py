"""Bodies that travel compressed: gzip and deflate (RFC 9110 section 8.4.1), nothing else.

What a body inflates to is bounded while it inflates, so a bomb costs no more than a large body.
"""

import gzip
import zlib

from service.errors import BadRequestError, PayloadTooLargeError

CODINGS = ("gzip", "deflate")

# What zlib calls the two formats: deflate is zlib's own, as the RFC has it.
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

# Answers are small and wanted soon.
_LEVEL = 1

# Browsers send 30; a longer one is not read, and answered as if it were not there.
_MAX_ACCEPT_BYTES = 1024

# Below this the header outweighs what is saved.
_WORTH_IT = 512


def inflate(data: bytes, coding: str, most: int) -> bytes:
    """What was compressed, at most `most` bytes of it.

    PayloadTooLargeError: it is more. BadRequestError: broken, cut short, or followed by something.
    """
    inflater = zlib.decompressobj(_WINDOW_BITS[coding])
    try:
        inflated = inflater.decompress(data, most + 1)
    except zlib.error as error:
        raise BadRequestError(f"the body is no {coding}: {error}; send it again") from error
    if len(inflated) > most:
        raise PayloadTooLargeError(
            f"at most {most} bytes are allowed in a body, and this one inflates to more"
        )
    if not inflater.eof:
        raise BadRequestError(f"the {coding} body ends early; send it again")
    if inflater.unused_data:
        raise BadRequestError(f"something follows the {coding} body; compress it as one")
    return inflated


def wanted_coding(accept_encoding: str, size: int) -> str | None:
    """How an answer of `size` bytes should be compressed, by the request's Accept-Encoding."""
    if size < _WORTH_IT or len(accept_encoding) > _MAX_ACCEPT_BYTES:
        return None
    weights = dict.fromkeys(CODINGS, 0.0)
    for entry in accept_encoding.split(","):
        coding, _, parameter = entry.partition(";")
        coding = coding.strip().lower()
        if coding in weights:
            weights[coding] = _weight(parameter)
    best = max(CODINGS, key=weights.__getitem__)  # of equals the first
    return best if weights[best] > 0 else None


def _weight(parameter: str) -> float:
    """The q of an entry: 1 if it has none, 0 if it makes no sense."""
    name, equals, value = parameter.partition("=")
    if not equals:
        return 1.0
    try:
        return float(value) if name.strip().lower() == "q" else 1.0
    except ValueError:
        return 0.0


def compress(data: bytes, coding: str) -> bytes:
    """`data` in one of the codings."""
    if coding == "gzip":
        return gzip.compress(data, _LEVEL, mtime=0)
    return zlib.compress(data, _LEVEL)
