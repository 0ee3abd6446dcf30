"""Builds Swin-T, which computes attention within windows, as an ONNX model with seeded weights.

    image ─ Conv 4×4, strides 4 ─ 56×56 tokens of 96 ─ norm
          ─ 4 stages of 2, 2, 6, 2 blocks, between them 2×2 tokens become one with twice the
          channels ─ norm ─ the tokens' mean ─ Gemm ─ softmax
    block: x + attention(norm(x)) within 7×7 tokens, x + fc2(gelu(fc1(norm(x))))

Every second block shifts the windows by 3 tokens, and wraps them around the image's edges. A mask
then separates tokens that were not neighbours before the shift. Source: Liu et al. 2021, "Swin
Transformer", section 3; Swin-T.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx

from benchmarks.networks.nodes import Nodes

_APART = -100.0
"""The number that is added to the score of two tokens that were not neighbours before the shift."""


@dataclass(frozen=True, slots=True)
class Swin:
    """Sets the sizes of the network. The defaults are the sizes of Swin-T."""

    side: int = 224
    patch: int = 4
    width: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    window: int = 7
    classes: int = 1000


TINY = Swin()


def swin(network: Swin = TINY, seed: int = 0) -> onnx.ModelProto:
    """Return an ONNX model of Swin with the input `image`, 1×3×H×W, and the output `prob`,
    1×classes. `seed` determines the weights."""
    to = Nodes(np.random.default_rng(seed))
    side, width, window = network.side // network.patch, network.width, network.window
    x = to.patches("image", width, network.patch)
    x = to.norm("embedded", to.add("Transpose", "tokens", x, perm=[0, 2, 3, 1]), width)
    for stage, (depth, heads) in enumerate(zip(network.depths, network.heads, strict=True)):
        if stage:
            x = _merged(to, f"stage{stage}.merged", x, side, width)
            side, width = side // 2, 2 * width
        for block in range(depth):
            name = f"stage{stage}.block{block}"
            shift = window // 2 if block % 2 and side > window else 0
            y = to.norm(f"{name}.norm", x, width)
            x = to.add(
                "Add", f"{name}.sum", x, _within(to, name, y, (side, width, heads), window, shift)
            )
            x = to.mlp(f"{name}.mlp", x, width, 4 * width)
    x = to.add(
        "ReduceMean", "mean", to.norm("norm", x, width), to.integers("axes", 1, 2), keepdims=0
    )
    return to.network(
        "swin", network.side, to.layer("head", x, width, network.classes), network.classes
    )


def _merged(to: Nodes, name: str, x: str, side: int, width: int) -> str:
    """Add nodes that merge each square of 2×2 tokens into one token with twice as many channels."""
    y = to.reshape(f"{name}.apart", x, 1, side // 2, 2, side // 2, 2, width)
    y = to.add("Transpose", f"{name}.turned", y, perm=[0, 1, 3, 4, 2, 5])
    y = to.reshape(f"{name}.joined", y, 1, side // 2, side // 2, 4 * width)
    weight = to.noise(f"{name}.weight", (4 * width, 2 * width), 4 * width)
    return to.add("MatMul", name, to.norm(f"{name}.norm", y, 4 * width), weight)


def _within(
    to: Nodes, name: str, x: str, shape: tuple[int, int, int], window: int, shift: int
) -> str:
    """Add attention between the tokens of each window. The windows are shifted by `shift` rows and
    columns."""
    side, width, heads = shape
    windows, tokens = side // window, window**2
    if shift:
        x = _rolled(to, f"{name}.moved", x, shift)
    y = to.reshape(f"{name}.apart", x, 1, windows, window, windows, window, width)
    y = to.add("Transpose", f"{name}.windows", y, perm=[0, 1, 3, 2, 4, 5])
    y = to.reshape(f"{name}.rows", y, windows**2, tokens, width)

    def masked(scores: str) -> str:
        relative = to.noise(f"{name}.table", ((2 * window - 1) ** 2, heads), 4)
        index = to.integers(f"{name}.index", *_offsets(window).ravel())
        bias = to.add("Gather", f"{name}.gathered", relative, index, axis=0)
        bias = to.reshape(f"{name}.square", bias, tokens, tokens, heads)
        bias = to.add("Transpose", f"{name}.bias", bias, perm=[2, 0, 1])
        bias = to.reshape(f"{name}.all", bias, 1, heads, tokens, tokens)
        scores = to.add("Add", f"{name}.biased", scores, bias)
        if not shift:
            return scores
        mask = to.constant(f"{name}.mask", _mask(side, window, shift)[None, :, None])
        scores = to.reshape(f"{name}.of_windows", scores, 1, windows**2, heads, tokens, tokens)
        scores = to.add("Add", f"{name}.masked", scores, mask)
        return to.reshape(f"{name}.of_rows", scores, windows**2, heads, tokens, tokens)

    y = to.attention(f"{name}.attention", y, (windows**2, tokens, heads, width // heads), masked)
    y = to.reshape(f"{name}.squares", y, 1, windows, windows, window, window, width)
    y = to.add("Transpose", f"{name}.lines", y, perm=[0, 1, 3, 2, 4, 5])
    y = to.reshape(f"{name}.image", y, 1, side, side, width)
    return _rolled(to, f"{name}.back", y, side - shift) if shift else y


def _rolled(to: Nodes, name: str, x: str, shift: int) -> str:
    """Add nodes that move all rows and columns of x back by `shift`. The first rows and columns
    become the last."""
    begin, middle, end = (
        to.integers(f"{name}.{part}", at)
        for part, at in (("begin", 0), ("middle", shift), ("end", np.iinfo(np.int64).max))
    )
    for axis in (1, 2):
        at = to.integers(f"{name}.axis{axis}", axis)
        last = to.add("Slice", f"{name}.last{axis}", x, middle, end, at)
        first = to.add("Slice", f"{name}.first{axis}", x, begin, middle, at)
        x = to.add("Concat", f"{name}.rolled{axis}", last, first, axis=axis)
    return x


def _offsets(window: int) -> np.ndarray:
    """Return an index into the table of relative position biases for each pair of tokens in a
    window."""
    places = np.stack(np.divmod(np.arange(window**2), window))
    rows, columns = places[:, :, None] - places[:, None] + window - 1
    every: np.ndarray = rows * (2 * window - 1) + columns
    return every


def _mask(side: int, window: int, shift: int) -> np.ndarray:
    """Return the numbers that are added to the attention scores of each window: _APART for two
    tokens that were not neighbours before the windows were shifted, otherwise 0."""
    regions = np.zeros((side, side))
    for index, (rows, columns) in enumerate(_parts(side, window, shift)):
        regions[rows, columns] = index
    windows = side // window
    squares = regions.reshape(windows, window, windows, window).swapaxes(1, 2)
    each = squares.reshape(windows**2, window**2)
    return np.where(each[:, :, None] == each[:, None], 0.0, _APART)


def _parts(side: int, window: int, shift: int) -> Iterator[tuple[slice, slice]]:
    """Yield the regions of a shifted image, as slices of rows and columns. Two tokens of a window
    belong to the same region if they were neighbours before the shift."""
    spans = [slice(*span) for span in pairwise((0, side - window, side - shift, side))]
    yield from ((rows, columns) for rows in spans for columns in spans)
