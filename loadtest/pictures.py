"""The pictures that are sent: read once, before the clock runs."""

from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import LoadTestError
from models import BUILT_IN_MODEL

SAMPLES = BUILT_IN_MODEL.parent / "samples"

MEDIA_TYPES = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
}

MAX_BYTES = 2_000_000_000
"""Of all pictures together, which stay in memory."""


@dataclass(frozen=True)
class Picture:
    """One body to send."""

    name: str
    data: bytes
    media_type: str


def load_pictures(place: Path) -> list[Picture]:
    """The pictures directly in a folder, or the one file, by name.

    LoadTestError: there are none, they cannot be read, or they are too many to hold.
    """
    pictures = []
    size = 0
    try:
        place.stat()
        files = sorted(place.iterdir()) if place.is_dir() else [place]
        for file in files:
            media_type = MEDIA_TYPES.get(file.suffix.lower())
            if media_type is None or file.is_dir():
                continue
            size += file.stat().st_size
            if size > MAX_BYTES:
                raise LoadTestError(
                    f"the pictures in {place} exceed {MAX_BYTES // 10**6} MB; take some of them"
                )
            pictures.append(Picture(file.name, file.read_bytes(), media_type))
    except OSError as error:
        raise LoadTestError(f"{error.filename}: {error.strerror}") from error
    if not pictures:
        raise LoadTestError(f"{place}: no JPEG, PNG or WebP files are there")
    return pictures
