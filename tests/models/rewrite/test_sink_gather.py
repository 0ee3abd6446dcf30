"""Blocks that compute within windows keep their pixels in the windows' order.

The rules gather_ahead, sum_of_gathered and sink_gather achieve this together.
"""

from kernels.problems.activation import RELU
from kernels.problems.binary_operation import BinaryOp
from models.graph import Conv, Normalise, Softmax
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten

SIDE, C = 4, 8


def norm(b: GraphBuilder, y: str, x: str) -> str:
    """Normalise the channels of each pixel."""
    scale, shift = b.noise(f"{y}.s", (C, 1, 1), 0.5, 1.5), b.noise(f"{y}.t", (C, 1, 1))
    return b.add(Normalise, y, b.shapes[x], x=x, scale=scale, shift=shift, axes=(0,), epsilon=0.1)


def block(b: GraphBuilder, y: str, x: str, by: int) -> str:
    """Add a block of Swin: an operation within windows of 2 × 2 pixels, and two layers."""
    moved = norm(b, f"{y}.n", x)
    moved = b.roll(f"{y}.r", moved, by, 1, 2) if by else moved
    tokens = b.gemm(f"{y}.g", b.windows(f"{y}.w", moved, 2), C)
    seen = b.add(Softmax, f"{y}.seen", b.shapes[tokens], x=tokens, axis=1)
    back = b.joined(f"{y}.j", b.gemm(f"{y}.h", seen, C), SIDE)
    back = b.roll(f"{y}.b", back, SIDE - by, 1, 2) if by else back
    inner = b.binary(f"{y}.sum", BinaryOp.ADD, x, back)
    wide = b.activate(f"{y}.a", b.conv(f"{y}.1", norm(b, f"{y}.m", inner), 2 * C, 1), RELU)
    return b.binary(y, BinaryOp.ADD, inner, b.conv(f"{y}.2", wide, C, 1))


def test_between_two_blocks_pixels_are_gathered_once() -> None:
    b = GraphBuilder(x=(C, SIDE, SIDE))
    b.conv("y", block(b, "v", block(b, "u", "x", 0), 1))
    result = rewritten(b.build("y"))
    # Into the first windows, into the moved ones, and to the image.
    assert kinds(result).count("Resample") == 3
    assert not {"Binary", "Concat", "Transpose"} & set(kinds(result))
    convs = [node for node in result.graph.nodes if isinstance(node, Conv)]
    assert [conv.residual is not None for conv in convs].count(True) == 4


def test_a_sum_is_done_in_windows() -> None:
    b = GraphBuilder(x=(C, SIDE, SIDE))
    b.conv("y", block(b, "u", "x", 1))
    result = rewritten(b.build("y"))
    assert kinds(result).count("Resample") == 2
    assert "Binary" not in kinds(result)


def test_a_sum_with_an_image_that_is_not_in_windows_stays() -> None:
    b = GraphBuilder(x=(C, SIDE, SIDE), z=(C, SIDE, SIDE))
    tokens = b.gemm("g", b.windows("w", norm(b, "n", "x"), 2), C)
    seen = b.add(Softmax, "seen", b.shapes[tokens], x=tokens, axis=1)
    back = b.joined("j", b.gemm("h", seen, C), SIDE)
    b.conv("y", b.binary("s", BinaryOp.ADD, "z", back))
    result = rewritten(b.build("y"))
    assert kinds(result).count("Binary") == 1


def test_what_a_sum_brings_back_may_be_needed_itself() -> None:
    b = GraphBuilder(x=(C, SIDE, SIDE))
    b.conv("y", block(b, "u", "x", 1))
    result = rewritten(b.build("y", "u.b"))
    assert "Binary" in kinds(result)
    assert "u.b is an output of the network" in refusals(result, "sum_of_gathered").values()


def test_a_normalisation_whose_result_others_read_stays() -> None:
    b = GraphBuilder(x=(C, SIDE, SIDE))
    b.conv("y", block(b, "u", "x", 1))
    result = rewritten(b.build("y", "u.n"))
    assert kinds(result).count("Binary") == 1


def test_a_normalisation_of_places_stays_behind_the_gather() -> None:
    """The scale differs between pixels, so pixels may not be reordered before it."""
    b = GraphBuilder(x=(C, SIDE, SIDE))
    scale, shift = b.noise("s", (C, SIDE, SIDE)), b.noise("t", (C, 1, 1))
    fields = {"scale": scale, "shift": shift, "axes": (0,), "epsilon": 0.1}
    moved = b.add(Normalise, "n", b.shapes["x"], x="x", **fields)
    tokens = b.gemm("g", b.windows("w", moved, 2), C)
    seen = b.add(Softmax, "seen", b.shapes[tokens], x=tokens, axis=1)
    b.conv("y", b.binary("z", BinaryOp.ADD, "x", b.joined("j", b.gemm("h", seen, C), SIDE)))
    assert kinds(rewritten(b.build("y"))).count("Binary") == 1


def test_pixels_stay_in_their_order_where_a_window_of_a_convolution_is_next() -> None:
    """Only operations on single pixels may run in another order."""
    b = GraphBuilder(x=(C, SIDE, SIDE))
    u = block(b, "u", "x", 1)
    b.conv("y", block(b, "v", b.conv("c", u, C, 3), 0))
    result = rewritten(b.build("y"))
    assert kinds(result).count("Resample") == 4


def test_windows_of_what_computes_each_pixel_alone_are_none() -> None:
    b = GraphBuilder(x=(C, SIDE, SIDE), z=(C, SIDE, SIDE))
    tokens = b.gemm("g", b.windows("w", norm(b, "n", "x"), 2), C)
    b.conv("y", b.binary("s", BinaryOp.ADD, "z", b.joined("j", tokens, SIDE)))
    assert kinds(rewritten(b.build("y"))) == ["Normalise", "Conv", "Conv"]


def test_pixels_that_are_brought_back_elsewhere_are_added_where_they_are() -> None:
    b = GraphBuilder(x=(C, SIDE, SIDE))
    tokens = b.gemm("g", b.windows("w", b.roll("r", norm(b, "n", "x"), 1, 1, 2), 2), C)
    seen = b.add(Softmax, "seen", b.shapes[tokens], x=tokens, axis=1)
    back = b.roll("b", b.joined("j", b.gemm("h", seen, C), SIDE), 2, 1, 2)
    b.conv("y", b.binary("s", BinaryOp.ADD, "x", back))
    assert kinds(rewritten(b.build("y"))).count("Binary") == 1
