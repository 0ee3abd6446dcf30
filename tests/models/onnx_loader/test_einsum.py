"""Einsum is a product of matrices or of elements, as exporters write it, or is refused."""

from collections import Counter

import numpy as np
import onnx
import pytest

from models.errors import NoKernelsError
from models.graph import Attention, Graph
from models.onnx_loader import load_proto
from models.rewrite import rewrite
from tests.support.models.onnx_chains import assert_same_at_every_n, model, node, noise

HEADS, TOKENS, WIDTH = 2, 5, 3
IMAGE = HEADS, TOKENS, WIDTH
SHAPE = (1, *IMAGE)


def kinds(graph: Graph) -> Counter[str]:
    """Return the number of nodes of each type that computes something."""
    moves = {"Identity", "Reshape", "Transpose", "Slice"}
    return Counter(type(each).__name__ for each in graph.nodes if type(each).__name__ not in moves)


# The equation, and the axes of heads, tokens and channels in either operand.
OF_VALUES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], str]] = {
    "scores, as PyTorch": ("bhid,bhjd->bhij", (1, 2, 3), (1, 2, 3), "Product"),
    "scores with axes ahead": ("...id,...jd->...ij", (1, 2, 3), (1, 2, 3), "Product"),
    "scores of tokens, as Keras": ("aecd,abcd->acbe", (2, 1, 3), (2, 1, 3), "Product"),
    "values, as CvT": ("bhlt,bhtv->bhlv", (1, 3, 2), (1, 2, 3), "Product"),
    "values of tokens, as Keras": ("acbe,aecd->abcd", (1, 3, 2), (2, 1, 3), "Product"),
    "two sums": ("nabc,nabd->ncd", (1, 2, 3), (1, 2, 3), "Product"),
    "elements": ("nchw,nchw->nhwc", (1, 2, 3), (1, 2, 3), "Binary"),
    "elements by a part of them": ("nchw,nhcw->nchw", (1, 2, 3), (2, 1, 3), "Binary"),
}


@pytest.mark.parametrize("name", OF_VALUES)
def test_a_product_of_two_values(name: str) -> None:
    equation, a, b, kind = OF_VALUES[name]
    proto = model(
        [
            node("Tanh", "x", "s"),
            node("Transpose", "x", "a", perm=[0, *a]),
            node("Transpose", "s", "b", perm=[0, *b]),
            node("Einsum", "a b", equation=equation),
        ],
        shape=SHAPE,
    )
    loaded = load_proto("m", proto)
    assert_same_at_every_n(proto, loaded, IMAGE)
    assert kinds(rewrite(loaded.graph).graph) == {"Activate": 1, kind: 1}


OF_CONSTANTS: dict[str, tuple[str, tuple[int, ...], str]] = {
    "a scale of channels": ("nhtc,c->nhtc", (WIDTH,), "Binary"),
    "a layer": ("nhtc,kc->nhtk", (4, WIDTH), "Conv"),
    "a layer into heads, as Keras": ("nhtc,cde->nhtde", (WIDTH, 2, 2), "Conv"),
    "a layer of joined heads, as Keras": ("nhtc,hce->nte", (HEADS, WIDTH, 4), "Conv"),
    "a layer of each head": ("nhtc,hce->nhte", (HEADS, WIDTH, 4), "Product"),
    "positions, as MViT": ("nhtc,tkc->nhtk", (TOKENS, 4, WIDTH), "Product"),
}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", OF_CONSTANTS)
def test_a_product_by_a_constant(name: str, first: bool) -> None:
    equation, shape, kind = OF_CONSTANTS[name]
    operands, (left, y) = ["x", "w"], equation.split("->")
    if first:
        operands, left = operands[::-1], ",".join(left.split(",")[::-1])
    proto = model(
        [node("Einsum", " ".join(operands), equation=f"{left}->{y}")],
        {"w": noise(*shape)},
        shape=SHAPE,
    )
    loaded = load_proto("m", proto)
    assert_same_at_every_n(proto, loaded, IMAGE)
    found = kinds(rewrite(loaded.graph).graph)
    assert found == {kind: 1}


def test_one_operand_is_turned() -> None:
    proto = model([node("Einsum", "x", equation="n h t c -> n t c h")], shape=SHAPE)
    assert_same_at_every_n(proto, load_proto("m", proto), IMAGE)


def test_attention_of_keras_is_one_node() -> None:
    """The axis of heads comes after the axis of tokens, and the keys come first."""
    proto = model(
        [
            node("Transpose", "x", "t", perm=[0, 2, 1, 3]),
            node("Tanh", "t", "k"),
            node("Einsum", "k t", "scores", equation="aecd,abcd->acbe"),
            node("Mul", "scores half", "scaled"),
            node("Softmax", "scaled", "shares", axis=3),
            node("Einsum", "shares t", equation="acbe,aecd->abcd"),
        ],
        {"half": np.array(0.5, np.float32)},
        shape=SHAPE,
    )
    loaded = load_proto("m", proto)
    assert_same_at_every_n(proto, loaded, IMAGE)
    graph = rewrite(loaded.graph).graph
    (attention,) = (each for each in graph.nodes if isinstance(each, Attention))
    assert attention.scale == 0.5
    assert kinds(graph) == {"Activate": 1, "Attention": 1}


def einsum(equation: str, *inputs: str) -> onnx.ModelProto:
    weights = {"w": noise(1, WIDTH), "v": noise(WIDTH)}
    return model([node("Einsum", " ".join(inputs), equation=equation)], weights, shape=SHAPE)


REFUSED: dict[str, tuple[str, str, str]] = {
    "the batch is summed": ("nhtc,nhtd->hcd", "x x", "operand 0 has the axes nhtc; its first"),
    "a sum of one operand alone": ("nhtc->nhc", "x", "it sums over t, which only operand 0 has"),
    "the batch twice": ("nhtc,ndnc->nhd", "x x", "an operand repeats a letter"),
    "a diagonal": ("nhhc,nhhc->nhc", "x x", "an operand repeats a letter"),
    "three operands": ("nhtc,c,c->nht", "x v v", "it has 3 operands; at most two"),
    "a constant with the batch": ("nhtc,nc->nht", "x w", "operand 1 is a constant with"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_product_is_refused_with_its_equation(name: str) -> None:
    equation, inputs, reason = REFUSED[name]
    with pytest.raises(NoKernelsError) as refused:
        load_proto("m", einsum(equation, *inputs.split()), opaque=False)
    assert f"Einsum: equation {equation}: {reason}" in str(refused.value)
    assert "Einsum_y" in str(refused.value)
