"""Pixels are gathered before they are normalised, if a later sum needs them gathered."""

import pytest

from kernels.problems.binary_operation import BinaryOp
from models.graph import Normalise, Shape
from models.rewrite import RewriteResult
from models.rewrite.gather_ahead import gather_ahead
from models.rewrite.gather_pixels import gather_pixels
from tests.support.models.graphs import GraphBuilder, kinds, rewritten

SIDE, C = 4, 8
RULES = (gather_pixels, gather_ahead)  # the first makes the gathers


def block(scale: Shape = (C, 1, 1), axes: tuple[int, ...] = (0,), added: str = "x") -> GraphBuilder:
    """Normalise x, roll it, compute, roll it back, and add it to a value."""
    b = GraphBuilder(x=(C, SIDE, SIDE), z=(C, SIDE, SIDE))
    weights = {"scale": b.noise("s", scale, 0.5, 1.5), "shift": b.noise("t", (C, 1, 1))}
    n = b.add(Normalise, "n", b.shapes["x"], x="x", **weights, axes=axes, epsilon=0.1)
    c = b.conv("c", b.roll("r", n, 1, 1, 2), kernel=1)
    b.binary("y", BinaryOp.ADD, added, b.roll("b", c, SIDE - 1, 1, 2))
    return b


def is_gathered_first(result: RewriteResult) -> bool:
    """Return whether pixels are gathered before they are normalised."""
    order = kinds(result)
    return order.index("Resample") < order.index("Normalise")


def test_the_gathered_pixels_are_normalised() -> None:
    result = rewritten(block().build("y"), rules=RULES)
    assert is_gathered_first(result)


@pytest.mark.parametrize(
    ("b", "outputs"),
    [
        (block(scale=(C, SIDE, SIDE)), ("y",)),
        (block(axes=(0, 1, 2)), ("y",)),
        (block(added="z"), ("y",)),
        (block(), ("y", "n")),
    ],
    ids=["a scale per pixel", "over all pixels", "another sum", "another reader"],
)
def test_other_pixels_are_gathered_after_it(b: GraphBuilder, outputs: tuple[str, ...]) -> None:
    assert not is_gathered_first(rewritten(b.build(*outputs), rules=RULES))
