"""The building blocks of well-known networks, as exported, and their nodes after rewriting."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from kernels.problems.reduction import ReduceKind
from models.graph import Normalise, Reduce, Softmax
from models.rewrite import RULES_AT_A_PRECISION, rewrite
from tests.support.models.graphs import GraphBuilder, kinds, rewritten

RELU6 = Activation(ActivationKind.CLIP, 0.0, 6.0)
SIGMOID = Activation(ActivationKind.SIGMOID)
HARD_SIGMOID = Activation(ActivationKind.HARD_SIGMOID, 1 / 6, 1 / 2)
GELU = Activation(ActivationKind.GELU)
ADD, MUL = BinaryOp.ADD, BinaryOp.MUL


def conv_bn(b: GraphBuilder, name: str, x: str, *, k: int = 16, groups: int = 1) -> str:
    return b.scale_shift(name, b.conv(f"{name}.c", x, k, 3, groups=groups, bias=False))


def silu(b: GraphBuilder, name: str, x: str) -> str:
    return b.binary(name, MUL, x, b.activate(f"{name}.s", x, SIGMOID))


def excited(b: GraphBuilder, x: str, inner: str, gate: Activation) -> str:
    """Squeeze and excitation (Hu et al. 2018)."""
    squeezed = b.conv("fc1", b.pool("squeeze", x, PoolKind.AVERAGE, 4), 4, 1)
    between = silu(b, "a1", squeezed) if inner == "silu" else b.activate("a1", squeezed, RELU)
    return b.binary("excited", MUL, b.activate("gate", b.conv("fc2", between, 16, 1), gate), x)


def resnet_downsampling(b: GraphBuilder) -> str:
    main = conv_bn(b, "n2", b.activate("r1", conv_bn(b, "n1", "x"), RELU))
    return b.activate("y", b.binary("sum", ADD, main, conv_bn(b, "down", "x")), RELU)


def mobilenet_v2(b: GraphBuilder) -> str:
    expanded = b.activate("r1", conv_bn(b, "n1", "x", k=32), RELU6)
    filtered = b.activate("r2", conv_bn(b, "n2", expanded, k=32, groups=32), RELU6)
    return b.binary("y", ADD, "x", conv_bn(b, "n3", filtered))


def mobilenet_v3(b: GraphBuilder) -> str:
    n1 = conv_bn(b, "n1", "x")
    clip = b.activate("clip", b.binary("plus", ADD, n1, 3.0), RELU6)
    hard_swish = b.binary("h", BinaryOp.DIV, b.binary("m", MUL, n1, clip), 6.0)
    return b.binary("y", ADD, conv_bn(b, "n2", excited(b, hard_swish, "relu", HARD_SIGMOID)), "x")


def efficientnet(b: GraphBuilder) -> str:
    filtered = silu(b, "s1", conv_bn(b, "n1", "x", groups=16))
    return b.binary("y", ADD, conv_bn(b, "n2", excited(b, filtered, "silu", SIGMOID)), "x")


def regnet(b: GraphBuilder) -> str:
    filtered = b.activate("r1", conv_bn(b, "n1", "x", groups=2), RELU)
    main = conv_bn(b, "n2", excited(b, filtered, "relu", SIGMOID))
    return b.activate("y", b.binary("sum", ADD, "x", main), RELU)


def shufflenet_v2(b: GraphBuilder) -> str:
    kept, taken = b.slice("low", "x", 0, 8), b.slice("high", "x", 8, 16)
    r1 = b.activate("r1", conv_bn(b, "n1", taken, k=8), RELU)
    r2 = b.activate("r2", conv_bn(b, "n2", r1, k=8, groups=8), RELU)
    joined = b.concat("k", kept, r2)
    apart = b.transpose("t", b.reshape("v", joined, (2, 8, 4, 4)), 1, 0, 2, 3)
    return b.reshape("y", apart, (16, 4, 4))


def inception_with_its_own_normalisation(b: GraphBuilder) -> str:
    parts = []
    for c in range(16):
        channel = b.reshape(f"u{c}", b.slice(f"s{c}", "x", c, c + 1), (1, 4, 4))
        scaled = b.binary(f"m{c}", MUL, channel, 0.5 + c / 16)
        parts.append(b.binary(f"a{c}", ADD, scaled, 0.1 * c))
    return b.scale_shift("y", b.conv("c", b.concat("k", *parts), pad=0, bias=False), RELU)


def layer_norm(b: GraphBuilder, y: str, x: str) -> str:
    """Normalise along the last axis."""
    shape = b.shapes[x]
    scale, shift = b.noise(f"{y}.g", shape[-1:]), b.noise(f"{y}.h", shape[-1:])
    return b.add(
        Normalise, y, shape, x=x, scale=scale, shift=shift, axes=(len(shape) - 1,), epsilon=0.1
    )


def convnext(b: GraphBuilder) -> str:
    last = b.transpose("t", b.conv("dw", "x", k=16, kernel=7, groups=16), 1, 2, 0)
    wide = b.activate("act", b.gemm("1", layer_norm(b, "n", last), 64), GELU)
    scaled = b.binary("scaled", MUL, b.gemm("2", wide, 16), b.noise("gamma", (16,)))
    return b.binary("y", ADD, "x", b.transpose("back", scaled, 2, 0, 1))


def densenet(b: GraphBuilder) -> str:
    narrow = b.conv("c1", b.scale_shift("n1", "x", RELU), 16, 1, bias=False)
    return b.conv("c2", b.scale_shift("n2", narrow, RELU), 8, 3, bias=False)


def convnext_v2_response_norm(b: GraphBuilder) -> str:
    last = b.transpose("t", "x", 1, 2, 0)
    norm = b.add(Reduce, "g", (1, 1, 16), x=last, kind=ReduceKind.L2, axes=(0, 1))
    mean = b.add(Reduce, "m", (1, 1, 1), x=norm, kind=ReduceKind.MEAN, axes=(2,))
    share = b.binary("s", BinaryOp.DIV, norm, b.binary("e", ADD, mean, 0.5))
    return b.transpose("y", b.binary("u", MUL, last, share), 2, 0, 1)


def of_splits(b: GraphBuilder, joined: str, channels: str) -> str:
    """Return the sum over two splits (2×8×4×4), and their sum weighted by the softmax of
    `channels`, 16."""
    two = b.reshape("two", channels, (2, 8))
    attention = b.add(Softmax, "attention", (2, 8), x=two, axis=0)
    factors = b.binary("product", MUL, joined, b.reshape("a", attention, (2, 8, 1, 1)))
    total = b.add(Reduce, "total", (1, 8, 4, 4), x=factors, kind=ReduceKind.SUM, axes=(0,))
    return b.reshape("y", total, (8, 4, 4))


def resnest(b: GraphBuilder) -> str:
    split = b.reshape("split", "x", (2, 8, 4, 4))
    return of_splits(b, split, b.pool("gap", "x", PoolKind.AVERAGE, 4))


def sknet(b: GraphBuilder) -> str:
    paths = [b.reshape(f"p{i}", b.conv(f"c{i}", "x", 8), (1, 8, 4, 4)) for i in range(2)]
    stacked = b.concat("stacked", *paths)
    total = b.add(Reduce, "u", (1, 8, 4, 4), x=stacked, kind=ReduceKind.SUM, axes=(0,))
    pooled = b.pool("gap", b.reshape("v", total, (8, 4, 4)), PoolKind.AVERAGE, 4)
    return of_splits(b, stacked, b.conv("fc", pooled, 16, 1))


def group_norm(b: GraphBuilder) -> str:
    split = b.reshape("split", "x", (4, 64))
    one, zero = b.weight("one", np.ones((4, 1))), b.weight("zero", np.zeros((4, 1)))
    normal = b.add(Normalise, "n", (4, 64), x=split, scale=one, shift=zero, axes=(1,), epsilon=0.1)
    return b.scale_shift("y", b.reshape("back", normal, (16, 4, 4)), RELU)


def classifier(b: GraphBuilder) -> str:
    pooled = b.reshape("flat", b.pool("p", "x", PoolKind.AVERAGE, 4), (16,))
    return b.gemm("y", b.identity("dropout", pooled))


SE = ["GlobalPool", "Conv", "Conv", "Binary"]
BLOCKS: dict[Callable[[GraphBuilder], str], list[str]] = {
    resnet_downsampling: ["Conv", "Conv", "Conv"],
    mobilenet_v2: ["Conv", "Conv", "Conv"],
    mobilenet_v3: ["Conv", *SE, "Conv"],
    efficientnet: ["Conv", *SE, "Conv"],
    regnet: ["Conv", *SE, "Conv"],
    shufflenet_v2: ["Slice", "Slice", "Conv", "Conv", "ChannelShuffle"],
    inception_with_its_own_normalisation: ["Conv"],
    convnext: ["Conv", "Normalise", "Conv", "Conv"],
    densenet: ["ScaleShift", "Conv", "Conv"],
    convnext_v2_response_norm: ["Reduce", "Reduce", "ScaleShift", "Binary", "Binary"],
    group_norm: ["Normalise"],
    classifier: ["GlobalPool", "Reshape", "Gemm"],
}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_a_block_is_fused_to_its_core(block: Callable[[GraphBuilder], str]) -> None:
    b = GraphBuilder(x=(16, 4, 4))
    result = rewritten(b.build(block(b)), rounds=True)
    assert kinds(result) == BLOCKS[block]


@pytest.mark.parametrize(
    ("block", "left"),
    [(convnext, ["Conv"] * 3), (densenet, ["Conv"] * 2)],
    ids=["convnext", "densenet"],
)
def test_in_float32_a_1x1_convolution_takes_what_is_before_it(
    block: Callable[[GraphBuilder], str], left: list[str]
) -> None:
    b = GraphBuilder(x=(16, 4, 4))
    graph = rewritten(b.build(block(b)), rounds=True).graph
    assert kinds(rewrite(graph, RULES_AT_A_PRECISION)) == left


@pytest.mark.parametrize(
    ("block", "left"),
    [
        (resnest, {"GlobalPool": 1, "Softmax": 1, "Binary": 3}),
        (sknet, {"Conv": 3, "GlobalPool": 1, "Softmax": 1, "Binary": 4}),
    ],
)
def test_splits_are_added_without_being_joined(
    block: Callable[[GraphBuilder], str], left: dict[str, int]
) -> None:
    b = GraphBuilder(x=(16, 4, 4))
    result = rewritten(b.build(block(b)), rounds=True)
    views = ("Reshape", "Slice")
    assert Counter(kind for kind in kinds(result) if kind not in views) == left
