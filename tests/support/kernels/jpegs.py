"""Creates JPEG files, and decodes them with the kernels on any device and with Pillow."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kernels.device.device import Device
from kernels.image.decode import decode_launches
from kernels.image.decoded import PLACE_BYTES, Resize
from kernels.image.jpeg import SCRATCH_BYTES, JpegImage, Reason, UnsuitableError, read_jpeg
from kernels.image.place import PlacedImage, read_entry, write
from kernels.image.resize import fetch_launch
from kernels.problems.interpolation import Interpolation
from tests.support.kernels.kernel_case import BYTE_POISON, launch

Bytes = NDArray[np.uint8]


_ONE_PIXEL = np.zeros((1, 1, 3), np.uint8)


@dataclass(frozen=True)
class Result:
    """Holds the flags of a place after decoding, and the pixels that the place's entry
    describes."""

    flags: int
    pixels: Bytes


def encoded(pixels: Bytes, **options: Any) -> bytes:
    """Let Pillow encode pixels, H×W×3 or H×W, as a JPEG."""
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


class Codes:
    """Holds a Huffman table of random codes."""

    def __init__(self, symbols: Sequence[int], random: np.random.Generator) -> None:
        """Draw codes for these symbols. Some codes have 16 bits or, if there are few symbols, the
        largest possible length."""
        # Random leaves of a tree are split, most often the deepest. The code of only ones is not
        # allowed, so there is one leaf more than symbols.
        lengths = [1, 1]
        while len(lengths) <= len(symbols):
            deep = [i for i, length in enumerate(lengths) if length < 16]
            i = max(deep, key=lengths.__getitem__) if random.integers(4) else random.choice(deep)
            lengths[i] += 1
            lengths.append(lengths[i])
        self.symbols = [int(symbol) for symbol in random.permutation(symbols)]
        self.lengths = sorted(lengths)[: len(symbols)]
        self.codes, code = {}, 0
        for place, (symbol, length) in enumerate(zip(self.symbols, self.lengths, strict=True)):
            self.codes[symbol] = f"{code:0{length}b}"
            following = self.lengths[min(place + 1, len(symbols) - 1)]
            code = (code + 1) << (following - length)

    def segment(self, number: int) -> bytes:
        """Return the table in the format of a file."""
        counts = bytes(self.lengths.count(length) for length in range(1, 17))
        return _segment(0xC4, bytes([number]) + counts + bytes(self.symbols))


def _segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body


def _number(value: int) -> tuple[int, str]:
    """Return how many bits a number needs, and these bits."""
    size = abs(value).bit_length()
    bits = value if value > 0 else value + (1 << size) - 1
    return size, f"{bits:0{size}b}" if size else ""


def symbols_of(block: Sequence[int], before: int) -> list[tuple[int, str]]:
    """Return the symbols of a block in zigzag order, each with the bits that follow its code.
    `before` is the DC value of the previous block."""
    found, run = [_number(block[0] - before)], 0
    for value in block[1:]:
        if value == 0:
            run += 1
            continue
        found += [(0xF0, "")] * (run // 16)
        size, bits = _number(value)
        found.append((run % 16 << 4 | size, bits))
        run = 0
    return [*found, (0, "")] if run else found


def coded(
    blocks: NDArray[np.int64],
    size: tuple[int, int],
    luma: tuple[int, int] | None = (1, 1),
    *,
    random: np.random.Generator,
    steps: bytes = bytes([1] * 64),
    interval: int = 0,
    codes: Sequence[Codes] = (),
) -> bytes:
    """Return a JPEG with these coefficients, N×64 in zigzag order, and with random Huffman tables.

    `luma` is the sampling of the first of three components. If it is None, the image is grey.
    """
    factors = [(1, 1)] if luma is None else [luma, (1, 1), (1, 1)]
    owners = [c for c, (h, v) in enumerate(factors) for _ in range(h * v)]
    mcus = len(blocks) // len(owners)
    interval_or_all = interval or mcus
    symbols: list[list[tuple[int, list[tuple[int, str]]]]] = []  # of a segment: component, symbols
    dc = [0, 0, 0]
    for number, block in enumerate(blocks.tolist()):
        owner = owners[number % len(owners)]
        if number % (len(owners) * interval_or_all) == 0:
            symbols.append([])
            dc = [0, 0, 0]
        symbols[-1].append((owner, symbols_of(block, dc[owner])))
        dc[owner] = block[0]
    if not codes:
        used = [{0}, {0}]
        for segment in symbols:
            for _, (first, *others) in segment:
                used[0].add(first[0])
                used[1].update(symbol for symbol, _ in others)
        rare = {int(symbol) for symbol in random.integers(0, 256, 40)}
        codes = [Codes(sorted(used[0] | {9, 13}), random), Codes(sorted(used[1] | rare), random)]
    scan = b""
    for number, segment in enumerate(symbols):
        bits = "".join(
            codes[place > 0].codes[symbol] + behind
            for _, found in segment
            for place, (symbol, behind) in enumerate(found)
        )
        bits += "1" * (-len(bits) % 8)
        restart = bytes([0xFF, 0xD0 + (number - 1) % 8]) if number else b""
        scan += restart + int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    width, height = size
    frame = bytes([8]) + height.to_bytes(2, "big") + width.to_bytes(2, "big")
    numbers = range(1, len(factors) + 1)
    described = b"".join(
        bytes([n, h << 4 | v, 0]) for n, (h, v) in zip(numbers, factors, strict=True)
    )
    header = bytes([len(factors)]) + b"".join(bytes([n, 0]) for n in numbers) + b"\0\x3f\0"
    return b"".join(
        [
            b"\xff\xd8",
            _segment(0xDB, b"\0" + steps),
            _segment(0xC1, frame + bytes([len(factors)]) + described),
            codes[0].segment(0x00),
            codes[1].segment(0x10),
            _segment(0xDD, interval.to_bytes(2, "big")),
            _segment(0xDA, header),
            scan,
            b"\xff\xd9",
        ]
    )


def random_blocks(count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Return random coefficients like the coefficients of noisy images. They become smaller towards
    the end of a block."""
    sizes = 100.0 / (1 + np.arange(64))
    blocks = random.normal(0, sizes, (count, 64)).astype(np.int64)
    return np.where(random.random((count, 64)) < random.uniform(0.05, 0.6), blocks, 0)


