"""Running graphs: fused epilogues, values inside others, broadcasting, and refusals."""

import tracemalloc
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind, PoolProblem
from kernels.problems.precision import BYTE
from kernels.problems.reduction import ReduceKind
from models.cost import flops_per_image
from models.engines.tolerance import network_tolerance
from models.graph import (
    Activate,
    Attention,
    Binary,
    ChannelShuffle,
    ChannelSlice,
    Concat,
    Constant,
    Conv,
    Dequantize,
    Expand,
    Gemm,
    GlobalPool,
    Graph,
    GraphError,
    Identity,
    Lrn,
    Node,
    Normalise,
    Pad,
    Pool,
    Product,
    Quantize,
    Reduce,
    Resample,
    Reshape,
    ScaleShift,
    Shape,
    Slice,
    Softmax,
    Transpose,
    Value,
    operand,
)
from models.precision import beyond_half
from tests.support.kernels import reference as ops
from tests.support.kernels.arrays import BOTH_TYPES, Float, normal
from tests.support.kernels.windows import conv_problem, window
from tests.support.models.reference import run_reference

HALVING = PoolProblem(PoolKind.MAX, 4, window((6, 6), (2, 2), strides=(2, 2)))
SAME = window((6, 6), (3, 3), pads=(1, 1, 1, 1))


def one_node(node: Node, x: Shape, y: Shape, **weights: NDArray[np.float32]) -> Graph:
    """Return the graph x → node → y."""
    shapes = {"x": Value("x", x), "y": Value("y", y)}
    return Graph("one", ("x",), ("y",), shapes, (node,), weights)


IMAGE = (4, 6, 6)
Row = tuple[Node, Shape, dict[str, NDArray[np.float32]]]
NODES: list[Row] = [
    (
        Conv(
            name="n",
            output="y",
            x="x",
            weight="w",
            bias="b",
            residual="x",
            problem=conv_problem(1, 4, 4, SAME),
            activation=RELU,
        ),
        IMAGE,
        {"w": normal((4, 4, 3, 3)), "b": normal((4,))},
    ),
    (
        Gemm(name="n", output="y", x="x", weight="w", bias="b"),
        (4, 6, 2),
        {"w": normal((2, 6)), "b": normal((2,))},
    ),
    (
        Attention(name="n", output="y", q="x", k="x", v="x", bias="w", scale=0.4),
        IMAGE,
        {"w": normal((6, 6))},
    ),
    (Product(name="n", output="y", a="x", b="w"), (4, 6, 2), {"w": normal((6, 2))}),
    (Pool(name="n", output="y", x="x", problem=HALVING), (4, 3, 3), {}),
    (GlobalPool(name="n", output="y", x="x", kind=PoolKind.AVERAGE), (4, 1, 1), {}),
    (
        ScaleShift(name="n", output="y", x="x", scale="s", shift="t", activation=RELU),
        IMAGE,
        {"s": normal((4,)), "t": normal((4,))},
    ),
    (Lrn(name="n", output="y", x="x", size=3, alpha=0.1, beta=0.7, bias=1.0), IMAGE, {}),
    (
        Normalise(
            name="n",
            output="y",
            x="x",
            scale="s",
            shift="t",
            axes=(0, 1, 2),
            epsilon=1e-3,
            groups=2,
            activation=RELU,
        ),
        IMAGE,
        {"s": normal((4, 1, 1)), "t": normal((4, 1, 1))},
    ),
    (Reduce(name="n", output="y", x="x", kind=ReduceKind.L2, axes=(0, 2)), (1, 6, 1), {}),
    (
        Resample(name="n", output="y", x="x", taps=("h", "w")),
        (4, 2, 1),
        {
            "h": np.array([[[0, 0.5], [5, 0.5]], [[1, 1], [2, 0]]], np.float32),
            "w": np.array([[[3, 1]]], np.float32),
        },
    ),
    (Binary(name="n", output="y", a="x", b="w", op=BinaryOp.SUB), IMAGE, {"w": normal((6,))}),
    (
        Activate(name="n", output="y", x="x", activation=Activation(ActivationKind.GELU)),
        IMAGE,
        {},
    ),
    (Concat(name="n", output="y", parts=("x", "x"), axis=1), (4, 12, 6), {}),
    (Slice(name="n", output="y", x="x", axis=1, start=1, stop=6, step=2), (4, 3, 6), {}),
    (Reshape(name="n", output="y", x="x", channels_last=True), (144,), {}),
    (Transpose(name="n", output="y", x="x", axes=(2, 0, 1)), (6, 4, 6), {}),
    (ChannelShuffle(name="n", output="y", x="x", groups=2), IMAGE, {}),
    (
        Pad(name="n", output="y", x="x", begin=(0, 1, 0), end=(1, 0, 2), value=0.5),
        (5, 7, 8),
        {},
    ),
    (Softmax(name="n", output="y", x="x", axis=0, log=True), IMAGE, {}),
    (Identity(name="n", output="y", x="x"), IMAGE, {}),
    (Quantize(name="n", output="y", x="x"), IMAGE, {}),
    (Dequantize(name="n", output="y", x="x"), IMAGE, {}),
    (Expand(name="n", output="y", x="x"), (2, *IMAGE), {}),
    (Constant(name="n", output="y", weight="w"), (3,), {"w": normal((3,))}),
]
EVERY_NODE = pytest.mark.parametrize("row", NODES, ids=lambda row: type(row[0]).__name__)


