"""Compresses and decompresses bodies with gzip and deflate (RFC 9110 section 8.4.1).

Decompression stops at a size limit. So a small body that would decompress to gigabytes costs no
more than a large body.
"""

import re
import zlib

from service.errors import BadRequestError, PayloadTooLargeError

CODINGS = ("gzip", "deflate")

# zlib's numbers for the two formats; the RFC's deflate is zlib's own format.
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

# The most bytes that zlib reads and writes at once.
_PIECE_IN, _PIECE_OUT = 2**16, 2**20

# The fastest level, because answers are small and urgent.
_LEVEL = 1

# The longest Accept-Encoding that is read; browsers send 30 bytes.
_MAX_ACCEPT_BYTES = 1024

# A coding and its weight, in lower case.
_ENTRY = re.compile(rf"({'|'.join(CODINGS)})(?:\s*;\s*q=([01](?:\.\d{{0,3}})?))?").fullmatch

# Smaller answers are not compressed: they grow by the header, or shrink too little.
_WORTH_IT = 512


def inflate(data: bytes, coding: str, max_bytes: int) -> bytes:
    """Decompress a body to at most `max_bytes` bytes.

    Raises PayloadTooLargeError if the body is larger, and BadRequestError if it is malformed,
    truncated or followed by other data.
    """
    inflater = zlib.decompressobj(_WINDOW_BITS[coding])
    parts: list[bytes] = []
    size = position = 0
    rest = b""
    # zlib lets other threads run while it inflates, but not while it copies the result.
    while not inflater.eof:
        if not rest:
            rest = data[position : position + _PIECE_IN]
            position += _PIECE_IN
        try:
            part = inflater.decompress(rest, min(_PIECE_OUT, max_bytes + 1 - size))
        except zlib.error as error:
            raise BadRequestError(f"malformed {coding} body: {error}; send it again") from error
        if not part and not rest:
            break
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise PayloadTooLargeError(
                f"at most {max_bytes} bytes are allowed in a body, but this body inflates to more"
            )
        rest = inflater.unconsumed_tail
    if not inflater.eof:
        raise BadRequestError(f"the {coding} body ends early; send it again")
    if inflater.unused_data or position < len(data):
        raise BadRequestError(f"data follows the {coding} body; compress it as one stream")
    return b"".join(parts)


def wanted_coding(accept_encoding: str, size: int) -> str | None:
    """Return the best content coding that Accept-Encoding allows for an answer of `size` bytes.
    Return None if it allows no supported coding, or if the answer is too short to compress."""
    if size < _WORTH_IT or len(accept_encoding) > _MAX_ACCEPT_BYTES:
        return None
    weights = dict.fromkeys(CODINGS, 0.0)
    for entry in accept_encoding.lower().split(","):
        if found := _ENTRY(entry.strip()):
            weights[found[1]] = float(found[2] or 1)
    best = max(CODINGS, key=weights.__getitem__)  # the first of equals
    return best if weights[best] > 0 else None


def compress(data: bytes, coding: str) -> bytes:
    """Compress the body of an answer with this content coding."""
    deflater = zlib.compressobj(_LEVEL, wbits=_WINDOW_BITS[coding])
    view = memoryview(data)
    # In pieces, because zlib copies the result of each call while it holds the interpreter's lock.
    pieces = (view[at : at + _PIECE_OUT] for at in range(0, len(data), _PIECE_OUT))
    return b"".join([*map(deflater.compress, pieces), deflater.flush()])
