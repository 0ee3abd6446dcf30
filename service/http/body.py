"""A request's body: what its headers promise, then its bytes, every limit held while they come.

    headers ── refuse at once ── chunks, counted ── the whole body ── its images, or what it asks

Nothing beyond the limits is ever kept, whatever the headers promised.
"""

from collections.abc import Mapping

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.errors import (
    BadRequestError,
    InvalidParameterError,
    TooManyImagesError,
    UnsupportedMediaTypeError,
)
from service.http.compression import CODINGS

IMAGE_TYPES = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")
FORM_TYPE = "multipart/form-data"
FILE_FIELDS = ("file", "files")

Headers = Mapping[bytes, bytes]  # names in lower case; of several of one name the last

_HOW_TO_SEND = (
    f"send the image itself as {', '.join(IMAGE_TYPES[:-1])} or {IMAGE_TYPES[-1]}, "
    f"or one or more files as {FORM_TYPE} in the field 'file'"
)

# Of a Content-Type with its boundary, which may have 70 characters; long ones take long to read.
_MAX_TYPE_BYTES = 1024

# Of a file in a form, which has two: name and filename. Each takes a microsecond to read.
_MAX_PARAMETERS = 16

# Characters of a client's own words in an error.
_SHOWN = 40

# What is said of most bodies.
_PLAIN = frozenset((b"", *(kind.encode() for kind in IMAGE_TYPES)))

# Of a body that comes after its answer: of a longer one not all is read.
SHORT_BYTES = 65_536

# Of the longest that the parser takes, but for zeros in front, which it takes without end.
_LENGTH_DIGITS = 20


def content_length(headers: Headers) -> int | None:
    """How long the body will be, where the headers tell."""
    length = headers.get(b"content-length", b"")
    return int(length) if len(length) <= _LENGTH_DIGITS and length.isdigit() else None


def is_short(headers: Headers) -> bool:
    """Whether the body, where it is not wanted any more, is read to its end all the same.

    It is where it is short and comes unasked; otherwise the connection is closed.
    """
    if b"transfer-encoding" in headers or b"expect" in headers:
        return False
    length = content_length(headers) if b"content-length" in headers else 0
    return length is not None and length <= SHORT_BYTES


def _coding(headers: Headers) -> str:
    """What Content-Encoding names; empty where that is nothing done."""
    coding = headers.get(b"content-encoding", b"").strip().lower().decode("latin-1")
    return "" if coding == "identity" else coding


def content_coding(headers: Headers) -> str:
    """How the body is compressed, gzip or deflate; empty if it is not.

    UnsupportedMediaTypeError: another Content-Encoding.
    """
    coding = _coding(headers)
    if coding and coding not in CODINGS:
        raise UnsupportedMediaTypeError(
            f"Content-Encoding {coding[:_SHOWN]!r} is not taken; there is {', '.join(CODINGS)}"
        )
    return coding


def form_boundary(headers: Headers) -> bytes:
    """What separates the files of the body, if it is a form; empty if it is an image.

    UnsupportedMediaTypeError: it is neither, or compressed. BadRequestError: a form without.
    """
    content_type = headers.get(b"content-type", b"")
    if content_type in _PLAIN and b"content-encoding" not in headers:
        return b""
    if len(content_type) > _MAX_TYPE_BYTES:
        raise BadRequestError(
            f"the Content-Type has {len(content_type)} bytes; at most {_MAX_TYPE_BYTES} are read"
        )
    said = content_type.decode("latin-1")
    media_type = said.partition(";")[0].strip().lower()
    if media_type and media_type != FORM_TYPE and media_type not in IMAGE_TYPES:
        raise UnsupportedMediaTypeError(
            f"Content-Type {media_type[:_SHOWN]!r} is not taken; {_HOW_TO_SEND}"
        )
    coding = _coding(headers)
    if coding:
        raise UnsupportedMediaTypeError(
            f"Content-Encoding {coding[:_SHOWN]!r} is not taken; "
            "images are compressed already, so send the body as it is"
        )
    if media_type != FORM_TYPE:
        return b""
    boundary = parse_options_header(said)[1].get(b"boundary", b"")
    if not boundary:
        raise BadRequestError(
            f"{FORM_TYPE} lacks its boundary; let the HTTP client write the Content-Type"
        )
    return boundary


def images_of(body: bytes, boundary: bytes, max_images: int) -> list[bytes]:
    """The bytes of each image, in upload order; at least one, none empty.

    BadRequestError: empty, broken or cut short. TooManyImagesError: over `max_images`.
    InvalidParameterError: a form field of another name.
    """
    if boundary:
        try:
            return _Form(boundary, max_images).files(body)
        except FormParserError as error:
            raise BadRequestError(f"the {FORM_TYPE} body is broken: {error}") from error
    if not body:
        raise BadRequestError(f"the body is empty; {_HOW_TO_SEND}")
    return [body]


class _Form:
    """Collects the files of a multipart/form-data body, in order."""

    def __init__(self, boundary: bytes, max_images: int) -> None:
        self._boundary = boundary
        self._max_images = max_images
        self._files: list[list[bytes]] = []  # the pieces of each
        self._names: list[str] = []
        self._header = bytearray()
        self._value = bytearray()
        self._disposition = b""
        self._ended = False

    def files(self, body: bytes) -> list[bytes]:
        """All of them; raises FormParserError too."""
        # Not kept: with these callbacks it would be one of a cycle, and all files with it.
        parser = MultipartParser(
            self._boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._on_header,
                "on_header_value": self._on_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._start_file,
                "on_part_data": self._on_data,
                "on_end": self._end,
            },
        )
        parser.write(body)
        if not self._ended:
            raise BadRequestError(f"the {FORM_TYPE} body ends early; send it again")
        if not self._files:
            raise BadRequestError(f"the form has no file; {_HOW_TO_SEND}")
        files = [b"".join(pieces) for pieces in self._files]
        for name, file in zip(self._names, files, strict=True):
            if not file:
                raise BadRequestError(
                    f"the file {name[:_SHOWN]!r} is empty; choose a picture and send again"
                )
        return files

    def _begin(self) -> None:
        self._disposition = b""

    def _on_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _start_file(self) -> None:
        if self._disposition.count(b";") > _MAX_PARAMETERS:
            raise BadRequestError(
                f"a Content-Disposition has more than {_MAX_PARAMETERS} semicolons; "
                "send the name and the filename alone"
            )
        options = parse_options_header(self._disposition)[1]
        field = options.get(b"name", b"").decode("utf-8", "replace")
        if field not in FILE_FIELDS:
            raise InvalidParameterError(
                f"the form field {field[:_SHOWN]!r} is not known; images go into the field 'file' "
                "(or 'files'), everything else into the query, such as ?top_k=3"
            )
        if len(self._files) == self._max_images:
            raise TooManyImagesError(
                f"more than {self._max_images} images in one request; send them in several"
            )
        self._files.append([])
        self._names.append(options.get(b"filename", b"").decode("utf-8", "replace"))

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._files[-1].append(data[start:end])

    def _end(self) -> None:
        self._ended = True
