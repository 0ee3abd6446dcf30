"""Creates image files for the tests, valid and broken, in memory."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ORIENTATION = 0x0112


def heic(name: str = "scene") -> bytes:
    """Return one of the committed HEIF files. "scene" is `scene(64, 64)`, and "scenergba" also has
    the grey values of the image as alpha. "odd" is `scene(61, 45)`, which is padded to whole
    blocks. "grey" is one colour, 256×256.

    pillow-heif 1.8.1 wrote the HEIF files, with quality=60, because the decoder here cannot write
    them.
    """
    return (Path(__file__).parent / "heic" / f"{name}.heic").read_bytes()


def encode(picture: Image.Image, image_format: str, **options: Any) -> bytes:
    """Encode an image, and return the file."""
    file = io.BytesIO()
    picture.save(file, image_format, **options)
    return file.getvalue()


def exif(orientation: int) -> Image.Exif:
    """Return EXIF data with the camera's orientation, 1..8, and other fields."""
    data = Image.Exif()
    data[0x010F] = "a camera's maker"
    data[ORIENTATION] = orientation
    return data


def scene(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a colourful image with smooth parts and edges, which JPEG stores well. No two parts
    are equal."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (max(2, height // 12), max(2, width // 12), 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return an image of random pixels. It is the strictest test of resampling."""
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


def png_chunk(kind: bytes, payload: bytes) -> bytes:
    """Return one chunk of a PNG with its checksum."""
    return struct.pack(">I", len(payload)) + kind + payload + png_checksum(kind + payload)


def png_checksum(data: bytes) -> bytes:
    """Return the CRC-32 as PNG stores it."""
    return struct.pack(">I", zlib.crc32(data))


def png(width: int, height: int, depth: int, colour: int, *chunks: bytes) -> bytes:
    """Return a PNG with a header of any values. `chunks` come between the header and the end."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = b"".join(chunks)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + body + png_chunk(b"IEND", b"")


def png_with(data: bytes, *chunks: bytes) -> bytes:
    """Return a PNG with additional chunks directly after its header."""
    return data[:33] + b"".join(chunks) + data[33:]


def jpeg_segment(marker: int, payload: bytes) -> bytes:
    """Return one segment of a JPEG."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload


def jpeg_with(data: bytes, *segments: bytes) -> bytes:
    """Return a JPEG with additional segments directly after its start."""
    return data[:2] + b"".join(segments) + data[2:]


def webp_with(data: bytes, chunks: bytes) -> bytes:
    """Return a WebP with additional chunks at its end."""
    return b"RIFF" + struct.pack("<I", len(data) - 8 + len(chunks)) + data[8:] + chunks
