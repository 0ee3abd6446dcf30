"""Arbitrary bytes give pixels of the right shape or a client's error, quickly and in bounded
memory."""

import ctypes
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.preprocessing import ChannelOrder, CropMode, Preprocessing
from service.engine.lane import Cost
from service.errors import ServiceError
from service.images.prepare import ImageLimits, prepare_image
from tests.service.images.test_prepare import GREY, RGB
from tests.support.images.damage import damaged, good_files, pretended

LIMITS = ImageLimits(max_bytes=150_000, max_pixels=200_000)

# What a decoder may make of 200,000 pixels in a hundred scans takes a tenth of it.
MOST_CPU_S = 2.0

WANTED = (
    replace(RGB, height=24, width=32, resize=40),
    replace(RGB, height=32, width=24, crop_mode=CropMode.SQUASH, channels=ChannelOrder.BGR),
    replace(GREY, height=28, width=28, resize=28),
)

_FUZZ = settings(
    database=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def outcome(data: bytes, wanted: Preprocessing, limits: ImageLimits = LIMITS) -> str:
    """Return the outcome of a file. Fail unless it is one of the two permitted outcomes: pixels, or
    a client's error."""
    started = time.thread_time()
    refused: tuple[str, int, str] | None = None
    try:
        pixels = prepare_image(data, wanted, limits).run()
    except ServiceError as error:
        # Not the error itself: it leads to this frame, which would keep it and the whole picture.
        refused = type(error).__name__, error.code, str(error)
    assert time.thread_time() - started < MOST_CPU_S
    if refused is not None:
        name, status, message = refused
        assert 400 <= status < 500, message
        assert 0 < len(message) < 500, message
        assert "0x" not in message, f"an address leaked: {message}"
        return name
    assert pixels.shape == wanted.image_shape
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    return "pixels"


def fuzz(examples: int, *, derandomize: bool) -> None:
    """Decode `examples` damaged files, and a quarter as many files that never were images."""
    outcomes: Counter[str] = Counter()

    @settings(_FUZZ, max_examples=examples, derandomize=derandomize)
    @given(damaged(), st.sampled_from(WANTED))
    def hurt(data: bytes, wanted: Preprocessing) -> None:
        outcomes[outcome(data, wanted)] += 1

    @settings(_FUZZ, max_examples=examples // 4, derandomize=derandomize)
    @given(pretended(), st.sampled_from(WANTED))
    def invented(data: bytes, wanted: Preprocessing) -> None:
        outcomes[outcome(data, wanted)] += 1

    hurt()
    invented()
    # All of these happen, and often, or the damage is not what it should be.
    assert outcomes.keys() == {
        "pixels",
        "ImageError",
        "PayloadTooLargeError",
        "UnsupportedMediaTypeError",
    }
    assert min(outcomes.values()) > examples / 200, outcomes


def test_every_good_file_is_decoded() -> None:
    for _, data in good_files():
        for wanted in WANTED:
            assert outcome(data, wanted) == "pixels"


def test_only_pixels_or_the_clients_errors_come_out_of_hurt_files() -> None:
    fuzz(350, derandomize=True)


@pytest.mark.slow
def test_only_pixels_or_the_clients_errors_come_out_of_many_hurt_files() -> None:
    fuzz(20_000, derandomize=False)


# --- memory --------------------------------------------------------------------------------------

LARGE = ImageLimits(max_bytes=4_000_000, max_pixels=1_000_000)

# Beside what decoding is said to take: zlib's and libwebp's tables, and the resampled image.
_SLACK_BYTES = 2_500_000

_DECODE_ALL = (
    "from tests.service.images import test_decode_fuzz as t;"
    " t.decode_within_bounds(*t.sys.argv[1:])"
)


def decode_within_bounds(good: str, hurt: str) -> None:
    """Decode the files in two folders. For each file, only its estimated memory is available."""
    # Freed blocks go back to the system, or the second picture would be given the first one's.
    ctypes.CDLL(None).mallopt(-3, 65_536)
    for _, data in good_files():
        outcome(data, WANTED[0])
    for file in sorted(Path(good).iterdir()):
        assert outcome_within_cost(file.read_bytes()) == "pixels", file
    for file in sorted(Path(hurt).iterdir()):
        outcome_within_cost(file.read_bytes())


def outcome_within_cost(data: bytes) -> str:
    """Return the outcome of a file if only its estimated memory is available."""
    try:
        cost = prepare_image(data, WANTED[0], LARGE).cost
    except ServiceError:
        cost = Cost()
    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = data_bytes() + cost.bytes + _SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        return outcome(data, WANTED[0], LARGE)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def data_bytes() -> int:
    """Return the bytes of this process's memory that RLIMIT_DATA counts."""
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def write_all(folder: Path, files: Sequence[bytes]) -> Path:
    """Return a folder with these files."""
    folder.mkdir()
    for number, data in enumerate(files):
        (folder / f"{number:05}").write_bytes(data)
    return folder


def check_memory(place: Path, examples: int) -> None:
    """Decode large images, and `examples` damaged versions of them, in a process that has just
    enough memory."""
    good = good_files(1000, 1000)
    hurt: list[bytes] = []

    @settings(_FUZZ, max_examples=examples, derandomize=True)
    @given(damaged(good))
    def collect(data: bytes) -> None:
        hurt.append(data[: LARGE.max_bytes])

    collect()
    folders = write_all(place / "good", [data for _, data in good]), write_all(place / "hurt", hurt)
    done = subprocess.run(
        [sys.executable, "-c", _DECODE_ALL, *map(str, folders)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA bounds all memory on Linux alone")
def test_decoding_takes_no_more_memory_than_the_limits_allow(tmp_path: Path) -> None:
    check_memory(tmp_path, 12)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA bounds all memory on Linux alone")
def test_decoding_many_hurt_files_takes_no_more_memory_either(tmp_path: Path) -> None:
    check_memory(tmp_path, 500)
