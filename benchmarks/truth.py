"""The problem to be computed: its data, and how far an answer on the device is from the truth."""

from dataclasses import dataclass
from math import sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kernels import reference
from kernels.conv_problem import ConvProblem
from kernels.device import Device
from kernels.pixels import Pixels

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Data:
    """x N×C×H×W (N×C×D×H×W) and the filter K×C×R×S, both uniform in [-1, 1]."""

    problem: ConvProblem
    x: Array
    weight: Array

    @classmethod
    def of(cls, problem: ConvProblem, seed: int = 0) -> "Data":
        """The same for the same problem and seed."""
        rng = np.random.default_rng(seed)
        shape = (problem.n, problem.c, *problem.window.input)
        x, weight = (2 * rng.random(s, np.float32) - 1 for s in (shape, problem.filter_shape))
        return cls(problem, x, weight)


class Truth(Protocol):
    """Knows y in float64."""

    def error(self, address: int, layout: Pixels) -> float:
        """‖y − truth‖ / ‖truth‖ of the y at a device address; NaN where y has one."""


class ReferenceTruth:
    """Truth by kernels.reference, on the host: for small problems, on any device."""

    def __init__(self, device: Device, data: Data) -> None:
        self._device, self._problem = device, data.problem
        x, weight = data.x.astype(np.float64), data.weight.astype(np.float64)
        self._expected = reference.conv(x, weight, data.problem)

    def error(self, address: int, layout: Pixels) -> float:
        """See Truth."""
        y = download_pixels(self._device, address, layout, self._problem)
        return relative_error(y, self._expected)


def relative_error(y: Array, expected: NDArray[np.floating]) -> float:
    """‖y − expected‖ / ‖expected‖."""
    return sqrt(np.square(y - expected).sum() / np.square(expected).sum())


def upload_form(x: Array, layout: Pixels) -> Array:
    """N×C×H×W as it lies on the device: N·H·W pixels, zeros behind the channels."""
    pixels = np.moveaxis(x, 1, -1)
    padded = np.zeros((*pixels.shape[:-1], layout.pitch), np.float32)
    padded[..., : layout.channels] = pixels
    return padded


def download_pixels(device: Device, address: int, layout: Pixels, problem: ConvProblem) -> Array:
    """The y at a device address, as N×K×P×Q."""
    result = np.empty((problem.n, *problem.window.output, layout.pitch), np.float32)
    stream = device.stream()
    device.download(result, address, stream)
    stream.synchronize()
    return np.moveaxis(result[..., : layout.channels], -1, 1)
