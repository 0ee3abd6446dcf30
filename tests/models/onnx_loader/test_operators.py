"""All operators: their typed nodes compute the same as ONNX Runtime, at every N."""

import numpy as np
import onnx
import pytest

from kernels.problems.activation import ActivationKind
from models.errors import UnsupportedModelError
from models.onnx_loader import load_proto, meaning, one_image
from models.onnx_loader.operators import OPERATORS
from models.rewrite import rewrite
from tests.support.models.graphs import kinds
from tests.support.models.onnx_chains import Weights, assert_same_at_every_n, model, node, noise

Chain = tuple[list[onnx.NodeProto], Weights, list[str]]  # and what is left once rewritten

CHAINS: dict[str, Chain] = {
    "Max of two": ([node("Sigmoid", "x", "a"), node("Max", "x a")], {}, ["Activate", "Binary"]),
    "Max of three": (
        [node("Sigmoid", "x", "a"), node("Max", "x a c")],
        {"c": noise(4, 1, 1)},
        ["Activate", "Binary", "Binary"],
    ),
    "Min of one number": ([node("Min", "x c")], {"c": np.array(0.3, np.float32)}, ["Binary"]),
    "PRelu, a slope a channel": ([node("PRelu", "x c")], {"c": noise(4, 1, 1)}, ["Binary"]),
    "PRelu, one slope": ([node("PRelu", "x c")], {"c": noise(1, 1, 1)}, ["Activate"]),
    "Elu": ([node("Elu", "x", alpha=0.7)], {}, ["Activate"]),
    "Selu": ([node("Selu", "x")], {}, ["Activate"]),
    "Softplus": ([node("Softplus", "x")], {}, ["Activate"]),
    "Mish": ([node("Mish", "x")], {}, ["Activate"]),
    "Mish spelled out": (
        [node("Softplus", "x", "a"), node("Tanh", "a", "b"), node("Mul", "x b")],
        {},
        ["Activate"],
    ),
    "Gelu by tanh spelled out": (
        [
            node("Mul", "x x", "a"),
            node("Mul", "a x", "b"),
            node("Mul", "b k", "c"),
            node("Add", "x c", "d"),
            node("Mul", "d r", "e"),
            node("Tanh", "e", "f"),
            node("Add", "f one", "g"),
            node("Mul", "x half", "h"),
            node("Mul", "h g"),
        ],
        {
            "k": np.array(0.044715, np.float32),
            "r": np.array(np.sqrt(2 / np.pi), np.float32),
            "one": np.array(1, np.float32),
            "half": np.array(0.5, np.float32),
        },
        ["Activate"],
    ),
    "Abs": ([node("Abs", "x")], {}, ["ScaleShift", "Binary"]),
    "Neg": ([node("Neg", "x")], {}, ["ScaleShift"]),
    "Pow 2": ([node("Pow", "x c")], {"c": np.array(2, np.float32)}, ["Binary"]),
    "Pow 3": ([node("Pow", "x c")], {"c": np.array(3, np.float32)}, ["Binary", "Binary"]),
    "Sqrt and Reciprocal of a positive value": (
        [node("Sigmoid", "x", "a"), node("Sqrt", "a", "b"), node("Reciprocal", "b")],
        {},
        ["Activate", "Activate", "Binary"],
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_an_operator_computes_what_onnxruntime_does(name: str) -> None:
    nodes, weights, left = CHAINS[name]
    original = model(nodes, weights, opset=18)
    loaded = load_proto("m", original)
    assert_same_at_every_n(original, loaded)
    assert kinds(rewrite(loaded.graph)) == left


def test_other_powers_are_refused() -> None:
    original = model([node("Pow", "x c")], {"c": np.array(2.5, np.float32)})
    with pytest.raises(UnsupportedModelError, match=r"the exponent \[2.5\] is not supported; only"):
        load_proto("m", original)


def test_each_activation_is_known_where_operators_are_listed_by_what_they_do() -> None:
    names = {kind.value for kind in ActivationKind} & OPERATORS.keys()
    assert len(names) == len(ActivationKind) - 2  # SiLU is Swish, and GeluTanh a Gelu
    assert names <= one_image._MOVED.keys()
    assert names <= {*meaning._BOUNDED, *meaning._WITHOUT_BOUNDS, *meaning._RULES}
