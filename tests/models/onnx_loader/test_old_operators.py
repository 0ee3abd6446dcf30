"""One node for each operator that changed its form or meaning, in each old opset.

The normalised model, and the typed graph if kernels run it, compute the same as ONNX Runtime with
the original file.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.onnx_loader import FileLimits, load_proto, read_model
from tests.support.models.reference import run_reference
from tests.support.onnx_models import run_onnxruntime

IMAGE = (4, 6, 6)
_RNG = np.random.default_rng(3)
X = _RNG.normal(0, 1, (2, *IMAGE)).astype(np.float32)
VECTOR = _RNG.normal(0, 1, (2, 5)).astype(np.float32)


def positive(*shape: int) -> NDArray[np.float32]:
    return _RNG.uniform(0.5, 1.5, shape).astype(np.float32)


def whole(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


@dataclass(frozen=True)
class Case:
    """A node in some opsets; `runs` states whether kernels also run it."""

    op: str
    opsets: tuple[int, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    runs: bool = True
    x: NDArray[np.float32] = field(default_factory=lambda: X)
    skipped: int = 0  # inputs left out between x and the weights

    def __str__(self) -> str:
        told = (f"{key}={value}" for key, value in self.attributes.items())
        shapes = (
            str(np.ravel(value)[:6].tolist()) if np.size(value) < 7 else str(np.shape(value))
            for value in self.weights.values()
        )
        return " ".join((self.op, *told, *shapes)).replace("'", "")

    def model(self, opset: int) -> onnx.ModelProto:
        """Return the model of this node in that opset, for any batch."""
        inputs = ["x", *[""] * self.skipped, *self.weights]
        node = helper.make_node(self.op, inputs, ["y"], name="the_node", **self.attributes)
        sizes = ["N", *[None] * (self.x.ndim - 1)]
        graph = helper.make_graph(
            [node],
            "one",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *self.x.shape[1:]])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, sizes)],
            [numpy_helper.from_array(np.asarray(v), name) for name, v in self.weights.items()],
        )
        opsets = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


BEFORE_INPUTS = (7, 9, 11, 12)  # axes are attributes
SINCE_11 = (11, 12, 13, 17, 18, 19, 22)
NEW = (25, 26)  # newer than the normal form
FLOATS = {"s": positive(4), "b": positive(4), "m": positive(4), "v": positive(4)}
ELEMENTS = {name: positive(*IMAGE) for name in "sbmv"}
UP, DOWN, MIXED, BOTH = (
    np.array([1, 1, *by], np.float32) for by in ((2.7, 1.3), (0.4, 0.7), (1.3, 0.7), (0.5, 3))
)

CASES = [
    # Resampling: positions, rounding, sizes.
    *(
        Case("Upsample", (7, 8), {"mode": mode, "scales": [1.0, 1.0, *by]})
        for mode in ("nearest", "linear")
        for by in ((2.0, 2.0), (1.5, 3.0), (2.7, 1.3), (1.0, 1.0))
    ),
    *(
        Case(op, opsets, {"mode": mode}, {"s": scales})
        for mode in ("nearest", "linear")
        for op, opsets, scales in (
            *(("Upsample", (9,), by) for by in (UP, np.array([1, 1, 2, 2], np.float32))),
            *(("Resize", (10,), by) for by in (UP, DOWN, MIXED, BOTH)),
        )
    ),
    *(
        Case(
            "Resize",
            SINCE_11,
            {"mode": mode, "coordinate_transformation_mode": at} | more,
            {"r": np.zeros(0, np.float32), "s": scales},
            runs=(mode, at) != ("linear", "align_corners"),
        )
        for mode, more in (
            ("linear", {}),
            *(
                ("nearest", {"nearest_mode": rounding})
                for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
            ),
        )
        for at in ("half_pixel", "pytorch_half_pixel", "asymmetric")
        for scales in (UP, DOWN)
    ),
    Case(
        "Resize",
        SINCE_11,
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"r": np.zeros(0, np.float32), "s": np.zeros(0, np.float32), "z": whole(1, 4, 11, 3)},
    ),
    Case(
        "Resize",
        (11, 12),
        {"mode": "nearest", "coordinate_transformation_mode": "tf_half_pixel_for_nn"},
        {"r": np.zeros(0, np.float32), "s": UP},
        runs=False,
    ),
    Case(
        "Resize",
        (19, 22),
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
        {"s": UP},
        runs=False,
        skipped=1,
    ),
    Case("Resize", (18, 22), {"mode": "linear", "antialias": 1}, {"s": DOWN}, False, skipped=1),
    Case("Resize", (11, 13, 19), {"mode": "cubic"}, {"r": np.zeros(0, np.float32), "s": UP}, False),
    # Axes that flatten all that follow, before opset 13.
    *(
        Case(op, (7, 11, 12, 13, 22), {"axis": axis} if axis is not None else {}, x=x)
        for op in ("Softmax", "LogSoftmax")
        for axis, x in ((None, VECTOR), (1, VECTOR), (None, X[:, :, 0]), (1, X), (3, X))
    ),
    Case("Hardmax", (7, 11, 13), {"axis": 1}, runs=False),
    # Normalisation.
    Case("BatchNormalization", (7, 8, 9, 13, 14, 15, 22), {"epsilon": 0.1}, FLOATS),
    Case("BatchNormalization", (7, 8), {"epsilon": 0.1, "spatial": 1}, FLOATS),
    Case("BatchNormalization", (7, 8), {"epsilon": 0.1, "spatial": 0}, ELEMENTS),
    Case("InstanceNormalization", (7, 22), {"epsilon": 0.1}, {"s": positive(4), "b": positive(4)}),
    *(
        Case(
            "GroupNormalization",
            opsets,
            {"epsilon": 0.1, "num_groups": groups},
            {"s": positive(size), "b": positive(size)},
        )
        for groups in (1, 2, 4)
        for opsets, size in (((18, 19, 20), groups), ((21, 22, 24), 4))
    ),
    Case("LayerNormalization", (17, 22), {"axis": 1}, {"s": positive(*IMAGE)}),
    Case("MeanVarianceNormalization", (7, 8), {"across_channels": 1}),
    Case("MeanVarianceNormalization", (7, 8), {"normalize_variance": 0}),
    Case("MeanVarianceNormalization", (9, 13), {"axes": [2, 3]}, runs=False),
    Case("LRN", (7, 13), {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 2.0}),
    Case("LpNormalization", (7, 22), {"axis": 1}, runs=False),
    # Experimental operators that later opsets dropped.
    Case("ImageScaler", (7, 9), {"scale": 2.0, "bias": [1.0, 2.0, 3.0, 4.0]}),
    Case("Affine", (7, 9), {"alpha": 2.0, "beta": 0.5}),
    Case("Scale", (7, 9), {"scale": 0.3}),
    Case("ScaledTanh", (7, 9), {"alpha": 2.0, "beta": 0.5}),
    Case("ParametricSoftplus", (7, 9), {"alpha": 2.0, "beta": 0.5}),
    Case("Crop", (7, 9), {"border": [1, 2, 1, 0]}),
    Case("Crop", (7, 9), {"border": [1, 2, 0, 0], "scale": [3, 2]}),
    Case("DynamicSlice", (7, 9), {}, {"b": whole(1, 2), "e": whole(6, 4), "a": whole(2, 3)}),
    Case("ThresholdedRelu", (7, 9, 10, 22), {"alpha": 0.3}, runs=False),
    # Attributes that became inputs.
    Case("Clip", (7, 10), {"min": -0.5, "max": 0.7}),
    Case("Clip", (7, 10), {"min": 0.0}),
    Case("Clip", (11, 12, 13), {}, {"a": np.float32(-0.5), "b": np.float32(0.7)}),
    Case("Clip", (11, 12, 13), {}, {"b": np.float32(0.7)}, skipped=1),
    Case("Dropout", (7, 10), {"ratio": 0.7}),
    Case("Dropout", (12, 13, 22), {}, {"r": np.float32(0.7)}),
    Case("Pad", (7, 10), {"pads": [0, 0, 1, 2, 0, 0, 0, 1], "value": 0.5}),
    Case("Pad", (7, 10), {"pads": [0, 0, -1, 2, 0, 0, 0, -1], "mode": "constant"}),
    Case("Pad", (7, 10), {"pads": [0, 0, 1, 2, 0, 0, 0, 1], "mode": "reflect"}),
    Case("Pad", (7, 10), {"pads": [0, 0, 1, 2, 0, 0, 0, 1], "mode": "edge", "value": 0.5}),
    Case("Pad", (7, 10), {"pads": [0, 0, 1, 2, 0, 0, 0, 1], "mode": "edge"}),
    Case("Pad", (11, 18, 21), {}, {"p": whole(0, 0, 1, 2, 0, 0, 0, 1), "v": np.float32(0.5)}),
    Case("Squeeze", BEFORE_INPUTS, {"axes": [2, 3]}, x=X[:, :, :1, :1]),
    Case("Unsqueeze", BEFORE_INPUTS, {"axes": [2, 3]}, x=VECTOR),
    Case("Slice", (7, 9), {"starts": [1, -3], "ends": [3, 100], "axes": [2, 3]}),
    Case("Slice", (10, 13), {}, {"s": whole(1, -3), "e": whole(3, 100), "a": whole(2, 3)}),
    *(
        Case(f"Reduce{kind}", (*BEFORE_INPUTS, 13, 17), {"axes": axes, "keepdims": keep}, runs=run)
        for kind, run in (
            *((kind, True) for kind in ("Max", "Mean", "Min", "L2")),
            *((kind, False) for kind in ("L1", "LogSumExp", "Prod", "SumSquare")),
        )
        for axes, keep in (([2, 3], 1), ([1, -1], 0))
    ),
    Case("ReduceSum", BEFORE_INPUTS, {"axes": [2, 3]}),
    Case("ReduceSum", (13, 18), {"keepdims": 0}, {"a": whole(2, 3)}),
    *(
        Case(f"Reduce{kind}", (18, 22, 24), {"noop_with_empty_axes": 1}, weights, runs=run)
        for kind, run in (
            *((kind, True) for kind in ("Max", "Mean", "Min", "Sum", "L2")),
            *((kind, False) for kind in ("L1", "LogSumExp", "Prod", "SumSquare")),
        )
        for weights in ({}, {"a": np.zeros(0, np.int64)})
    ),
    # Pools: what counts as padding, and the last window.
    *(
        Case(
            "AveragePool",
            (7, 9, 10, 11, 19, 22) if not ceil else (10, 11, 19, 22),
            {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
            | {"count_include_pad": count}
            | ({"ceil_mode": 1} if ceil else {}),
        )
        for count in (0, 1)
        for ceil in (0, 1)
    ),
    Case("AveragePool", (7, 11, 22), {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER"}),
    Case("AveragePool", (7, 11, 22), {"kernel_shape": [2, 3], "auto_pad": "SAME_LOWER"}),
    Case("MaxPool", (7, 8, 22), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 0]}),
    Case("MaxPool", (10, 11, 22), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    Case("LpPool", (7, 11, 18), {"kernel_shape": [2, 2], "p": 3}, runs=False),
    Case("GlobalAveragePool", (7, 22)),
    # Layers, elements, moves.
    Case("Conv", (7, 11, 22), {"pads": [1, 1, 1, 1]}, {"w": positive(3, 4, 3, 3)}),
    Case("Conv", (7, 11, 22), {"auto_pad": "SAME_LOWER"}, {"w": positive(3, 4, 2, 2)}),
    Case(
        "Gemm",
        (7, 9, 11, 13),
        {"alpha": 0.5, "beta": 2.0, "transB": 1},
        {"w": positive(3, 5), "b": positive(3)},
        x=VECTOR,
    ),
    Case("Gemm", (7, 9), {}, {"w": positive(5, 3), "b": positive(1, 3)}, x=VECTOR),
    Case("MatMul", (7, 9, 13), {}, {"w": positive(5, 3)}, x=VECTOR),
    Case("PRelu", (7, 9, 16), {}, {"s": positive(4, 1, 1)}),
    Case("Elu", (7, 22), {"alpha": 0.6}),
    Case("HardSigmoid", (7, 22), {"alpha": 0.3}),
    Case("LeakyRelu", (7, 16), {"alpha": 0.3}),
    Case("Selu", (7, 22), {"alpha": 1.5}),
    Case("HardSwish", (14, 22)),
    Case("Add", (7, 13, 14), {}, {"b": positive(4, 1, 1)}),
    Case("Pow", (7, 12, 13, 15), {}, {"e": np.float32(2)}),
    Case("Max", (8, 13), {}, {"b": positive(4, 1, 1)}),
    Case("Mean", (8, 13), {}, {"b": positive(4, 1, 1)}, runs=False),
    Case("Flatten", (7, 9, 11, 13, 21, *NEW), {"axis": 1}),
    Case("Reshape", (7, 13, 14, *NEW), {}, {"s": whole(0, 24, -1)}),
    Case("Transpose", (7, 13, *NEW), {"perm": [0, 2, 3, 1]}),
    Case("DepthToSpace", (7, 11, 13), {"blocksize": 2}),
    Case("DepthToSpace", (11, 13), {"blocksize": 2, "mode": "CRD"}),
    Case("Gather", (7, 11, 13), {"axis": 1}, {"i": whole(2, 0)}),
    Case("Expand", (8, 13), {}, {"s": whole(1, 4, 6, 6)}),
    Case("Tile", (7, 13), {}, {"r": whole(1, 1, 2, 2)}, runs=False),
    Case("Cast", (7, 9, 13, 19, *NEW), {"to": 1}),
    Case("Identity", (7, 13, 14, *NEW)),
    Case("Relu", (7, 13, 14, *NEW)),
    Case("Pad", NEW, {}, {"p": whole(0, 0, 1, 2, 0, 0, 0, 1)}),
    Case("Squeeze", NEW, {}, {"a": whole(2, 3)}, x=X[:, :, :1, :1]),
    Case("Unsqueeze", NEW, {}, {"a": whole(2, 3)}, x=VECTOR),
]
ROWS = [pytest.param(case, opset, id=f"{case} {opset}") for case in CASES for opset in case.opsets]


@pytest.mark.parametrize(("case", "opset"), ROWS)
def test_a_node_of_an_old_opset_computes_what_onnx_runtime_does(
    tmp_path: Path, case: Case, opset: int
) -> None:
    path = tmp_path / "one.onnx"
    path.write_bytes(case.model(opset).SerializeToString())
    given = read_model(path, FileLimits())
    loaded = load_proto("one", given, opaque=True)
    assert case.runs == (not loaded.no_kernels), loaded.no_kernels
    alone = [case.x[:1], case.x[1:]]
    expected = [run_onnxruntime(given, {"x": x})["y"] for x in alone]
    if not case.runs:
        singles = [run_onnxruntime(loaded.proto, {"x": x})["y"] for x in alone]
        np.testing.assert_allclose(singles, expected, rtol=1e-5, atol=1e-5)
        return
    (normal,) = run_onnxruntime(loaded.proto, {"x": case.x}).values()
    (typed,) = run_reference(loaded.graph, {"x": case.x}).values()
    for actual in (normal, typed):
        np.testing.assert_allclose(actual, np.concatenate(expected), rtol=1e-5, atol=1e-5)
