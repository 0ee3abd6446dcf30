"""Two ScaleShifts in a row become one."""

import numpy as np

from kernels.problems.activation import RELU
from tests.support.models.graphs import GraphBuilder, kinds, only_scale_shift, refusals, rewritten

SHAPE = (4, 6, 6)


def test_two_in_a_row_are_one() -> None:
    b = GraphBuilder(x=SHAPE)
    b.scale_shift("y", b.scale_shift("n", "x"), RELU)
    node, s, t = only_scale_shift(rewritten(b.build("y"), rounds=True))
    w = {name: array.astype(np.float64) for name, array in b.weights.items()}
    np.testing.assert_array_equal(s, np.float32(w["y.s"] * w["n.s"]))
    np.testing.assert_array_equal(t, np.float32(w["y.s"] * w["n.t"] + w["y.t"]))
    assert node.activation == RELU


def test_two_with_an_activation_between_stay_two() -> None:
    b = GraphBuilder(x=SHAPE)
    b.scale_shift("y", b.scale_shift("n", "x", RELU))
    result = rewritten(b.build("y"))
    assert kinds(result) == ["ScaleShift", "ScaleShift"]
    assert refusals(result, "merge_scale_shifts") == {
        "scaleshift_y": "scaleshift_n has the activation Relu"
    }
