"""Times the decoding of JPEG files on a device. Decoding takes several launches. For each kernel in
LAST, this module times all launches up to the last launch of this kernel."""

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from benchmarks.gpu import carried
from benchmarks.gpu.units import SAMPLINGS, Unit
from benchmarks.gpu.worker import RefusedError
from benchmarks.kernels.contest import Effort
from benchmarks.rows import Row
from kernels.device.device import Device
from kernels.device.launch import Launch
from kernels.image.decode import decode_launches
from kernels.image.decoded import PLACE_BYTES, Resize
from kernels.image.jpeg import SCRATCH_BYTES, JpegImage, UnsuitableError, read_jpeg
from kernels.image.resize import fetch_launch
from kernels.problems.interpolation import Interpolation
from kernels.tuning.timing import time_launches
from service.images.prepare import parse_image_file

LAST = ("jpeg_unstuff", "jpeg_resolve", "jpeg_write", "inverse_dct", "jpeg_pixels")
"""Kernels, each timed together with all kernels before it. The difference between two consecutive
times is the time of one part."""


def photographs(sampling: str, folder: Path | None = None) -> list[JpegImage]:
    """Return the photographs with the given chroma sampling, sorted by size. Raises RefusedError if
    there are none."""
    folder = folder or carried.data()
    files = sorted(((folder or Path()) / "images").glob("*.JPEG"))
    found = sorted(_suitable(files, sampling), key=lambda image: len(image.file.scan))
    if not found:
        raise RefusedError(
            f"no photograph has the chroma sampling {sampling}. On a machine with network access,"
            " run `python -m benchmarks.gpu carry`, which packs photographs into the folder .gpu,"
            " and then copy this folder to this checkout"
        )
    return found


def _suitable(files: Sequence[Path], sampling: str) -> Iterator[JpegImage]:
    for file in files:
        try:
            headers = read_jpeg(parse_image_file(file.read_bytes()).parts)
            if headers.components == 3 and headers.luma == SAMPLINGS[sampling]:
                yield JpegImage(headers, 8, _all_of(headers.scaled(8)))
        except UnsuitableError:
            continue


def _all_of(size: tuple[int, int]) -> Resize:
    return Resize(
        size=(224, 224),
        box=(0.0, 0.0, size[0], size[1]),
        crop=(0, 0, 224, 224),
        interpolation=Interpolation.BILINEAR,
        x_reversed=False,
        y_reversed=False,
        transposed=False,
        frame=(224, 224),
        channels=(0, 1, 2),
        paper=(0, 0, 0),
    )


def measure_decoding(
    device: Device, unit: Unit, effort: Effort | None = None, folder: Path | None = None
) -> list[Row]:
    """Time a batch of photographs of about the median size. Return a row for each kernel in LAST,
    with the time of all launches up to this kernel.

    The files are read from pinned memory. Raises RefusedError if the device cannot decode a file.
    """
    effort, n = effort or Effort(), unit.n
    every = photographs(unit.subject, folder)
    middle = max(0, (len(every) - n) // 2)
    images = list(islice(cycle(every[middle:]), n))
    places = device.pinned(n * PLACE_BYTES)
    for place, image in zip(places.reshape(n, -1), images, strict=True):
        image.write(place)
    sizes = {"entries": n * PLACE_BYTES, "scratch": n * SCRATCH_BYTES, "flags": 4 * n}
    buffers = {name: device.allocate(size) for name, size in sizes.items()}
    addresses = {name: buffer.address for name, buffer in buffers.items()}
    addresses["images"] = device.address(places)
    launches: list[Launch] = [fetch_launch(n), *decode_launches(n)]
    rows: list[Row] = []
    for kernel in LAST:
        end = 1 + max(
            i for i, launch in enumerate(launches) if launch.instantiation.kernel == kernel
        )
        timing = time_launches(
            device,
            launches[:end],
            [addresses],
            copies=effort.copies,
            replays=effort.replays,
            dependent=True,
        )
        rows.append(
            {
                "sampling": unit.subject,
                "n": n,
                "up_to": kernel,
                "scan_bytes": sum(len(image.file.scan) for image in images),
                "p20_us": round(timing.p20_us, 3),
                "p50_us": round(timing.p50_us, 3),
                "p80_us": round(timing.p80_us, 3),
            }
        )
    flags = np.empty(n, np.int32)
    stream = device.stream()
    device.download(flags, addresses["flags"], stream)
    stream.synchronize()
    for buffer in buffers.values():
        buffer.free()
    if flags.any():
        raise RefusedError(
            f"the device could not decode all photographs; their flags are {flags.tolist()}"
        )
    return rows
