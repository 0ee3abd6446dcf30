"""Lists the kinds of files that are not images: clips, and files that clients send by mistake."""

from models import Signature, name_of
from service.errors import UnsupportedMediaTypeError

ZIP = Signature("a ZIP archive", {0: b"PK\x03\x04"})
MP4 = Signature("a video or HEIF container", {4: b"ftyp"})
WEBM = Signature("a WebM or Matroska video", {0: b"\x1a\x45\xdf\xa3"})

# The most bytes of a text that was sent in place of a file, and the most of its characters that are
# shown.
_MOST_TEXT, _SHOWN = 1024, 60

_FORM = b"\r\ncontent-disposition:"  # form-data, or attachment if curl got another Content-Type

_BASE64 = (
    'an image in base64 (send it as JSON, {"input": "..."}, with Content-Type: application/json)'
)

# Files that clients send by mistake. A more specific beginning comes before a more general one.
_OTHERS = (
    ZIP,
    Signature("a BigTIFF, a TIFF for more than 4 GB", {0: b"II+\0"}),
    Signature("a BigTIFF, a TIFF for more than 4 GB", {0: b"MM\0+"}),
    Signature("a HEIF", {4: b"ftypmif1"}),
    Signature("an ICO", {0: b"\0\0\1\0"}),
    MP4,
    WEBM,
    Signature("a JPEG 2000", {0: b"\0\0\0\x0cjP  "}),
    Signature("a JPEG XL", {0: b"\xff\x0a"}),
    Signature("a JPEG XL", {0: b"\0\0\0\x0cJXL "}),
    Signature("a PDF", {0: b"%PDF"}),
    Signature("an SVG", {0: b"<svg"}),
    Signature("XML", {0: b"<?xml"}),
    # The first bytes of a JPEG and of a PNG, and a data URL.
    *(Signature(_BASE64, {0: mark}) for mark in (b"/9j/", b"iVBORw0KGgo", b"data:image/")),
    Signature("data compressed by gzip (which needs Content-Encoding: gzip)", {0: b"\x1f\x8b"}),
    Signature("a NumPy array (use the V2 protocol to send numbers)", {0: b"\x93NUMPY"}),
    Signature("a Photoshop file", {0: b"8BPS"}),
    Signature("text that looks like JSON (which needs Content-Type: application/json)", {0: b"{"}),
    *(
        Signature(
            "a URL-encoded form (with requests or httpx, send files={...} instead of data={...})",
            {0: field + b"=" + value},
        )
        for field in (b"file", b"files", b"image", b"images")
        for value in (b"%", b"b%27")  # bytes, or bytes as Python shows them
    ),
)


def unread(data: bytes, wanted: str) -> UnsupportedMediaTypeError:
    """Return the error for a file in an unsupported format. `wanted` says what to send instead."""
    name, text = name_of(data, _OTHERS), _text_in(data)
    if data.startswith(b"--") and _FORM in data[:_MOST_TEXT].lower():
        name = (
            "a form (which needs Content-Type: multipart/form-data with its boundary; let the HTTP"
            " client write it)"
        )
    if text and not name:
        return UnsupportedMediaTypeError(
            f"this is the text {text!r}; {wanted}. With curl, @ before a file's name sends the"
            " file: -F file=@cat.jpg, or --data-binary @cat.jpg. With Python, send"
            ' open("cat.jpg", "rb")'
        )
    unknown = f"these {len(data)} bytes are not an image in a known format"
    what = f"this is {name}" if name else unknown
    return UnsupportedMediaTypeError(f"{what}; {wanted}")


def _text_in(data: bytes) -> str:
    """Return the beginning of the first line, if a file is a short text, such as a path that was
    sent by mistake. Return an empty string for any other file."""
    if len(data) > _MOST_TEXT:
        return ""
    try:
        lines = data.decode().strip().splitlines()
    except UnicodeDecodeError:
        return ""
    return lines[0][:_SHOWN] if lines and all(map(str.isprintable, lines)) else ""
