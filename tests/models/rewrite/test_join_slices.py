"""Slices that are concatenated in their original order are joined again."""

import numpy as np

from kernels.problems.binary_operation import BinaryOp
from tests.support.models.graphs import GraphBuilder, kinds, only_scale_shift, rewritten


def test_channels_scaled_apart_are_scaled_together() -> None:
    # torchvision's GoogLeNet and Inception v3 normalise their input so.
    b = GraphBuilder(x=(3, 6, 6))
    scaled = []
    for c in range(3):
        b.reshape(f"g{c}", b.slice(f"s{c}", "x", c, c + 1), (6, 6))
        b.reshape(f"u{c}", f"g{c}", (1, 6, 6))
        b.binary(f"m{c}", BinaryOp.MUL, f"u{c}", 0.4 + c)
        scaled.append(b.binary(f"a{c}", BinaryOp.ADD, f"m{c}", 0.1 - c))
    b.concat("y", *scaled)
    _, s, t = only_scale_shift(rewritten(b.build("y"), rounds=True))
    np.testing.assert_allclose(s, [0.4, 1.4, 2.4], rtol=1e-7)
    np.testing.assert_allclose(t, [0.1, -0.9, -1.9], rtol=1e-7)


def test_slices_in_another_order_stay_apart() -> None:
    b = GraphBuilder(x=(16, 6, 6))
    low, high = b.slice("low", "x", 0, 8), b.slice("high", "x", 8, 16)
    b.conv("y", b.concat("k", high, low))
    assert kinds(rewritten(b.build("y"))) == ["Slice", "Slice", "Conv"]


def test_slices_of_two_values_stay_apart() -> None:
    b = GraphBuilder(x=(16, 6, 6), z=(16, 6, 6))
    b.conv("y", b.concat("k", b.slice("low", "x", 0, 8), b.slice("high", "z", 8, 16)))
    assert kinds(rewritten(b.build("y"))) == ["Slice", "Slice", "Conv"]


def test_slices_that_leave_channels_out_stay_apart() -> None:
    b = GraphBuilder(x=(24, 6, 6))
    b.conv("y", b.concat("k", b.slice("low", "x", 0, 8), b.slice("high", "x", 8, 16)))
    assert kinds(rewritten(b.build("y"))) == ["Slice", "Slice", "Conv"]