@BOTH_TYPES
@EVERY_NODE
def test_every_node_treats_each_image_alone(row: Row, dtype: Float) -> None:
    node, shape, weights = row
    graph = one_node(node, IMAGE, shape, **weights)
    x = normal((3, *IMAGE))
    together = run_reference(graph, {"x": x}, dtype)["y"]
    assert together.dtype == dtype
    for i in range(3):
        alone = run_reference(graph, {"x": x[i : i + 1]}, dtype)["y"]
        assert np.array_equal(together[i : i + 1], alone)


def test_every_node_type_is_run() -> None:
    known = {kind for kind in Node.__subclasses__() if kind.__module__ == Node.__module__}
    assert {type(node) for node, *_ in NODES} == known


@EVERY_NODE
def test_every_node_has_a_cost_a_bound_and_a_way_to_halves(row: Row) -> None:
    """A forgotten node raises TypeError, instead of giving a number that is too small."""
    node, shape, weights = row
    graph = one_node(node, IMAGE, shape, **weights)
    assert flops_per_image(graph, node) >= 0
    assert network_tolerance(graph) > 0
    assert set(beyond_half(graph)) <= {node.name}


def test_a_node_that_is_forgotten_is_an_error() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Forgotten(Node):
        x: str = operand()
        weight: str = operand()

    node = Forgotten(name="n", output="y", x="x", weight="w")
    graph = one_node(node, IMAGE, IMAGE, w=normal((3,)))
    for rule in (network_tolerance, beyond_half, partial(flops_per_image, node=node)):
        with pytest.raises(TypeError, match="Forgotten"):
            rule(graph)


def test_epilogue_adds_bias_then_residual_then_activates() -> None:
    node, shape, weights = NODES[0]
    assert isinstance(node, Conv)
    x = normal((2, *IMAGE)).astype(np.float64)
    filters, bias = (weights[name].astype(np.float64) for name in "wb")
    plain = ops.conv(x, filters, node.problem.with_batch(2))
    y = run_reference(one_node(node, IMAGE, shape, **weights), {"x": x})["y"]
    assert np.allclose(y, np.maximum(plain + bias[:, None, None] + x, 0), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (BinaryOp.ADD, 8.0),
        (BinaryOp.SUB, 4.0),
        (BinaryOp.MUL, 12.0),
        (BinaryOp.DIV, 3.0),
        (BinaryOp.MAX, 6.0),
        (BinaryOp.MIN, 2.0),
        (BinaryOp.PRELU, 6.0),
    ],
    ids=lambda entry: entry.name if isinstance(entry, BinaryOp) else None,
)
def test_binary_takes_its_operands_in_order(op: BinaryOp, expected: float) -> None:
    node = Binary(name="n", output="y", a="x", b="w", op=op)
    graph = one_node(node, (1,), (1,), w=np.array([2.0], np.float32))
    assert run_reference(graph, {"x": np.array([[6.0]])})["y"].item() == expected
    graph = one_node(node.renamed({"x": "w", "w": "x"}), (1,), (1,), w=np.array([6.0], np.float32))
    assert run_reference(graph, {"x": np.array([[2.0]])})["y"].item() == expected


def test_values_of_different_rank_broadcast_within_the_image() -> None:
    # With n = 6 the batch axis of a plain NumPy broadcast would meet W instead.
    shapes = {"x": Value("x", IMAGE), "row": Value("row", (6,)), "y": Value("y", IMAGE)}
    node = Binary(name="n", output="y", a="x", b="row", op=BinaryOp.ADD)
    graph = Graph("ranks", ("x", "row"), ("y",), shapes, (node,), {})
    x, row = normal((6, *IMAGE)), normal((6, 6), 1)
    y = run_reference(graph, {"x": x, "row": row}, np.float32)["y"]
    assert np.array_equal(y, x + row[:, None, None, :])


# Values inside others


