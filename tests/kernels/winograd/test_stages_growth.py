"""The bound for engines compared with actual rounding errors."""

import numpy as np
import pytest

from kernels.winograd.matrices import Points, winograd_matrices
from kernels.winograd.stages import winograd_conv, winograd_growth, winograd_roundings
from tests.support.kernels import reference
from tests.support.kernels.windows import conv_problem, window

U = float(np.finfo(np.float32).eps) / 2


@pytest.mark.parametrize(
    ("m", "r", "axes", "c", "points"),
    [
        (2, 3, 2, 64, Points.INTEGER),
        (4, 3, 2, 64, Points.INTEGER),
        (4, 3, 2, 256, Points.INTEGER),
        (4, 3, 2, 64, Points.MIXED),
        (2, 5, 2, 64, Points.MIXED),
        (2, 3, 3, 32, Points.INTEGER),
    ],
)
def test_winograds_errors_grow_by_what_its_matrices_say(
    m: int, r: int, axes: int, c: int, points: Points
) -> None:
    size = (r + 11,) * axes  # tiles within the image, for what is beyond it errs by nothing
    problem = conv_problem(1, c, 8, window(size, (r,) * axes))
    matrices = winograd_matrices(m, r, points)
    rng = np.random.default_rng(c)
    x = rng.normal(size=(1, c, *size)).astype(np.float32)
    weight = rng.normal(size=problem.filter_shape).astype(np.float32)
    truth = reference.conv(x.astype(np.float64), weight.astype(np.float64), problem)
    error = winograd_conv(x, weight, problem, matrices) - truth
    relative = float(np.sqrt((error**2).mean() / (truth**2).mean()))
    bound = U * winograd_growth(matrices) ** axes * winograd_roundings(problem, matrices) ** 0.5
    assert bound / 5 < relative < bound / 2
