"""Reads the images to send into memory before the test."""

from dataclasses import dataclass
from mimetypes import MimeTypes
from pathlib import Path

from loadtest import LoadTestError
from models import BUILT_IN_MODEL

SAMPLES = BUILT_IN_MODEL.parent / "samples"

MAX_BYTES = 2_000_000_000
"""The most bytes of all image files together, because they stay in memory."""

# The types that Python knows in every version and on every machine, and the types that 3.11 lacks.
_TYPES = MimeTypes()
for _kind, _suffix in (("avif", ".avif"), ("heic", ".heic"), ("heic", ".heif"), ("bmp", ".dib")):
    _TYPES.add_type(f"image/{_kind}", _suffix)


def image_type(name: str) -> str:
    """Return the media type for the name of an image file, or "" if the name does not end like an
    image file."""
    kind, _ = _TYPES.guess_type(name, strict=False)
    return kind if kind is not None and kind.startswith("image/") else ""


@dataclass(frozen=True)
class ImageFile:
    """Holds one request body with its name and media type."""

    name: str
    data: bytes
    media_type: str


def load_images(path: Path) -> list[ImageFile]:
    """Return the images of a folder and of its subfolders, sorted by path. If `path` is a file,
    return this one image.

    Raises LoadTestError if there are no images, if a file cannot be read, or if the files exceed
    MAX_BYTES.
    """
    try:
        path.stat()
        folder = path if path.is_dir() else path.parent
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        files = [file for file in files if image_type(file.name) and not file.is_dir()]
        if sum(file.stat().st_size for file in files) > MAX_BYTES:
            raise LoadTestError(
                f"{path}: the images exceed {MAX_BYTES // 10**6} MB; use fewer images"
            )
        images = [
            ImageFile(str(file.relative_to(folder)), file.read_bytes(), image_type(file.name))
            for file in files
        ]
    except OSError as error:
        raise LoadTestError(f"{error.filename}: {error.strerror}") from error
    if not images:
        raise LoadTestError(f"{path}: there are no images")
    return images
