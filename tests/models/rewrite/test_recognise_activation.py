"""Activations that exporters write as several operators are recognised."""

from collections.abc import Callable
from math import sqrt

import pytest

from kernels.problems.activation import Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from models.graph import Activate, Binary, Conv
from tests.support.models.graphs import GraphBuilder, kinds, rewritten

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
