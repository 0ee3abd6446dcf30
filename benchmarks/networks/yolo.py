"""Builds YOLO11n-cls, which has one block of attention, as an ONNX model with seeded weights.

    image ─ 3×3 convolutions of stride 2 to 16, 32, 64, 128, 256 channels, blocks of convolutions
            after the last four
          ─ half of the channels by attention over the pixels, and a depthwise convolution
          ─ 1×1 to 1280 ─ mean ─ Gemm ─ softmax

Every convolution has a SiLU, except in attention. The structure and the sizes equal Ultralytics'
exported yolo11-cls at scale n.
"""

from dataclasses import dataclass

import numpy as np
import onnx

from benchmarks.networks.nodes import CHANNELS, Nodes

_LAST = 1280
_HEAD = 64
"""The channels of a head's values. A head's queries and keys have half as many."""


@dataclass(frozen=True, slots=True)
class Yolo:
    """Sets the sizes of the network. The defaults are the sizes of YOLO11n-cls."""

    side: int = 224
    widths: tuple[int, int, int, int, int] = (16, 32, 64, 128, 256)
    last: int = _LAST
    classes: int = 1000


NANO = Yolo()


def yolo(network: Yolo = NANO, seed: int = 0) -> onnx.ModelProto:
    """Return an ONNX model of YOLO11-cls with the input `image`, 1×3×H×W, and the output `prob`,
    1×classes. `seed` determines the weights."""
    to = Nodes(np.random.default_rng(seed))
    first, second, third, fourth, fifth = network.widths
    x = _conv(to, "stem", "image", CHANNELS, first, 3, 2)
    x = _conv(to, "down1", x, first, second, 3, 2)
    x = _block(to, "block1", x, second, third, third // 4, deep=False)
    x = _conv(to, "down2", x, third, third, 3, 2)
    x = _block(to, "block2", x, third, fourth, fourth // 4, deep=False)
    x = _conv(to, "down3", x, fourth, fourth, 3, 2)
    x = _block(to, "block3", x, fourth, fourth, fourth // 2, deep=True)
    x = _conv(to, "down4", x, fourth, fifth, 3, 2)
    x = _block(to, "block4", x, fifth, fifth, fifth // 2, deep=True)
    x = _by_attention(to, "psa", x, fifth, (network.side // 32) ** 2)
    x = _conv(to, "last", x, fifth, network.last, 1)
    x = to.add("Flatten", "flat", to.add("GlobalAveragePool", "mean", x), axis=1)
    weight = to.noise("head.weight", (network.classes, network.last), network.last)
    x = to.add("Gemm", "head", x, weight, to.noise("head.bias", (network.classes,), 100), transB=1)
    return to.network("yolo", network.side, x, network.classes)


def _conv(
    to: Nodes,
    name: str,
    x: str,
    c: int,
    k: int,
    size: int,
    stride: int = 1,
    groups: int = 1,
    *,
    silu: bool = True,
) -> str:
    """Add a convolution of c to k channels with filters of size×size, and a SiLU if `silu`. Return
    the name of the output."""
    terms = c // groups * size**2
    # A SiLU's output has at most half the mean square of its input. Weights with twice the variance
    # make up for this.
    weight = to.noise(
        f"{name}.weight", (k, c // groups, size, size), max(1, terms // (2 if silu else 1))
    )
    bias = to.noise(f"{name}.bias", (k,), 100)
    pads = [size // 2] * 4
    y = to.add(
        "Conv", f"{name}.conv", x, weight, bias, strides=[stride] * 2, pads=pads, group=groups
    )
    return to.add("Mul", name, y, to.add("Sigmoid", f"{name}.sigmoid", y)) if silu else y


def _halves(to: Nodes, name: str, x: str, width: int) -> list[str]:
    """Add a Split of x along the channels. Return the names of its two outputs, each with `width`
    channels."""
    sizes = to.integers(f"{name}.sizes", width, width)
    outputs = [f"{name}.left", f"{name}.right"]
    to.split(name, x, sizes, outputs)
    return outputs


def _block(to: Nodes, name: str, x: str, c: int, k: int, width: int, *, deep: bool) -> str:
    left, right = _halves(to, f"{name}.halves", _conv(to, f"{name}.in", x, c, 2 * width, 1), width)
    inner = _deep if deep else _residual
    y = inner(to, f"{name}.inner", right, width, width // 2)
    y = to.add("Concat", f"{name}.all", left, right, y, axis=1)
    return _conv(to, f"{name}.out", y, 3 * width, k, 1)


def _residual(to: Nodes, name: str, x: str, width: int, hidden: int) -> str:
    y = _conv(to, f"{name}.first", x, width, hidden, 3)
    return to.add("Add", name, x, _conv(to, f"{name}.second", y, hidden, width, 3))


def _deep(to: Nodes, name: str, x: str, width: int, hidden: int) -> str:
    y = _conv(to, f"{name}.left", x, width, hidden, 1)
    for index in range(2):
        y = _residual(to, f"{name}.residual{index}", y, hidden, hidden)
    y = to.add("Concat", f"{name}.both", y, _conv(to, f"{name}.right", x, width, hidden, 1), axis=1)
    return _conv(to, name, y, 2 * hidden, width, 1)


def _by_attention(to: Nodes, name: str, x: str, width: int, pixels: int) -> str:
    half = width // 2
    left, x = _halves(to, f"{name}.halves", _conv(to, f"{name}.in", x, width, width, 1), half)
    x = to.add("Add", f"{name}.sum", x, _attention(to, f"{name}.attention", x, half, pixels))
    y = _conv(to, f"{name}.wide", x, half, 2 * half, 1)
    y = to.add(
        "Add", f"{name}.ffn", x, _conv(to, f"{name}.narrow", y, 2 * half, half, 1, silu=False)
    )
    return _conv(
        to, f"{name}.out", to.add("Concat", f"{name}.all", left, y, axis=1), width, width, 1
    )


def _attention(to: Nodes, name: str, x: str, width: int, pixels: int) -> str:
    depth = min(_HEAD, width)
    heads, side = width // depth, round(pixels**0.5)
    y = _conv(to, f"{name}.qkv", x, width, 2 * width, 1, silu=False)
    y = to.reshape(f"{name}.apart", y, 1, heads, 2 * depth, pixels)
    q, k, v = (f"{name}.{part}" for part in "qkv")
    to.split(
        f"{name}.split",
        y,
        to.integers(f"{name}.sizes", depth // 2, depth // 2, depth),
        [q, k, v],
        axis=2,
    )
    scores = to.add(
        "MatMul", f"{name}.products", to.add("Transpose", f"{q}.turned", q, perm=[0, 1, 3, 2]), k
    )
    scale = to.constant(f"{name}.scale", np.array((depth // 2) ** -0.5))
    shares = to.add(
        "Softmax", f"{name}.shares", to.add("Mul", f"{name}.scores", scores, scale), axis=-1
    )
    turned = to.add("Transpose", f"{name}.turned", shares, perm=[0, 1, 3, 2])
    seen = to.reshape(
        f"{name}.image", to.add("MatMul", f"{name}.seen", v, turned), 1, width, side, side
    )
    values = to.reshape(f"{name}.values", v, 1, width, side, side)
    places = _conv(to, f"{name}.places", values, width, width, 3, groups=width, silu=False)
    y = to.add("Add", f"{name}.placed", seen, places)
    return _conv(to, f"{name}.proj", y, width, width, 1, silu=False)
