"""The bytes that Convoy's own launches of 3-D Winograd move, counted on the simulator."""

from math import ceil

from benchmarks.papers.pipeline import LAYER, moved


def test_transforms_move_each_sector_once_and_no_bank_is_waited_for_much() -> None:
    data, product, inverse = moved()
    assert [each.kernel for each in (data, product, inverse)] == [
        "winograd_data",
        "conv_direct",
        "winograd_inverse",
    ]
    tiles = LAYER.n * ceil(2 / 2) * ceil(7 / 2) ** 2
    written = 4 * 64 * tiles * LAYER.c  # V: all of it, and of x what lies inside the image
    assert written < data.bytes < 2 * written
    assert data.bytes == data.least_bytes
    assert inverse.bytes < 1.02 * inverse.least_bytes
    assert product.wavefronts < 1.1 * product.least_wavefronts
