"""Reads the headers that describe a request's body, and finds the images in the body. Checks all
limits on bodies."""

from collections.abc import Collection, Mapping, Sequence

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.errors import (
    BadRequestError,
    InvalidParameterError,
    TooManyImagesError,
    UnsupportedMediaTypeError,
)
from service.http.compression import CODINGS
from service.images.file import ImageFormat

IMAGE_TYPES = (*(kind.media_type for kind in ImageFormat), "application/octet-stream")
FORM_TYPE = "multipart/form-data"
JSON_TYPE = "application/json"
FILE_FIELDS = ("file", "files", "image", "images")
FIELD_NAMES = f"{', '.join(map(repr, FILE_FIELDS[:-1]))} or {FILE_FIELDS[-1]!r}"

Headers = Mapping[bytes, bytes]  # names in lower case; the last of each name
Pieces = Sequence[bytes | bytearray]  # of a body

# Media types that do not tell the format, so the body's first bytes decide: curl's type for
# --data-binary, and the type that stores give any file. Types of images do not tell the format
# either, because many are wrong.
_ANY_TYPES = ("application/x-www-form-urlencoded", "binary/octet-stream")
_ANY_IMAGE = "image/"

_HOW_TO_SEND = (
    f"send the image itself as {', '.join(IMAGE_TYPES[:-1])} or {IMAGE_TYPES[-1]}, "
    f"one or more files as {FORM_TYPE} in the field {FIELD_NAMES}, or base64 in {JSON_TYPE}"
)

# The longest Content-Type that is parsed; a boundary may have 70 characters.
_MAX_TYPE_BYTES = 1024

# The most parameters of a Content-Disposition, which usually has two: name and filename. Each takes
# a microsecond.
_MAX_PARAMETERS = 16

# Bytes of a form that are parsed at once.
_PIECE = 2**18

# The most characters of a client's text that an error repeats.
_SHOWN = 40

# Content-Types that need no parsing.
_JSON = JSON_TYPE.encode()
_PLAIN = frozenset((b"", *(kind.encode() for kind in IMAGE_TYPES)))

# The longest body that is read to its end after the request was answered.
SHORT_BYTES = 65_536

LONG_BODY = 2**20
"""Bodies with more bytes are copied and read in a thread. On the event loop, 20 MB would take 10
ms."""

# The digits of the largest length that llhttp accepts; further digits are leading zeros.
_LENGTH_DIGITS = 20


def content_length(headers: Headers) -> int | None:
    """Return the body's length in bytes from Content-Length, or None if that header is missing or
    invalid."""
    length = headers.get(b"content-length", b"")
    return int(length) if len(length) <= _LENGTH_DIGITS and length.isdigit() else None


def is_short(headers: Headers) -> bool:
    """Return whether the server can read and ignore the rest of a body to keep the connection open.
    It cannot if the body is long or chunked, or if the client waits for 100 Continue before it
    sends the body."""
    if b"transfer-encoding" in headers or b"expect" in headers:
        return False
    length = content_length(headers) if b"content-length" in headers else 0
    return length is not None and length <= SHORT_BYTES


def _coding(headers: Headers) -> str:
    coding = headers.get(b"content-encoding", b"").strip().lower().decode("latin-1")
    return "" if coding == "identity" else coding


def content_coding(headers: Headers) -> str:
    """Return the body's content coding: "gzip", "deflate", or "" for none.

    Raises UnsupportedMediaTypeError for any other Content-Encoding.
    """
    coding = _coding(headers)
    if coding and coding not in CODINGS:
        raise UnsupportedMediaTypeError(
            f"unsupported Content-Encoding {coding[:_SHOWN]!r}; use {' or '.join(CODINGS)}"
        )
    return coding


def is_json(headers: Headers) -> bool:
    """Return whether the Content-Type is JSON."""
    content_type = headers.get(b"content-type", b"")
    return content_type not in _PLAIN and content_type.partition(b";")[0].strip().lower() == _JSON


def boundary_of(headers: Headers, also: Collection[str] = ()) -> bytes | None:
    """Return a form's boundary, None if the body is JSON, and b"" for other bodies.

    For JSON, raises the errors of `content_coding`, so that a client need not send a body that
    cannot be decompressed. For other bodies, raises the errors of `form_boundary`.
    """
    if is_json(headers):
        content_coding(headers)
        return None
    return form_boundary(headers, also)


