"""Reads images in JSON, as text in base64, in the form of OpenAI's embeddings API."""

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from service.errors import BadRequestError, ModelNotFoundError, TooManyImagesError
from service.hosting.pipeline import ModelInfo
from service.http.body import JSON_TYPE, Headers

HOW = "each a data URL (data:image/jpeg;base64,...) or the file in base64"


class ImagesJson(msgspec.Struct, forbid_unknown_fields=True):
    """Holds images, and perhaps the model that they are for."""

    input: Annotated[str | list[str], Meta(description=f"one image or a list of them, {HOW}")]
    model: Annotated[str, Meta(description="the model's name, or empty")] = ""


_Json = TypeVar("_Json", bound=ImagesJson)


def is_json(headers: Headers) -> bool:
    """Return whether the headers say that the body is JSON."""
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return media_type == JSON_TYPE.encode()


def content_of(kind: type[ImagesJson]) -> dict[str, Any]:
    """Return the body as OpenAPI describes it, by media type."""
    schema = msgspec.json.schema(kind, ref_template="{name}")["$defs"][kind.__name__]
    return {JSON_TYPE: {"schema": schema}}


def read_json(
    body: bytes, kind: type[_Json], info: ModelInfo, path: str, max_images: int
) -> tuple[_Json, Sequence[bytes]]:
    """Return what a body says, and the files in it; `path` is where another model is asked.

    Raises BadRequestError, ModelNotFoundError where it is for another model, TooManyImagesError.
    """
    # Each string costs the parser an object: no request needs more than its images and keys.
    limit = max_images + 16
    if body.count(b'"') > 2 * limit:
        raise TooManyImagesError(
            f"the JSON has more than {limit} strings; at most {max_images} images are allowed"
        )
    try:
        asked = msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(
            f"the JSON cannot be read: {error}; `input` is one image or a list of them, {HOW}"
        ) from error
    if asked.model not in ("", info.name):
        raise ModelNotFoundError(
            f"this is the model '{info.name}', not '{asked.model[:50]}'; each model has an address"
            f" of its own: base_url=.../v1/models/NAME, or POST to {path}"
        )
    images = [asked.input] if isinstance(asked.input, str) else asked.input
    if not images:
        raise BadRequestError(f"`input` is empty; send at least one image, {HOW}")
    if len(images) > max_images:
        raise TooManyImagesError(
            f"{len(images)} images in one request; at most {max_images} are allowed"
        )
    return asked, [
        _file(image, f"image {number} of {len(images)}: " if len(images) > 1 else "")
        for number, image in enumerate(images, 1)
    ]


def _file(image: str, which: str) -> bytes:
    """Return the file that a data URL or base64 text encodes. Raises BadRequestError."""
    if image[:8].lower().startswith(("http://", "https://")):
        raise BadRequestError(f"{which}addresses are not fetched; send the image itself, {HOW}")
    data = image
    if image[:5].lower() == "data:":
        kind, found, data = image.partition(",")
        if not found or not kind.lower().endswith(";base64"):
            raise BadRequestError(
                f"{which}a data URL must begin as data:image/jpeg;base64, got {kind[:40]!r}"
            )
    try:
        file = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequestError(f"{which}it is not base64: {error}; send images, {HOW}") from error
    if not file:
        raise BadRequestError(f"{which}it is empty; send images, {HOW}")
    return file
