"""Soutar's worked example, computed with the fused kernel on the simulator."""

import numpy as np
from PIL import Image

from benchmarks.kernels.costs import WAYS
from benchmarks.papers import blur


def test_a_channel_has_25_by_25_tiles_and_takes_16_products_for_36() -> None:
    problem = blur.PROBLEM
    assert (problem.n, problem.c, problem.window.input) == (32, 32, (50, 50))
    assert blur.transformed().shape == (25 * 4, 25 * 4)
    assert (
        WAYS["naive"](problem).multiplications * 16 == WAYS["F(2×2)"](problem).multiplications * 36
    )


def test_the_kernel_blurs_every_channel_alike_and_the_image_is_of_that() -> None:
    y = blur.blurred()
    padded, image = np.pad(blur.channel().astype(np.float64), 1), np.zeros((50, 50))
    for row, weights in enumerate(blur.gauss()):
        for column, weight in enumerate(weights):
            image += weight * padded[row : row + 50, column : column + 50]
    assert np.allclose(y, image, atol=2e-6), "the mean of 32 equal channels is one of them"
    drawn = np.asarray(blur.panels(y[0]))
    shown = np.asarray(Image.open(blur.IMAGE))
    assert shown.shape == drawn.shape
    # A grey that lies between two may round either way elsewhere.
    assert np.abs(shown.astype(int) - drawn).max() <= 1
