"""Products of queries, keys and values with a softmax between them become one node."""

import numpy as np
import pytest

from kernels.problems.binary_operation import BinaryOp
from models.graph import Attention, Product, Softmax
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten

HEADS, QUERIES, KEYS, DEPTH, WIDTH = 2, 5, 7, 4, 3


def inputs(keys: int = KEYS) -> GraphBuilder:
    return GraphBuilder(q=(HEADS, QUERIES, DEPTH), k=(HEADS, keys, DEPTH), v=(HEADS, keys, WIDTH))


def product(b: GraphBuilder, output: str, left: str, right: str) -> str:
    shape = (*b.shapes[left][:-1], b.shapes[right][-1])
    return b.add(Product, output, shape, a=left, b=right)


def scores(b: GraphBuilder, q: str = "q", k: str = "k") -> str:
    return product(b, "s", q, b.transpose("kt", k, 0, 2, 1))


def seen(b: GraphBuilder, x: str, axis: int = 2, *, log: bool = False) -> str:
    shares = b.add(Softmax, "p", b.shapes[x], x=x, axis=axis, log=log)
    return product(b, "y", shares, "v")


def attention(b: GraphBuilder) -> tuple[Attention, np.ndarray | None]:
    result = rewritten(b.build("y"), rounds=True)
    (node,) = (node for node in result.graph.nodes if isinstance(node, Attention))
    assert not {"Softmax", "Product"} & set(kinds(result))
    return node, None if node.bias is None else result.graph.weights[node.bias]


def test_a_number_anywhere_becomes_the_scale() -> None:
    b = inputs()
    q = b.binary("q2", BinaryOp.MUL, "q", 0.5)
    k = b.binary("k2", BinaryOp.MUL, "k", 3.0)
    x = b.binary("x", BinaryOp.DIV, scores(b, q, k), 4.0)
    seen(b, x)
    node, bias = attention(b)
    assert (node.scale, bias) == (0.375, None)
    assert (node.q, node.k, node.v) == ("q", "k", "v")


def test_constants_become_one_bias_that_later_numbers_multiply() -> None:
    b = inputs()
    x = b.binary("x1", BinaryOp.ADD, scores(b), b.noise("b1", (HEADS, QUERIES, KEYS)))
    x = b.binary("x2", BinaryOp.MUL, x, 2.0)
    x = b.binary("x3", BinaryOp.ADD, x, b.noise("b2", (QUERIES, KEYS)))
    seen(b, x)
    node, bias = attention(b)
    assert node.scale == 2
    expected = 2 * b.weights["b1"] + b.weights["b2"]
    assert bias is not None
    np.testing.assert_allclose(bias, expected, rtol=1e-6)


def test_a_bias_that_heads_share_is_kept_once() -> None:
    b = inputs()
    seen(b, b.binary("x", BinaryOp.ADD, scores(b), b.noise("b", (1, QUERIES, KEYS))))
    _, bias = attention(b)
    assert bias is not None
    assert bias.shape == (1, QUERIES, KEYS)


def test_a_mask_of_windows_is_added_in_another_shape() -> None:
    """Swin adds the windows' mask separately from the heads' bias."""
    b = inputs()
    x = b.reshape("r", scores(b), (1, HEADS, 1, QUERIES, KEYS))
    x = b.binary("m", BinaryOp.ADD, x, b.noise("b", (HEADS, 1, QUERIES, KEYS)))
    seen(b, b.reshape("r2", x, (HEADS, QUERIES, KEYS)))
    _, bias = attention(b)
    assert bias is not None
    assert bias.shape == (HEADS, QUERIES, KEYS)


def test_channels_before_tokens_as_in_yolo11() -> None:
    b = GraphBuilder(q=(HEADS, DEPTH, KEYS), k=(HEADS, DEPTH, KEYS), v=(HEADS, WIDTH, KEYS))
    q = b.transpose("qt", b.binary("q2", BinaryOp.MUL, "q", 0.5), 0, 2, 1)
    s = product(b, "s", q, "k")
    shares = b.add(Softmax, "p", b.shapes[s], x=s, axis=2)
    product(b, "y", "v", b.transpose("pt", shares, 0, 2, 1))
    node, _ = attention(b)
    assert node.scale == 0.5


@pytest.mark.parametrize(("axis", "log"), [(1, False), (2, True)])
def test_another_softmax_stays(axis: int, log: bool) -> None:
    b = GraphBuilder(q=(2, 7, 4), k=(2, 7, 4), v=(2, 7, 3))
    seen(b, scores(b), axis, log=log)
    result = rewritten(b.build("y"))
    assert "Attention" not in kinds(result)
    (said,) = refusals(result, "fuse_attention").values()
    assert said == "softmax_p is not a softmax along the keys"


def test_scores_that_are_more_than_a_product_stay() -> None:
    b = inputs()
    s = scores(b)
    seen(b, b.binary("squares", BinaryOp.MUL, s, s))
    result = rewritten(b.build("y"))
    assert kinds(result).count("Product") == 2
    (said,) = refusals(result, "fuse_attention").values()
    assert said == "softmax_p does not read a product of queries and keys"


def test_more_keys_than_a_block_holds_stay() -> None:
    b = inputs(257)
    seen(b, scores(b))
    result = rewritten(b.build("y"))
    assert kinds(result).count("Product") == 2
    (said,) = refusals(result, "fuse_attention").values()
    assert said == "it has 257 keys of 4 channels; at most 256 keys of 128 channels are supported"


def test_shares_that_others_read_stay() -> None:
    b = inputs()
    seen(b, scores(b))
    result = rewritten(b.build("y", "p"))
    assert "p is an output" in refusals(result, "fuse_attention")["product_y"]
