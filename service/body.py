"""A request's body to the bytes of its images, every limit held while it streams in.

    Content-Type, -Length -> refuse at once -> chunks, counted -> the body itself, or its files

Nothing beyond the limits is ever kept, whatever the header promised.
"""

from collections.abc import Callable, Mapping

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from service.compression import CODINGS
from service.errors import (
    BadRequestError,
    InvalidParameterError,
    PayloadTooLargeError,
    TooManyImagesError,
    UnsupportedMediaTypeError,
)

IMAGE_TYPES = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")
FORM_TYPE = "multipart/form-data"
FILE_FIELDS = ("file", "files")

_HOW_TO_SEND = (
    f"send the image itself as {', '.join(IMAGE_TYPES[:-1])} or {IMAGE_TYPES[-1]}, "
    f"or one or more files as {FORM_TYPE} in the field 'file'"
)


# Of the longest that the parser takes, but for zeros in front, which it takes without end.
_LENGTH_DIGITS = 20


def content_length(headers: Mapping[bytes, bytes]) -> int | None:
    """How long the body will be, where the headers tell."""
    length = headers.get(b"content-length", b"")
    return int(length) if len(length) <= _LENGTH_DIGITS and length.isdigit() else None


class Body:
    """One request's body: what its header promises, then its chunks, then its images."""

    def __init__(
        self,
        headers: Mapping[bytes, bytes],
        receive: Receive,
        *,
        max_bytes: int,
        max_images: int,
    ) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._max_images = max_images
        self._type = headers.get(b"content-type", b"").decode("latin-1")
        self.coding = headers.get(b"content-encoding", b"").strip().lower().decode("latin-1")
        self._expects = b"expect" in headers
        self._length = content_length(headers)
        self.complete = False

    @property
    def skippable(self) -> bool:
        """Whether what was not read is little enough to be skipped, the connection kept."""
        if self.complete:
            return True
        # A client that waits for "100 Continue" may never send what its header promised.
        return self._length is not None and self._length <= self._max_bytes and not self._expects

    async def images(self, hold: Callable[[int], None]) -> list[bytes]:
        """The bytes of each image, in upload order; at least one, none empty.

        `hold(n)` is told of every n bytes that are kept, and may refuse them by raising.
        BadRequestError: empty, broken or cut short.
        PayloadTooLargeError: over max_bytes, found out from the header where it tells.
        TooManyImagesError: over max_images. UnsupportedMediaTypeError: neither an image nor a form.
        InvalidParameterError: a form field of another name. ClientDisconnect: the client left, or
        the edge sent it away for being slow.
        """
        media_type = self._type.partition(";")[0].strip().lower()
        if media_type and media_type != FORM_TYPE and media_type not in IMAGE_TYPES:
            raise UnsupportedMediaTypeError(
                f"Content-Type {media_type!r} is not taken; {_HOW_TO_SEND}"
            )
        if self.coding not in ("", "identity"):
            raise UnsupportedMediaTypeError(
                f"Content-Encoding {self.coding!r} is not taken; "
                "images are compressed already, so send the body as it is"
            )
        if media_type == FORM_TYPE:
            return await self._files(hold)
        data = await self._collect(hold)
        if not data:
            raise BadRequestError(f"the body is empty; {_HOW_TO_SEND}")
        return [data]

    async def whole(self, hold: Callable[[int], None]) -> bytes:
        """The body as it is, of whatever type, perhaps empty, perhaps compressed by `coding`.

        `hold` is as above. UnsupportedMediaTypeError: another Content-Encoding than gzip, deflate.
        PayloadTooLargeError, ClientDisconnect: as above.
        """
        if self.coding == "identity":
            self.coding = ""
        if self.coding and self.coding not in CODINGS:
            raise UnsupportedMediaTypeError(
                f"Content-Encoding {self.coding!r} is not taken; there is {', '.join(CODINGS)}"
            )
        return await self._collect(hold)

    async def _collect(self, hold: Callable[[int], None]) -> bytes:
        chunks: list[bytes] = []
        await self._read(hold, chunks.append)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _files(self, hold: Callable[[int], None]) -> list[bytes]:
        """The files of a multipart/form-data body."""
        boundary = parse_options_header(self._type)[1].get(b"boundary", b"")
        if not boundary:
            raise BadRequestError(
                f"{FORM_TYPE} lacks its boundary; let the HTTP client write the Content-Type"
            )
        try:
            form = _Form(boundary, self._max_images)
            await self._read(hold, form.write)
        except FormParserError as error:
            raise BadRequestError(f"the {FORM_TYPE} body is broken: {error}") from error
        return form.files()

    async def _read(self, hold: Callable[[int], None], take: Callable[[bytes], None]) -> None:
        """Hand the body to `take` as it arrives, no more than max_bytes of it."""
        if self._length is not None and self._length > self._max_bytes:
            raise self._too_large(f"this one has {self._length}")
        total = 0
        while not self.complete:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self.complete = not message.get("more_body", False)
            chunk = message.get("body", b"")
            if chunk:
                total += len(chunk)
                if total > self._max_bytes:
                    raise self._too_large("this one has more")
                hold(len(chunk))
                take(chunk)

    def _too_large(self, what: str) -> PayloadTooLargeError:
        return PayloadTooLargeError(
            f"at most {self._max_bytes} bytes are allowed in a body, and {what}; "
            "send a smaller image, or fewer at once"
        )


class WholeBody(Body):
    """A body that is there already, and was counted."""

    def __init__(self, headers: Mapping[bytes, bytes], data: bytes, *, max_images: int) -> None:
        super().__init__(headers, _nothing_more, max_bytes=len(data), max_images=max_images)
        self.complete = True
        self._data = data

    async def _read(self, _: Callable[[int], None], take: Callable[[bytes], None]) -> None:
        data, self._data = self._data, b""
        if data:
            take(data)


async def _nothing_more() -> Message:
    raise RuntimeError("a whole body receives nothing")  # a defect, should it be called


class _Form:
    """Collects the files of a multipart/form-data body, in memory, in order."""

    def __init__(self, boundary: bytes, max_images: int) -> None:
        self._max_images = max_images
        self._files: list[bytearray] = []
        self._names: list[str] = []
        self._header = bytearray()
        self._value = bytearray()
        self._disposition = b""
        self._ended = False
        self._parser = MultipartParser(
            boundary,
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

    def write(self, chunk: bytes) -> None:
        """Parse the next piece of the body."""
        self._parser.write(chunk)

    def files(self) -> list[bytes]:
        """All files, after the last write."""
        if not self._ended:
            raise BadRequestError(f"the {FORM_TYPE} body ends early; send it again")
        if not self._files:
            raise BadRequestError(f"the form has no file; {_HOW_TO_SEND}")
        for name, file in zip(self._names, self._files, strict=True):
            if not file:
                raise BadRequestError(
                    f"the file {name!r} is empty; choose a picture and send again"
                )
        return [bytes(file) for file in self._files]

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
        options = parse_options_header(self._disposition)[1]
        field = options.get(b"name", b"").decode("utf-8", "replace")
        if field not in FILE_FIELDS:
            raise InvalidParameterError(
                f"the form field {field!r} is not known; images go into the field 'file' "
                "(or 'files'), everything else into the query, such as ?top_k=3"
            )
        if len(self._files) == self._max_images:
            raise TooManyImagesError(
                f"more than {self._max_images} images in one request; send them in several"
            )
        self._files.append(bytearray())
        self._names.append(options.get(b"filename", b"").decode("utf-8", "replace"))

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._files[-1] += data[start:end]

    def _end(self) -> None:
        self._ended = True
