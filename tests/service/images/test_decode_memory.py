"""What decoding is said to take, by format and kind, against what it really takes."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from service.images.prepare import ImageLimits, prepare_image
from tests.service.images.test_prepare import RGB
from tests.support.images.files import encode, png_chunk, png_with

SIDE = 2000
LIMITS = ImageLimits(max_bytes=10**9)

# Measured beside the cost: the resampled image, tables of the decoders, pages not quite used.
SLACK_BYTES = 1_500_000

# Large buffers go back to the system once they are freed. glibc otherwise learns from each to keep
# the next in its heap, where what earlier files left decides what is reused: the same PNG took 33.8
# to 46.0 MB, of which 31.4 were in use (deploy/README.md says what that adds to a server).
ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}

# Linux writes down the most memory that a process had, and forgets it when told to.
_MEASURE = """
import ctypes, gc, json, sys
from pathlib import Path
from tests.service.images.test_decode_memory import LIMITS, RGB, prepare_image

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

peaks = {}
files = sorted(Path(sys.argv[1]).iterdir())
for file in [*files, *reversed(files)]:
    data = file.read_bytes()
    decoding = prepare_image(data, RGB, LIMITS)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    decoding.run()
    peaks[file.name] = status("VmHWM") - before  # the second time: nothing is new any longer
    del data, decoding
print(json.dumps(peaks))
"""


def noise(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Pixels that neither compress well nor take for ever to be written."""
    small = np.random.default_rng(0).integers(0, 256, (SIDE // 4, SIDE // 4, *shape), np.uint8)
    return small.repeat(4, axis=0).repeat(4, axis=1)


def kinds() -> Mapping[str, bytes]:
    """A file of each format and kind whose decoding takes something else."""
    grey, rgb = Image.fromarray(noise()), Image.fromarray(noise(3))
    rgba, cmyk = Image.fromarray(noise(4)), Image.fromarray(noise(4), "CMYK")
    grey_alpha = Image.fromarray(noise(2), "LA")
    wide = Image.fromarray(noise().astype(np.uint16) * 257)
    palette = rgb.quantize(256)
    files = {}
    for name, image in {"L": grey, "RGB": rgb, "CMYK": cmyk}.items():
        for progressive in (False, True):
            files[f"JPEG {name} {progressive=}"] = encode(image, "JPEG", progressive=progressive)
    files["JPEG RGB 4:4:4"] = encode(rgb, "JPEG", progressive=True, subsampling=0)
    png = {"1": grey.convert("1"), "L": grey, "I;16": wide, "LA": grey_alpha, "P": palette}
    for name, image in {**png, "RGB": rgb, "RGBA": rgba}.items():
        files[f"PNG {name}"] = encode(image, "PNG", compress_level=1)
    for name, image, transparent in (
        ("L", grey, 3),
        ("P", palette, bytes(range(256))),
        ("RGB", rgb, (1, 2, 3)),
    ):
        files[f"PNG {name} tRNS"] = encode(image, "PNG", compress_level=1, transparency=transparent)
    # Alpha types allow no tRNS, and Pillow ignores it: these cost as much as without.
    for name, length in {"LA": 2, "RGBA": 6}.items():
        files[f"PNG {name} tRNS"] = png_with(
            files[f"PNG {name}"], png_chunk(b"tRNS", bytes(length))
        )
    for name, image in {"RGB": rgb, "RGBA": rgba}.items():
        files[f"WebP {name}"] = encode(image, "WebP", method=0)
        files[f"WebP {name} lossless"] = encode(image, "WebP", method=0, lossless=True, quality=0)
    flat = Image.new("RGBA", (SIDE, SIDE), (1, 2, 3, 4))
    files["WebP flat"] = encode(flat, "WebP", lossless=True)
    files["PNG flat"] = encode(flat, "PNG", compress_level=1)
    return files


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a process's peak memory")
def test_decoding_takes_what_it_is_said_to_take(tmp_path: Path) -> None:
    files = kinds()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(tmp_path)],
        env={**os.environ, **ALLOCATOR},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout)
    said = {name: prepare_image(data, RGB, LIMITS).cost.bytes for name, data in files.items()}
    wrong = {
        name: (said[name], peak)
        for name, peak in peaks.items()
        # Much less would keep out images for which there is room.
        if not peak - SLACK_BYTES <= said[name] <= 1.35 * peak + SLACK_BYTES
    }
    assert not wrong, wrong
