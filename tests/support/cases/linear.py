"""Lists cases of linear.cu."""

import numpy as np

from kernels.layout.pixels import Pixels
from kernels.operations.linear import linear_launch, prepare_linear_weight
from kernels.problems.activation import RELU, Activation, ActivationKind
from tests.support.cases.conv import activated_bound, exact, size
from tests.support.kernels import reference
from tests.support.kernels.arrays import normal
from tests.support.kernels.conv_layers import CLIP, dense, filled, odd, within
from tests.support.kernels.kernel_case import Check, KernelCase, PlacedArray, placed
from tests.support.tolerance import EPS32


def linear_case(
    name: str, rows: int, x: Pixels, y: Pixels, bias: bool, activation: Activation | None
) -> KernelCase:
    """Return a case of the product of x's rows and a weight's rows."""
    launch = linear_launch(rows, x, y, bias, activation)

    def check() -> Check:
        x_layout, y_layout = x.strided(rows, ()), y.strided(rows, ())
        numbers = normal(x_layout.shape, 1, x.stored)
        weight = normal((y.channels, x.channels), 2, x.stored)
        added = normal((y.channels,), 3) * np.float32(bias)
        sums, terms = (reference.gemm(of(numbers), of(weight), of(added)) for of in (exact, size))
        inputs = {
            "x": placed(numbers, x_layout),
            "weight": PlacedArray(prepare_linear_weight(weight, x.stored)),
            "bias": PlacedArray(added),
        }
        return Check(
            {name: inputs[name] for name in inputs if name in launch.operands},
            y_layout,
            reference.activate(sums, activation),
            activated_bound(sums, (x.channels + 4) * EPS32 * terms, activation),
        )

    sizes = f"{rows} x {x.channels} to {y.channels}"
    return KernelCase(f"{name}: {sizes}", (launch,), check)


LINEAR_CASES: tuple[KernelCase, ...] = (
    *(
        linear_case(name, rows, x(c), y(k), rows % 2 == 1, activation)
        for name, c, k, x, y, activation in (
            ("as in the digits model", 128, 10, dense, dense, None),
            ("more channels than a block's threads", 1500, 9, dense, filled, RELU),
            ("uneven", 37, 21, odd, odd, CLIP),
            ("filled up", 5, 7, filled, within, Activation(ActivationKind.TANH)),
            ("one", 1, 1, dense, dense, None),
        )
        for rows in (1, 2, 3, 4, 5, 8)
    ),
    linear_case("many rows", 19, dense(68), dense(12), True, RELU),
    linear_case("64 rows", 64, within(30), within(6), False, None),
)