def form_boundary(headers: Headers, also: Collection[str] = ()) -> bytes:
    """Return a form's boundary, or b"" if the body is an image or has a media type in `also`.

    Raises UnsupportedMediaTypeError for other media types and for a compressed body, and
    BadRequestError for a form without a boundary.
    """
    content_type = headers.get(b"content-type", b"")
    if content_type in _PLAIN and b"content-encoding" not in headers:
        return b""
    if len(content_type) > _MAX_TYPE_BYTES:
        raise BadRequestError(
            f"the Content-Type has {len(content_type)} bytes; at most {_MAX_TYPE_BYTES} are allowed"
        )
    text = content_type.decode("latin-1")
    media_type = text.partition(";")[0].strip().lower()
    known = media_type in ("", FORM_TYPE, *IMAGE_TYPES, *_ANY_TYPES, *also)
    if not known and not media_type.startswith(_ANY_IMAGE):
        raise UnsupportedMediaTypeError(
            f"unsupported Content-Type {media_type[:_SHOWN]!r}; {_HOW_TO_SEND}"
        )
    coding = _coding(headers)
    if coding:
        raise UnsupportedMediaTypeError(
            f"unsupported Content-Encoding {coding[:_SHOWN]!r}: images are compressed already; "
            "send the body as it is"
        )
    if media_type != FORM_TYPE:
        return b""
    boundary = parse_options_header(text)[1].get(b"boundary", b"")
    if not boundary:
        raise BadRequestError(
            f"the {FORM_TYPE} has no boundary; let the HTTP client write the Content-Type"
        )
    return boundary


def images_of(body: bytes, boundary: bytes, max_images: int) -> list[bytes]:
    """Return the image files of a body in upload order. There is at least one file, and no file is
    empty. `boundary` is empty if the whole body is one image.

    Raises BadRequestError if the body is empty, malformed or truncated, TooManyImagesError for more
    than `max_images` files, and InvalidParameterError for an unknown form field.
    """
    if not boundary:
        if not body:
            raise BadRequestError(f"the body is empty; {_HOW_TO_SEND}")
        return [body]
    form = _Form(max_images)
    try:
        # The form does not keep the parser, which refers to the form: a reference cycle would keep
        # all files.
        parser = MultipartParser(
            boundary,
            {
                "on_header_field": form.on_name,
                "on_header_value": form.on_value,
                "on_header_end": form.end_header,
                "on_headers_finished": form.start_file,
                "on_part_data": form.on_data,
                "on_end": form.end,
            },
        )
        # In pieces, because the parser's searches hold the interpreter's lock.
        for start in range(0, len(body), _PIECE):
            parser.write(body[start : start + _PIECE])
    except FormParserError as error:
        raise BadRequestError(
            f"malformed {FORM_TYPE} body: {error}; let the HTTP client write the form and its"
            " Content-Type"
        ) from error
    if not form.ended:
        raise BadRequestError(f"the {FORM_TYPE} body ends early; send it again")
    if not form.files:
        raise BadRequestError(f"the form has no file; {_HOW_TO_SEND}")
    images = [b"".join(pieces) for _, pieces in form.files]
    if not all(images):
        name = form.files[images.index(b"")][0]
        raise BadRequestError(f"the file {name[:_SHOWN]!r} is empty; choose an image")
    return images


class _Form:
    """Collects the image files of a form. The parser of the form calls the methods."""

    def __init__(self, max_images: int) -> None:
        self.files: list[tuple[str, list[bytes]]] = []  # name and pieces of each
        self.ended = False
        self._max_images = max_images
        self._name = bytearray()  # of a header
        self._value = bytearray()
        self._disposition = b""

    def on_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def end_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def start_file(self) -> None:
        if self._disposition.count(b";") > _MAX_PARAMETERS:
            raise BadRequestError(
                f"a Content-Disposition has more than {_MAX_PARAMETERS} parameters; "
                "send only the name and the filename"
            )
        options = parse_options_header(self._disposition)[1]
        self._disposition = b""
        field = options.get(b"name", b"").decode("utf-8", "replace")
        if field not in FILE_FIELDS:
            raise InvalidParameterError(
                f"unknown form field {field[:_SHOWN]!r}; send images in the field "
                f"{FIELD_NAMES}, and parameters in the query, such as ?top_k=3"
            )
        if len(self.files) == self._max_images:
            raise TooManyImagesError(
                f"the request has more than {self._max_images} images; send several requests"
            )
        self.files.append((options.get(b"filename", b"").decode("utf-8", "replace"), []))

    def on_data(self, data: bytes, start: int, end: int) -> None:
        self.files[-1][1].append(data[start:end])

    def end(self) -> None:
        self.ended = True
