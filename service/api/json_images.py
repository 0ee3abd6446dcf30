"""Reads base64 images from a JSON body in the format of OpenAI's embeddings API."""

import base64
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from service.api.v2.long_json import Span, has_more, string_end
from service.api.v2.parse import MAX_JSON_BYTES
from service.api.v2.tensors import decode_base64
from service.errors import (
    BadRequestError,
    ModelNotFoundError,
    PayloadTooLargeError,
    TooManyImagesError,
)
from service.hosting.model_info import ModelInfo
from service.http.body import JSON_TYPE
from service.images.file import ImageFormat

# The length from which strings are cut out, and the most bytes of the rest, which is parsed at
# once.
_LONG, _MOST_BESIDE = 2**10, 2**18

# The mark in place of a string that was cut out. It is random, so clients cannot send it.
_MARK = f"cut {secrets.token_hex(16)} "

# The characters in which a line break is looked for: lines of base64 have 64 or 76.
_MOST_LINE = 4096

# The most characters of a data URL before its comma.
_MOST_HEAD = 256

HOW = "each a data URL (data:image/jpeg;base64,...) or the file in base64"


class ImagesJson(msgspec.Struct, forbid_unknown_fields=True):
    """The images in a JSON body, and optionally the name of the model to use."""

    input: Annotated[str | list[str], Meta(description=f"one image or a list of them, {HOW}")]
    model: Annotated[str, Meta(description="the model's name, or empty")] = ""


_Json = TypeVar("_Json", bound=ImagesJson)


def content_of(kind: type[ImagesJson]) -> dict[str, Any]:
    """Return OpenAPI's description of the body, by media type."""
    schema = msgspec.json.schema(kind, ref_template="{name}")["$defs"][kind.__name__]
    return {JSON_TYPE: {"schema": schema}}


def read_json(
    body: bytes, kind: type[_Json], info: ModelInfo, path: str, max_images: int
) -> tuple[_Json, list[bytes]]:
    """Return the fields of a JSON body, and the image files in it.

    Raises BadRequestError, PayloadTooLargeError, and ModelNotFoundError if the body names another
    model. The message of ModelNotFoundError tells the client to use `path`.
    """
    if (sent := ImageFormat.of(body)) is not None:
        raise BadRequestError(
            f"the Content-Type is {JSON_TYPE}, but the body is a {sent.value} image; send it with"
            f" Content-Type: {sent.media_type}"
        )
    # Each string costs the parser an object: no request needs more than its images and keys.
    limit = max_images + 16
    if len(body) > MAX_JSON_BYTES:
        raise PayloadTooLargeError(
            f"the JSON has {len(body)} bytes; at most {MAX_JSON_BYTES} are allowed; send the images"
            " as files of a form"
        )
    if has_more(body, b'"', len(body), 2 * limit):
        raise TooManyImagesError(
            f"the JSON has more than {limit} strings; send at most {max_images} images, each as"
            " one string"
        )
    short, long = _cut(body)
    try:
        asked = msgspec.json.decode(short, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        also = "; `encoding_format` is float or base64" if "enum" in str(error) else ""
        if kind is ImagesJson and "unknown field" in str(error):
            also = "; send other parameters in the query, such as ?top_k=3"
        right = f"`input` must be one image or a list of images, {HOW}{also}"
        raise BadRequestError(f"the JSON cannot be read: {error}; {right}") from error
    if asked.model not in ("", info.name):
        raise ModelNotFoundError(
            f"this address serves the model '{info.name}', but `model` in the JSON is"
            f" '{asked.model[:50]}'; for another model, POST to {path}, or set"
            " base_url=.../v1/models/NAME in OpenAI's client"
        )
    images = [asked.input] if isinstance(asked.input, str) else asked.input
    if not images:
        raise BadRequestError(f"`input` is empty; send at least one image, {HOW}")
    if len(images) > max_images:
        raise TooManyImagesError(
            f"the request has {len(images)} images; at most {max_images} are allowed"
        )
    return asked, [
        _file(image, long, f"image {number} of {len(images)}: " if len(images) > 1 else "")
        for number, image in enumerate(images, 1)
    ]


def _cut(body: bytes) -> tuple[bytes, Mapping[str, Span]]:
    """Replace each long string in the JSON by a short mark. Return the shortened JSON, and a
    mapping from each mark to its long string.

    The JSON parser would block all other threads while it reads long strings.
    """
    kept: list[bytes] = []
    long: dict[str, Span] = {}
    kept_from = position = 0
    while (quote := body.find(b'"', position)) >= 0:
        end = string_end(body, quote + 1, len(body))
        position = end + 1
        if end - quote > _LONG:
            mark = f"{_MARK}{len(long)}"
            kept += [body[kept_from:quote], b'"%b"' % mark.encode()]
            long[mark] = Span(body, quote + 1, end)
            kept_from = position
    kept_bytes = sum(map(len, kept)) + len(body) - kept_from
    if kept_bytes > _MOST_BESIDE:
        raise BadRequestError(
            f"the JSON cannot be read: it has more than {_MOST_BESIDE} bytes besides its strings of"
            f" over {_LONG} characters; remove the white space between the images"
        )
    return b"".join([*kept, body[kept_from:]]), long


def _file(image: str, long: Mapping[str, Span], which: str) -> bytes:
    """Return the file that a data URL or base64 text encodes. Raises BadRequestError."""
    span = long.get(image)
    if span is not None:
        image = span.text[span.start : span.start + _MOST_HEAD].decode("latin-1")
    if image[:8].lower().startswith(("http://", "https://")):
        raise BadRequestError(
            f"{which}the text is an address, and addresses are not fetched; send the image itself,"
            f" {HOW.removeprefix('each ')}"
        )
    data = image
    if image[:5].lower() == "data:":
        kind, found, data = image.partition(",")
        if not found or not kind.lower().endswith(";base64"):
            raise BadRequestError(
                f"{which}a data URL must begin like 'data:image/jpeg;base64,'; got {kind[:40]!r}"
            )
    try:
        if span is None:
            file = base64.b64decode(data, validate=True)
        else:
            file = decode_base64(span._replace(start=span.start + len(image) - len(data)))
    except (ValueError, msgspec.DecodeError) as error:  # binascii's, too
        end = 0 if span is None else min(span.end, span.start + _MOST_LINE)
        lines = "\n" in data if span is None else span.text.find(b"\\n", span.start, end) > 0
        why = "it has line breaks; encode the file with `base64 -w0`" if lines else error
        raise BadRequestError(
            f"{which}the text is not base64: {why}; send images, {HOW}"
        ) from error
    if not file:
        raise BadRequestError(f"{which}the text is empty; send images, {HOW}")
    return file
