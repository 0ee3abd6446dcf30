"""The time that decoding the worst images takes, and the time for which it blocks other threads.

Decoding cannot be cancelled. So its time is bounded in advance, by limits on pixels and on scans
times pixels, and by the time per pixel of each format's decoder. Pillow lets other threads run
while it decodes.
"""

import time
from contextlib import suppress
from unittest import mock

import pytest
from PIL import ImageFile

from service.errors import ServiceError
from service.images.decode_pool import Decoding
from service.images.prepare import ImageLimits, prepare_image
from tests.service.images.test_prepare import RGB
from tests.support.images import worst_inputs as worst
from tests.support.images.files import encode, noise, scene
from tests.support.models.slowness import Spent, idle_core
from tests.support.service.heartbeat import heartbeat

# Of one core. Measured on one of 2.5 GHz: 0.1 to 1.4 s.
MOST_S = 5.0

# For which the interpreter's lock is held. Measured: 0.01 to 0.13 s, the most by WebP, whose
# pixels are copied once more.
MOST_HELD_S = 0.5


def decoding_s(decoding: Decoding, runs: int) -> float:
    """Return the CPU seconds of an idle core that decoding an image takes.

    Of several runs, the run on the least slow core counts. On a busy machine, a single measurement
    of the core's slowness may be many times too high, so the least of the results would be too low.
    """
    tried = list[Spent]()
    for _ in range(runs):
        with idle_core(time.thread_time) as spent:
            decoding.run()
        tried.append(spent)
    return min(tried, key=lambda spent: spent.slowness).seconds


@pytest.mark.slow
def test_the_worst_images_take_seconds_at_most_and_let_others_run() -> None:
    for name, make in worst.IMAGES.items():
        data = make()
        with (
            idle_core(time.thread_time) as spent,
            heartbeat() as beats,
            suppress(ServiceError),
        ):
            prepare_image(data, RGB, ImageLimits()).run()
        taken_s, held_s = spent.seconds, beats.longest_s / spent.slowness
        print(f"{name}: {taken_s:.2f} s, of which nothing else ran for {held_s:.3f} s")
        assert taken_s < MOST_S, name
        assert held_s < MOST_HELD_S, name


def test_what_an_image_takes_is_estimated_within_a_factor() -> None:
    data = worst.IMAGES["WebP, lossless, transparent"]()
    decoding = prepare_image(data, RGB, ImageLimits())
    taken_s = decoding_s(decoding, 3)
    assert decoding.cost.seconds / 10 < taken_s < decoding.cost.seconds * 10


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("dense", [False, True])
def test_a_dense_jpeg_is_estimated_by_its_bytes(progressive: bool, mode: str, dense: bool) -> None:
    picture = (noise if dense else scene)(1200, 900).convert(mode)
    quality = (80 if progressive and mode == "RGB" else 100) if dense else 75
    with mock.patch.object(ImageFile, "MAXBLOCK", 2**23):  # as much as Pillow writes at once
        data = encode(picture, "JPEG", quality=quality, subsampling=0, progressive=progressive)
    decoding = prepare_image(data, RGB, ImageLimits())
    taken_s = decoding_s(decoding, 5)
    # What was estimated by pixels alone was off by 3.7.
    assert taken_s / 2.5 < decoding.cost.seconds < taken_s * 4
