"""Activations are recognised in what exporters write, and ride in the epilogue of other nodes."""

from collections.abc import Callable
from math import sqrt

import pytest

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from models.graph import Activate, Binary, Conv
from tests.models.rewrite.graphs import GraphBuilder, kinds, refusals, rewritten

SHAPE = (8, 4, 4)
SIGMOID = Activation(ActivationKind.SIGMOID)
RELU6 = Activation(ActivationKind.CLIP, 0.0, 6.0)
HARD_SIGMOID = Activation(ActivationKind.HARD_SIGMOID, 1 / 6, 1 / 2)
HARD_SWISH = Activation(ActivationKind.HARD_SWISH)
SILU = Activation(ActivationKind.SILU)
ERF = Activation(ActivationKind.ERF)
GELU = Activation(ActivationKind.GELU)
ADD, SUB, MUL, DIV = BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV


def clip_of_plus_three(b: GraphBuilder, x: str) -> str:
    return b.activate("clip", b.binary("plus", ADD, x, 3.0), RELU6)


def one_plus_erf(b: GraphBuilder, x: str) -> str:
    erf = b.activate("erf", b.binary("over", DIV, x, sqrt(2)), ERF)
    return b.binary("one", ADD, 1.0, erf)


Form = Callable[[GraphBuilder, str], str]
FORMS: dict[str, tuple[Activation, Form]] = {
    "x · sigmoid(x)": (SILU, lambda b, x: b.binary("y", MUL, x, b.activate("s", x, SIGMOID))),
    "sigmoid(x) · x": (SILU, lambda b, x: b.binary("y", MUL, b.activate("s", x, SIGMOID), x)),
    "x · hardsigmoid(x)": (
        HARD_SWISH,
        lambda b, x: b.binary("y", MUL, x, b.activate("s", x, HARD_SIGMOID)),
    ),
    "x · (clip(x + 3) / 6)": (
        HARD_SWISH,
        lambda b, x: b.binary("y", MUL, x, b.binary("d", DIV, clip_of_plus_three(b, x), 6.0)),
    ),
    "(x · clip(x + 3)) / 6": (
        HARD_SWISH,
        lambda b, x: b.binary("y", DIV, b.binary("d", MUL, x, clip_of_plus_three(b, x)), 6.0),
    ),
    "(clip(x + 3) · x) · 1/6": (
        HARD_SWISH,
        lambda b, x: b.binary("y", MUL, b.binary("d", MUL, clip_of_plus_three(b, x), x), 1 / 6),
    ),
    "clip(x + 3) / 6": (
        HARD_SIGMOID,
        lambda b, x: b.binary("y", DIV, clip_of_plus_three(b, x), 6.0),
    ),
    "(x · (1 + erf(x / √2))) · 0.5": (
        GELU,
        lambda b, x: b.binary("y", MUL, b.binary("d", MUL, x, one_plus_erf(b, x)), 0.5),
    ),
    "(0.5 · x) · (1 + erf(x / √2))": (
        GELU,
        lambda b, x: b.binary("y", MUL, b.binary("d", MUL, 0.5, x), one_plus_erf(b, x)),
    ),
    "x · (0.5 · (1 + erf(x / √2)))": (
        GELU,
        lambda b, x: b.binary("y", MUL, x, b.binary("d", MUL, 0.5, one_plus_erf(b, x))),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_spelled_out_activation_is_recognised(form: str) -> None:
    activation, spell = FORMS[form]
    b = GraphBuilder(x=SHAPE)
    spell(b, "x")
    (node,) = rewritten(b.build("y"), rounds=True).graph.nodes
    assert isinstance(node, Activate)
    assert node.activation == activation


@pytest.mark.parametrize("form", FORMS)
def test_a_spelled_out_activation_ends_in_the_conv(form: str) -> None:
    activation, spell = FORMS[form]
    b = GraphBuilder(x=SHAPE)
    spell(b, b.conv("c", "x"))
    (conv,) = rewritten(b.build("y"), rounds=True).graph.nodes
    assert isinstance(conv, Conv)
    assert conv.activation == activation


LOOKALIKES: dict[str, Form] = {
    "x · sigmoid(z)": lambda b, x: b.binary("y", MUL, x, b.activate("s", "z", SIGMOID)),
    "x + sigmoid(x)": lambda b, x: b.binary("y", ADD, x, b.activate("s", x, SIGMOID)),
    "x · hardsigmoid with slope 1/5": lambda b, x: b.binary(
        "y", MUL, x, b.activate("s", x, Activation(ActivationKind.HARD_SIGMOID, 0.2, 0.5))
    ),
    "(x · clip(x + 3)) / 5": lambda b, x: b.binary(
        "y", DIV, b.binary("d", MUL, x, clip_of_plus_three(b, x)), 5.0
    ),
    "(x · clip(x + 2)) / 6": lambda b, x: b.binary(
        "y", DIV, b.binary("d", MUL, x, b.activate("s", b.binary("p", ADD, x, 2.0), RELU6)), 6.0
    ),
    "(x · (2 + erf(x / √2))) · 0.5": lambda b, x: b.binary(
        "y", MUL, b.binary("d", MUL, x, b.binary("p", ADD, one_plus_erf(b, x), 1.0)), 0.5
    ),
    "x · (1 + erf(x / √2))": lambda b, x: b.binary("y", MUL, x, one_plus_erf(b, x)),
    "x · sigmoid(x) / 2": lambda b, x: b.binary(
        "y", DIV, b.binary("d", MUL, x, b.activate("s", x, SIGMOID)), 2.0
    ),
}


@pytest.mark.parametrize("form", LOOKALIKES)
def test_what_only_looks_like_an_activation_keeps_its_meaning(form: str) -> None:
    b = GraphBuilder(x=SHAPE, z=SHAPE)
    LOOKALIKES[form](b, "x")
    result = rewritten(b.build("y"), rounds=True)
    named = {HARD_SWISH, HARD_SIGMOID, GELU} | (set() if "/ 2" in form else {SILU})
    assert not {getattr(node, "activation", None) for node in result.graph.nodes} & named


def test_squeeze_and_excitation_is_no_activation() -> None:
    b = GraphBuilder(x=SHAPE)
    gate = b.activate("s", b.conv("c", b.pool("p", "x", PoolKind.AVERAGE, 4), kernel=1), SIGMOID)
    b.binary("y", MUL, gate, "x")
    result = rewritten(b.build("y"))
    assert kinds(result) == ["GlobalPool", "Conv", "Binary"]


def test_the_silu_of_a_product_is_recognised() -> None:
    b = GraphBuilder(x=SHAPE, z=SHAPE)
    b.binary("p", MUL, "x", "z")
    b.binary("y", MUL, "p", b.activate("s", "p", SIGMOID))
    (node,) = rewritten(b.build("y")).graph.nodes
    assert isinstance(node, Binary)
    assert node.activation == SILU


def test_an_inner_value_that_others_read_stays_for_them() -> None:
    b = GraphBuilder(x=SHAPE)
    b.binary("y", MUL, "x", b.activate("s", "x", SIGMOID))
    assert kinds(rewritten(b.build("y", "s"))) == ["Activate", "Activate"]


@pytest.mark.parametrize("activation", [RELU, RELU6, SIGMOID, HARD_SWISH, SILU, HARD_SIGMOID])
@pytest.mark.parametrize("kind", ["conv", "gemm", "scale_shift", "add"])
def test_an_activation_ends_in_the_node_before_it(kind: str, activation: Activation) -> None:
    b = GraphBuilder(x=SHAPE, z=SHAPE)
    match kind:
        case "conv":
            b.conv("h", "x")
        case "gemm":
            b.gemm("h", "x")
        case "scale_shift":
            b.scale_shift("h", "x")
        case "add":
            b.binary("h", ADD, "x", "z")
    b.activate("y", "h", activation)
    (node,) = rewritten(b.build("y")).graph.nodes
    assert getattr(node, "activation") == activation  # noqa: B009  (four node types have it)


def test_an_activation_after_another_node_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    b.activate("y", b.pool("p", "x", PoolKind.MAX, 2), RELU)
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Pool", "Activate"]
    assert result.refused == ()


def test_a_second_activation_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    b.activate("y", b.conv("c", "x", activation=SIGMOID), RELU6)
    result = rewritten(b.build("y"))
    assert refusals(result, "fuse_activation") == {"activate_y": "conv_c ends in Sigmoid already"}


def test_an_activation_of_a_value_that_others_read_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    b.activate("y", b.conv("c", "x"), RELU)
    b.pool("p", "c", PoolKind.MAX, 2)
    result = rewritten(b.build("y", "p"))
    assert refusals(result, "fuse_activation") == {"activate_y": "c is also read by pool_p"}


def test_an_activation_of_an_output_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    b.activate("y", b.conv("c", "x"), RELU)
    result = rewritten(b.build("y", "c"))
    assert refusals(result, "fuse_activation") == {"activate_y": "c is an output of the network"}


def test_an_activation_of_a_concat_moves_to_its_parts() -> None:
    # ShuffleNet's stage ends: a Conv and a pooled shortcut that is never negative.
    b = GraphBuilder(x=SHAPE)
    b.conv("s", "x", activation=RELU)
    b.pool("p", "s", PoolKind.AVERAGE, 3, pad=1)
    b.activate("r", b.concat("k", b.conv("c", "s"), b.binary("a", ADD, "s", "x"), "p"), RELU)
    b.conv("y", "r")
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Conv", "Pool", "Conv", "Binary", "Conv"]
    assert [getattr(n, "activation", None) for n in result.graph.nodes[2:4]] == [RELU, RELU]


def test_an_activation_of_a_concat_stays_where_a_part_cannot_take_it() -> None:
    b = GraphBuilder(x=SHAPE)
    b.activate("y", b.concat("k", b.conv("c", "x"), b.pool("p", "x", PoolKind.MAX, 3, pad=1)), RELU)
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Conv", "Pool", "Activate"]


@pytest.mark.parametrize(
    ("part", "outputs", "reason"),
    [
        ("p", ("y",), "p is not computed by a node that takes an activation"),
        ("d", ("y",), "conv_d ends in Sigmoid already"),
        ("e", ("y", "e"), "e is an output of the network"),
        ("e", ("y", "k"), "k is an output of the network"),
    ],
)
def test_why_an_activation_of_a_concat_stays(
    part: str, outputs: tuple[str, ...], reason: str
) -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("c", "x")
    b.pool("p", "x", PoolKind.MAX, 3, pad=1)
    b.conv("d", "x", activation=SIGMOID)
    b.conv("e", "x")
    b.activate("y", b.concat("k", part, "c", axis=1), RELU6)
    result = rewritten(b.build(*outputs))
    assert refusals(result, "activation_before_concat") == {"activate_y": reason}


def test_a_binary_keeps_its_operands_when_it_takes_an_activation() -> None:
    b = GraphBuilder(x=SHAPE, z=SHAPE)
    b.activate("y", b.binary("s", SUB, "x", "z"), RELU)
    (node,) = rewritten(b.build("y")).graph.nodes
    assert isinstance(node, Binary)
    assert (node.a, node.b, node.op, node.output) == ("x", "z", SUB, "y")
