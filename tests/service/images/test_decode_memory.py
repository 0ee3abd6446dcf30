"""The estimated memory for decoding each format and kind, compared with the measured memory."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from service.images.clip import prepare_clip
from service.images.decode_pool import Decoding
from service.images.prepare import ImageLimits, prepare_image
from tests.service.images.test_prepare import RGB
from tests.support.clips.videos import video
from tests.support.images.files import encode, png_chunk, png_with

# A byte for each pixel, too many or too few, is more than is allowed beside the cost.
SIDE = 1600
LIMITS = ImageLimits(max_bytes=10**9)

# Measured beside the cost: the resampled image, tables of the decoders, pages not quite used.
SLACK_BYTES = 1_500_000

# Large buffers go back to the system once they are freed. glibc otherwise learns from each to keep
# the next in its heap, where what earlier files left decides what is reused: the same PNG took 33.8
# to 46.0 MB, of which 31.4 were in use (deploy/README.md says what that adds to a server).
ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}

_ON_LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="Linux alone tells a process's peak memory"
)

# Linux writes down the most memory that a process had, and forgets it when told to.
_MEASURE = """
import ctypes, gc, json, sys
from pathlib import Path
from tests.service.images.test_decode_memory import prepared

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

peaks = {}
files = sorted(Path(sys.argv[1]).iterdir())
for file in [*files, *reversed(files)]:
    data = file.read_bytes()
    decoding = prepared(file.name, data)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    decoding.run()
    peaks[file.name] = status("VmHWM") - before  # the second time: nothing is new any longer
    del data, decoding
