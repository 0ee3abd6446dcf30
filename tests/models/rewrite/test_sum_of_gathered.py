"""Pixels are added before they return to their positions."""

from kernels.problems.binary_operation import BinaryOp
from models.graph import Binary, Resample
from models.rewrite import RewriteResult
from models.rewrite.gather_pixels import gather_pixels
from models.rewrite.sum_of_gathered import sum_of_gathered
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten

SIDE, C = 4, 8
RULES = (gather_pixels, sum_of_gathered)  # the first makes the gathers


def rolled_sum(back_by: int) -> GraphBuilder:
    """Add x to a convolution of the rolled x, which is rolled again."""
    b = GraphBuilder(x=(C, SIDE, SIDE))
    ahead = b.conv("c", b.roll("r", "x", 1, 1, 2), kernel=1)
    b.binary("y", BinaryOp.ADD, "x", b.roll("b", ahead, back_by, 1, 2))
    return b


def added(result: RewriteResult) -> list[str]:
    (total,) = (node for node in result.graph.nodes if isinstance(node, Binary))
    return [total.a, total.b]


def test_the_sum_is_of_gathered_pixels_and_its_result_returns() -> None:
    result = rewritten(rolled_sum(SIDE - 1).build("y"), rules=RULES)
    assert "c" in added(result)
    *_, last, _ = result.graph.nodes
    assert isinstance(last, Resample)
    assert kinds(result).count("Resample") == 2


def test_pixels_that_return_elsewhere_are_added_there() -> None:
    result = rewritten(rolled_sum(1).build("y"), rules=RULES)
    assert added(result) == ["x", "b"]


def test_a_returned_value_that_others_read_is_added_there() -> None:
    result = rewritten(rolled_sum(SIDE - 1).build("y", "b"), rules=RULES)
    assert added(result) == ["x", "b"]
    assert refusals(result, "sum_of_gathered") == {"binary_y": "b is an output of the network"}


def test_a_sum_is_not_gathered_if_its_other_operand_is_not() -> None:
    b = GraphBuilder(x=(C, SIDE, SIDE), z=(C, SIDE, SIDE))
    b.binary("y", BinaryOp.ADD, "z", b.roll("b", b.conv("c", "x"), 1, 1, 2))
    assert added(rewritten(b.build("y"), rules=RULES)) == ["z", "b"]