def concat_of_convs(fused: bool) -> Graph:
    """Return x → (a, (b, c)) → y, a concat within a concat; c reads b from its place."""

    def conv(x: str, output: str, c: int, k: int) -> Conv:
        problem = conv_problem(1, c, k, SAME)
        return Conv(name=output, output=output, x=x, weight=f"w_{output}", problem=problem)

    shapes = {name: (k, 6, 6) for name, k in {"x": 4, "a": 3, "b": 2, "c": 5, "bc": 7}.items()}
    inside = {"a": ("y", 0), "bc": ("y", 3), "b": ("bc", 0), "c": ("bc", 2)}
    known = {
        name: Value(name, shape, ChannelSlice(*inside[name]) if fused and name in inside else None)
        for name, shape in {**shapes, "y": (10, 6, 6)}.items()
    }
    convs: tuple[Node, ...] = (conv("x", "b", 4, 2), conv("b", "c", 2, 5), conv("bc", "a", 7, 3))
    inner = Concat(name="inner", parts=("b", "c"), output="bc", axis=0)
    outer = Concat(name="outer", parts=("a", "bc"), output="y", axis=0)
    nodes = convs if fused else (*convs[:2], inner, convs[2], outer)
    weights = {
        node.weight: normal(node.problem.filter_shape, seed)
        for seed, node in enumerate(convs)
        if isinstance(node, Conv)
    }
    return Graph("concat", ("x",), ("y",), known, nodes, weights)


def test_writing_at_a_channel_offset_is_a_concat() -> None:
    x = {"x": normal((2, *IMAGE))}
    fused, plain = concat_of_convs(fused=True), concat_of_convs(fused=False)
    assert np.array_equal(run_reference(fused, x)["y"], run_reference(plain, x)["y"])


def test_all_values_of_a_fused_concat_are_those_of_the_plain_one() -> None:
    x = {"x": normal((2, *IMAGE))}
    plain = run_reference(concat_of_convs(fused=False), x, all_values=True)
    fused = run_reference(concat_of_convs(fused=True), x, all_values=True)
    assert set(fused) == set(plain) == {"x", "a", "b", "c", "bc", "y"}
    for name, value in plain.items():
        assert np.array_equal(fused[name], value), name


# What is refused, and what is freed


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "takes"),
        ({"x": normal((1, *IMAGE)), "z": normal((1,))}, "takes"),
        ({"x": normal(IMAGE)}, "input x has shape"),
        ({"x": normal((0, *IMAGE))}, "input x has shape"),
        ({"x": normal((1, 4, 6, 5))}, "input x has shape"),
    ],
    ids=["missing", "unknown", "no batch axis", "empty batch", "other size"],
)
def test_wrong_inputs_are_refused(inputs: dict[str, NDArray[np.float32]], message: str) -> None:
    graph = one_node(Identity(name="n", output="y", x="x"), IMAGE, IMAGE)
    with pytest.raises(ValueError, match=message):
        run_reference(graph, inputs)


def test_inputs_of_different_batches_are_refused() -> None:
    shapes = {name: Value(name, (2,)) for name in ("x", "z", "y")}
    node = Binary(name="n", output="y", a="x", b="z", op=BinaryOp.ADD)
    graph = Graph("two", ("x", "z"), ("y",), shapes, (node,), {})
    with pytest.raises(ValueError, match="one batch size"):
        run_reference(graph, {"x": normal((1, 2)), "z": normal((3, 2))})


def test_a_node_that_computes_another_shape_than_the_graph_says_is_refused() -> None:
    graph = one_node(Transpose(name="n", output="y", x="x", axes=(0, 2, 1)), (2, 3, 4), (2, 3, 4))
    with pytest.raises(GraphError, match=r"y was computed as float64 \(1, 2, 4, 3\)"):
        run_reference(graph, {"x": normal((1, 2, 3, 4))})


def test_a_node_without_a_reference_is_refused() -> None:
    class Unheard(Node):
        x: str = operand()

    node = Unheard(name="n", output="y")
    graph = one_node(node, IMAGE, IMAGE)
    with pytest.raises(TypeError, match="no reference for Unheard"):
        run_reference(graph, {"x": normal((1, *IMAGE))})


def test_a_long_chain_holds_few_values_at_once() -> None:
    links = 40
    names = ["x", *(f"v{i}" for i in range(links)), "y"]
    shape = (1000,)
    nodes = tuple(Activate(name=b, x=a, output=b, activation=RELU) for a, b in pairwise(names))
    values = {name: Value(name, shape) for name in names}
    graph = Graph("chain", ("x",), ("y",), values, nodes, {})
    x = normal((50, *shape))
    tracemalloc.start()
    run_reference(graph, {"x": x})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * x.size * np.dtype(np.float64).itemsize


@BOTH_TYPES
def test_a_quantized_value_has_the_numbers_of_its_bytes(dtype: Float) -> None:
    stored = replace(BYTE, scale=0.25, zero_point=100)
    values = {
        "x": Value("x", (1, 1, 7)),
        "q": Value("q", (1, 1, 7), stored=stored),
        "y": Value("y", (1, 1, 7)),
    }
    nodes = (Quantize(name="q", output="q", x="x"), Dequantize(name="y", output="y", x="q"))
    graph = Graph("one", ("x",), ("y",), values, nodes, {})
    x = np.array([0, 0.125, 0.375, -0.1, 38.9, -26, np.inf], dtype).reshape(1, 1, 1, 7)
    y = run_reference(graph, {"x": x}, dtype)["y"]
    assert y.ravel().tolist() == [0, 0, 0.5, 0, 38.75, -25, 38.75]