print(json.dumps(peaks))
"""


def noise(*shape: int, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return pixels that do not compress well and that are written quickly."""
    small = np.random.default_rng(seed).integers(0, 256, (SIDE // 4, SIDE // 4, *shape), np.uint8)
    return small.repeat(4, axis=0).repeat(4, axis=1)


def kinds() -> Mapping[str, bytes]:
    """Return a file of each format and kind that needs a different amount of memory."""
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
    # Palettes that are grey take less than their header says.
    files["GIF P"] = encode(palette, "GIF")
    files["GIF transparent"] = encode(palette, "GIF", transparency=3)
    for name, image in {"1": grey.convert("1"), "P": palette, "RGB": rgb, "RGBA": rgba}.items():
        files[f"BMP {name}"] = encode(image, "BMP")
    tiff = {"1": png["1"], "I;16": wide, "LA": grey_alpha, "CMYK": cmyk, "L": grey, "P": palette}
    for name, image in {**tiff, "RGB": rgb, "RGBA": rgba}.items():
        for compression in (None, "tiff_lzw") if name in ("1", "RGB") else ("packbits",):
            files[f"TIFF {name} {compression}"] = encode(image, "TIFF", compression=compression)
    for name, image in {"L": grey, "RGB": rgb, "RGBA": rgba}.items():
        files[f"AVIF {name}"] = encode(image, "AVIF", speed=10)
    files["AVIF RGB 4:4:4"] = encode(rgb, "AVIF", speed=10, subsampling="4:4:4")
    flat = Image.new("RGBA", (SIDE, SIDE), (1, 2, 3, 4))
    files["WebP flat"] = encode(flat, "WebP", lossless=True)
    files["PNG flat"] = encode(flat, "PNG", compress_level=1)
    return files


def prepared(name: str, data: bytes) -> Decoding:
    """Return the function that decodes a file from `kinds`, `animations` or `videos`."""
    if name.startswith("clip"):
        return prepare_clip(data, replace(RGB, frames=4), LIMITS)
    return prepare_image(data, RGB, LIMITS)


def measured(folder: Path, files: Mapping[str, bytes]) -> Mapping[str, tuple[int, int]]:
    """Return for each file the estimated and the measured bytes of memory for decoding it."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(folder)],
        env={**os.environ, **ALLOCATOR},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout)
    return {name: (prepared(name, data).cost.bytes, peaks[name]) for name, data in files.items()}


@_ON_LINUX
def test_decoding_takes_what_it_is_said_to_take(tmp_path: Path) -> None:
    wrong = {
        name: (said, peak)
        for name, (said, peak) in measured(tmp_path, kinds()).items()
        # Much more would keep out images for which there is room.
        if not peak - SLACK_BYTES <= said <= 1.35 * peak + SLACK_BYTES
    }
    assert not wrong, wrong


def animations() -> Mapping[str, bytes]:
    """Return animations of each format and mode, with each kind of transition between frames."""
    half = SIDE // 2
    colours = [Image.fromarray(noise(3, seed=seed)[:half, :half]) for seed in range(3)]
    palettes = [image.quantize(64) for image in colours]
    greys = [image.convert("L") for image in colours]
    clear = [Image.fromarray(noise(4, seed=seed)[:half, :half]) for seed in range(3)]
    cut = [image.copy() for image in colours]
    for image, grey in zip(cut, greys, strict=True):
        image.putalpha(grey.point(lambda level: 255 * (level > 127)))

    def animated(frames: Sequence[Image.Image], kind: str, **options: Any) -> bytes:
        return encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)

    files = {}
    for disposal in (1, 2, 3):
        for mode, frames in {"P": palettes, "transparent": cut}.items():
            files[f"clip GIF {mode} {disposal}"] = animated(frames, "GIF", disposal=disposal)
    for mode, frames in {"RGB": colours, "RGBA": clear, "P": palettes}.items():
        for disposal in (0, 1, 2):
            files[f"clip PNG {mode} {disposal}"] = animated(
                frames, "PNG", compress_level=1, disposal=disposal, blend=1
            )
    for mode, frames in {"RGB": colours, "RGBA": clear}.items():
        for lossless in (False, True):
            files[f"clip WebP {mode} {lossless=}"] = animated(
                frames, "WebP", method=0, lossless=lossless, quality=0
            )
    return files


@_ON_LINUX
def test_animations_take_no_more_than_they_are_said_to_take(tmp_path: Path) -> None:
    found = measured(tmp_path, animations())
    assert {name: pair for name, pair in found.items() if pair[0] < pair[1] - SLACK_BYTES} == {}
    # What a header says less about is said to take as much as the costliest of its format.
    for kind in ("GIF", "PNG", "WebP"):
        said, peak = max(pair for name, pair in found.items() if kind in name)
        assert said <= 1.35 * peak + SLACK_BYTES, kind


def videos() -> Mapping[str, bytes]:
    """Return videos of each codec; some have the largest number of reference frames in H.264."""
    still = noise(3)[:512, :512]
    frames = [Image.fromarray(np.roll(still, 7 * shift, 1)) for shift in range(24)]
    many: Any = {"refs": "16", "preset": "veryfast", "qp": "20"}
    return {
        "clip H.264": video(frames),
        "clip H.264, 16 frames": video(frames, **many),
        "clip H.264, 16 frames of 10 bits": video(frames, pixels="yuv420p10le", **many),
        "clip H.264, 16 frames in 4:4:4": video(frames, pixels="yuv444p", **many),
        "clip H.265": video(frames, encoder="libx265"),
        "clip VP8": video(frames, "webm", "libvpx"),
        "clip VP9": video(frames, "webm", "libvpx-vp9"),
        "clip AV1": video(frames, encoder="libsvtav1"),
    }


@pytest.mark.slow
@_ON_LINUX
def test_videos_take_no_more_than_they_are_said_to_take(tmp_path: Path) -> None:
    found = measured(tmp_path, videos())
    assert {name: pair for name, pair in found.items() if pair[0] < pair[1] - SLACK_BYTES} == {}
    said, peak = found["clip H.264, 16 frames of 10 bits"]
    assert said <= 1.35 * peak + SLACK_BYTES