_NO_PIXELS = (frozenset(range(0xE0, 0xF0)) | {0xFE}) - {0xE0, 0xEE}


def parts_of(data: bytes) -> list[memoryview]:
    """Return the parts of a file that affect pixels, in the form that `read_jpeg` takes. Raises
    UnsuitableError if there is anything between segments."""
    view, at = memoryview(data), 2
    parts = [view[:at]]
    while data[at : at + 1] == b"\xff" and at + 4 <= len(data):
        marker, end = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xDA:
            return [*parts, view[at:]]
        if marker not in _NO_PIXELS:
            parts.append(view[at:end])
        at = end
    raise UnsuitableError(Reason.SEGMENT, "it has something between its segments, or no scan")


def whole(data: bytes, eighths: int = 8) -> JpegImage:
    """Return the file as an image for the device. All pixels of the file are used. Raises
    UnsuitableError."""
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
    """Return the pixels that Pillow decodes, H×W×C. Return None if Pillow refuses the file or
    chooses another scale, as for small images."""
    try:
        image = Image.open(io.BytesIO(data))
        width, height = (max(1, side * eighths // 8) for side in image.size)
        image.draft(None, (width, height))
        if eighths < 8 and image.decoderconfig != (8 // eighths, 0):
            return None
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
        blocks: int = 8,
    ) -> None:
        """Allocate n places. `blocks` blocks of threads decode each image."""
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
            *decode_launches(n, place_bytes, scratch_bytes, blocks),
        )

    def has_room(self, image: JpegImage) -> bool:
        """Return whether an image fits into a place of this size."""
        head, pixels = len(image._head), int(np.prod(image.pixels_shape))
        largest = head + max(len(image.file.scan) + 16, pixels)
        return largest <= self.place_bytes and image.scratch_bytes <= self.scratch_bytes

    def run(self, images: Sequence[JpegImage | PlacedImage]) -> list[Result]:
        """Decode a batch, and return the result of each image. If a place gets no image, it
        contains a single pixel."""
        given, images = len(images), [*images, *[_ONE_PIXEL] * (self.n - len(images))]
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
            (begin,) = read_entry(place)["data"]
            shape = image.pixels_shape if isinstance(image, JpegImage) else image.shape
            pixels = place[begin : begin + int(np.prod(shape))].reshape(shape).copy()
            results.append(Result(int(flag), pixels))
        return results[:given]

    def free(self) -> None:
        """Free the memory."""
        for buffer in self._buffers.values():
            buffer.free()
