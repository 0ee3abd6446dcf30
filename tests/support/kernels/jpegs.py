"""Makes JPEG files, and decodes them by the kernels, on any device, and by Pillow."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kernels.device.device import Device
from kernels.image.decode import decode_launches
from kernels.image.decoded import PLACE_BYTES, Placed, Resize, write
from kernels.image.jpeg import SCRATCH_BYTES, JpegImage, parts_of, read_jpeg
from kernels.image.resize import fetch_launch
from kernels.problems.interpolation import Interpolation
from tests.support.kernels.kernel_case import BYTE_POISON, launch

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Result:
    """Holds a place's flags, and the pixels that its entry then has."""

    flags: int
    pixels: Bytes


def encoded(pixels: Bytes, **options: Any) -> bytes:
    """Return a JPEG of H×W×3 or H×W pixels, which Pillow writes."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **options)
    return file.getvalue()


def scene(width: int, height: int, seed: int = 0) -> Bytes:
    """Return colourful pixels with smooth parts, edges and some noise."""
    random = np.random.default_rng(seed)
    small = random.integers(0, 256, (max(2, height // 12), max(2, width // 12), 3), np.uint8)
    smooth = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
    grain = random.integers(-9, 10, smooth.shape)
    return np.clip(smooth + grain, 0, 255).astype(np.uint8)


def noise(width: int, height: int, seed: int = 0) -> Bytes:
    """Return random pixels."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def whole(data: bytes, eighths: int = 8) -> JpegImage:
    """Return a file of which all pixels are used. Raises UnsuitableError."""
    file = read_jpeg(parts_of(data))
    width, height = size = file.scaled(eighths)
    resize = Resize(
        size=size,
        box=(0.0, 0.0, width, height),
        crop=(0, 0, *size),
        interpolation=Interpolation.NEAREST,
        x_reversed=False,
        y_reversed=False,
        transposed=False,
        frame=size,
        channels=(0, 1, 2)[: file.components],
        paper=(0, 0, 0)[: file.components],
    )
    return JpegImage(file, eighths, resize)


def pillow(data: bytes, eighths: int = 8) -> Bytes | None:
    """Return the pixels that Pillow decodes, H×W×C; None where it refuses the file."""
    try:
        image = Image.open(io.BytesIO(data))
        width, height = (max(1, side * eighths // 8) for side in image.size)
        image.draft(None, (width, height))
        pixels = np.asarray(image)
    except (OSError, SyntaxError, ValueError, EOFError):
        return None
    return pixels.reshape(*pixels.shape[:2], -1)


class JpegRig:
    """Holds the memory of a batch on a device."""

    def __init__(
        self,
        device: Device,
        n: int = 1,
        place_bytes: int = PLACE_BYTES,
        scratch_bytes: int = SCRATCH_BYTES,
    ) -> None:
        """Allocate n places."""
        self.device, self.n = device, n
        self.place_bytes, self.scratch_bytes = place_bytes, scratch_bytes
        self._stream = device.stream()
        self._buffers = {
            "images": device.allocate(n * place_bytes),
            "entries": device.allocate(n * place_bytes),
            "scratch": device.allocate(n * scratch_bytes),
            "flags": device.allocate(4 * n),
        }
        self._launches = (
            fetch_launch(n, place_bytes),
            *decode_launches(n, place_bytes, scratch_bytes),
        )

    def run(self, images: Sequence[JpegImage | Placed]) -> list[Result]:
        """Return what becomes of each place's entry."""
        places = np.full((self.n, self.place_bytes), BYTE_POISON)
        for place, image in zip(places, images, strict=True):
            image.write(place) if isinstance(image, JpegImage) else write(place, image)
        addresses = {name: buffer.address for name, buffer in self._buffers.items()}
        self.device.upload(addresses["images"], places, self._stream)
        for each in self._launches:
            launch(each, self.device, addresses, self._stream)
        flags = np.empty(self.n, np.int32)
        self.device.download(places, addresses["entries"], self._stream)
        self.device.download(flags, addresses["flags"], self._stream)
        self._stream.synchronize()
        results = []
        for place, image, flag in zip(places, images, flags, strict=True):
            begin = int(place[4:8].view(np.int32)[0])
            shape = image.pixels_shape if isinstance(image, JpegImage) else image.shape
            pixels = place[begin : begin + int(np.prod(shape))].reshape(shape).copy()
            results.append(Result(int(flag), pixels))
        return results

    def free(self) -> None:
        """Free the memory."""
        for buffer in self._buffers.values():
            buffer.free()
