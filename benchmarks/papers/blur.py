"""Computes the example of Soutar 2020, a blur, with a Winograd kernel, and draws docs/blur.png.

A 3×3 Gaussian filter blurs 32 equal images of 50×50 with 32 channels. F(2×2, 3×3) divides each
channel into 25×25 tiles. docs/blur.png shows a channel, its transformed tiles, and the output that
the fused kernel computes on the simulator.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.kernels.accuracy import convolve
from benchmarks.kernels.costs import WAYS
from benchmarks.papers.result import Cells
from benchmarks.rows import ROOT
from cusim.device import CusimDevice
from kernels import reference
from kernels.convolution.algorithms import ConvChoice, choices
from kernels.problems.conv import ConvProblem, same_padded
from kernels.winograd.filter import as_array, nested
from kernels.winograd.matrices import Points, winograd_matrices
from kernels.winograd.stages import tiles

Floats = NDArray[np.float32]

PROBLEM = same_padded((50, 50), 3, 32, 4).with_batch(32)
"""The example. The post does not state K."""

IMAGE = ROOT / "docs" / "blur.png"

_ZOOM = 4


def channel() -> Floats:
    """Return the test image, one channel of 50×50 pixels: rings around a corner, and a bright
    square."""
    rows, columns = np.mgrid[:50, :50] / 49
    pixels = np.asarray(0.5 + 0.5 * np.sin(60 * (rows**2 + columns**2)), np.float32)
    pixels[8:20, 30:42] = 1
    return pixels


def gauss() -> Floats:
    """Return the 3×3 filter of a Gaussian blur, whose numbers sum to 1."""
    row = np.array([1, 2, 1], np.float32) / 4
    return np.asarray(np.outer(row, row), np.float32)


def operands(problem: ConvProblem) -> tuple[Floats, Floats]:
    """Return x and the filters. All images and channels of x are equal. Each filter blurs all
    channels, and computes the mean of the blurred channels."""
    x = np.zeros((problem.n, problem.c, 50, 50), np.float32) + channel()
    weight = np.zeros(problem.filter_shape, np.float32) + gauss() / np.float32(problem.c)
    return x, weight


def fused(problem: ConvProblem) -> ConvChoice:
    """Return the choice of the fused F(2×2, 3×3) algorithm that has the smallest blocks and does
    not split sums among blocks."""
    return min(
        (
            choice
            for choice in choices(problem)
            if choice.algorithm.name == "winograd F(2x2,3x3)" and choice.config.split == 1
        ),
        key=lambda choice: int(choice.config.tile.bm * choice.config.tile.bn),
    )


def blurred() -> Floats:
    """Run the fused kernel for one image on the simulator, and return its output, 4×50×50."""
    problem, device = PROBLEM.with_batch(1), CusimDevice()
    try:
        return np.asarray(convolve(device, problem, fused(problem), *operands(problem))[0])
    finally:
        device.close()


def transformed() -> Floats:
    """Transform the 25×25 tiles of a channel, and return them as one image of 100×100 pixels. Each
    transformed tile has 4×4 pixels."""
    matrices = winograd_matrices(2, 3, Points.INTEGER)
    one = same_padded((50, 50), 3, 1, 1)
    v = nested(as_array(matrices.bt), tiles(channel()[None, None], one, matrices), 2)[0, 0]
    return np.asarray(v.swapaxes(1, 2).reshape(100, 100), np.float32)


def panels(y: Floats) -> Image.Image:
    """Return a grey image with three panels side by side: the channel, its transformed tiles, and
    the output y. In each panel, the darkest number is black and the brightest is white."""
    panels = [(channel(), _ZOOM), (transformed(), _ZOOM // 2), (y, _ZOOM)]
    drawn = []
    for panel, zoom in panels:
        grey = np.rint(255 * (panel - panel.min()) / np.ptp(panel)).astype(np.uint8)
        drawn.append(np.kron(grey, np.ones((zoom, zoom), np.uint8)))
    return Image.fromarray(np.hstack([np.pad(each, 4, constant_values=255) for each in drawn]))


def table_blur() -> Cells:
    """Return the numbers of multiplications of the direct sum and of F(2×2). Also return the
    largest difference between the kernel's result and the direct sum in float64."""
    one = PROBLEM.with_batch(1)
    x, weight = operands(one)
    # In float64: the order in which NumPy adds float32 numbers depends on the processor.
    exact = reference.conv(x.astype(np.float64), weight.astype(np.float64), one)
    apart = float(np.abs(blurred() - exact[0]).max())
    direct, by_tiles = (WAYS[way](PROBLEM).multiplications for way in ("naive", "F(2×2)"))
    return [
        ("tiles a channel", "products", "by F(2×2)", "fewer", "largest difference"),
        ("25×25", f"{direct:,}", f"{by_tiles:,}", f"{direct / by_tiles:.2f}", f"{apart:.0e}"),
    ]
