"""1×1 convolutions of the same value become one, even if the last writes into a Concat."""

import pytest

from kernels.problems.activation import RELU
from kernels.problems.pool import PoolKind
from models.graph import ChannelSlice, Conv, Identity, Slice
from models.plan import build_plan
from tests.support.models.engines import H200_CHOICE, classifier_of
from tests.support.models.graphs import GraphBuilder, kinds, rewritten
from tests.support.models.plans import check_operands

SHAPE = (16, 6, 6)


def inception(b: GraphBuilder, x: str, name: str = "") -> str:
    """A small version of GoogLeNet's block."""
    first = b.conv(f"{name}first", x, 24, 1, activation=RELU)
    three = b.conv(f"{name}three", b.conv(f"{name}to3", x, 16, 1, activation=RELU), 32)
    five = b.conv(f"{name}five", b.conv(f"{name}to5", x, 8, 1, activation=RELU), 16, 5)
    pooled = b.pool(f"{name}pooled", x, PoolKind.MAX, 3, pad=1)
    last = b.conv(f"{name}last", pooled, 8, 1, activation=RELU)
    return b.concat(f"{name}y", first, three, five, last)


def test_the_first_part_of_a_concat_lies_in_it_behind_its_siblings() -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("z", inception(b, "x"), 8)
    result = rewritten(b.build("z"))
    assert kinds(result).count("Conv") == 5
    values = result.graph.values
    merged = next(node for node in result.graph.nodes if " + " in node.name)
    assert isinstance(merged, Conv)
    assert merged.name == "conv_to3 + conv_to5 + conv_first"
    assert merged.problem.k == 16 + 8 + 24
    whole = values["y/siblings"]
    assert whole.shape[0] == 16 + 8 + 80
    assert values[merged.output].inside == ChannelSlice(whole.name, 0)
    assert values["three"].inside == ChannelSlice(whole.name, 48)
    assert values["last"].inside == ChannelSlice(whole.name, 48 + 32 + 16)
    (y,) = (node for node in result.graph.nodes if node.output == "y")
    assert isinstance(y, Slice)
    assert (y.x, y.start, y.stop) == (whole.name, 24, 104)


def test_a_plan_copies_nothing() -> None:
    b = GraphBuilder(x=SHAPE)
    y = inception(b, inception(b, "x", "a"), "b")
    graph = rewritten(
        b.build(b.gemm("scores", b.reshape("flat", b.pool("p", y, PoolKind.AVERAGE, 6), (80,))))
    )
    classifier = classifier_of(graph.graph)
    plan = build_plan(classifier.rewritten.graph, classifier.preprocessing, 2, H200_CHOICE)
    check_operands(plan)
    assert not [step for step in plan.steps if step.launch.instantiation.kernel == "map"]


def test_siblings_outside_a_concat_are_slices_of_one_output() -> None:
    b = GraphBuilder(x=SHAPE)
    sum_of = [b.conv(name, b.conv(f"{name}1", "x", 8, 1, bias=False), 8) for name in "cde"]
    result = rewritten(b.build(*sum_of))
    assert kinds(result) == ["Conv", "Slice", "Conv", "Slice", "Conv", "Slice", "Conv"]


@pytest.mark.parametrize(
    "differing",
    [
        {"activation": RELU},
        {"stride": 2},
        {"kernel": 3},
        {"bias": False},
        {"k": 12},
        {"groups": 2},
        {"residual": "x"},
    ],
    ids=lambda each: next(iter(each)),
)
def test_convolutions_that_differ_stay_apart(differing: dict[str, object]) -> None:
    b = GraphBuilder(x=SHAPE)
    plain = b.conv("plain", "x", 16, 1)
    other = b.conv("other", "x", **{"k": 16, "kernel": 1} | differing)  # type: ignore[arg-type]
    graph = b.build(b.conv("y", plain), b.conv("z", other))
    result = rewritten(graph)
    assert "Slice" not in kinds(result)


def test_later_parts_and_outputs_and_nested_concats_stay_as_they_are() -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("a", "x", 8, 1)
    b.conv("c", "x", 8, 1)
    b.conv("d", "x", 8, 1)
    inner = b.concat("inner", b.conv("e", "x", 8), "c", "d")  # c and d are later parts
    b.conv("y", b.concat("outer", b.conv("f", "x", 8, 1), inner))
    assert " + " not in "".join(node.name for node in rewritten(b.build("y", "a")).graph.nodes)


def test_only_one_first_part_is_among_the_siblings() -> None:
    b = GraphBuilder(x=SHAPE)
    one = b.concat("one", b.conv("a", "x", 8, 1), b.conv("b", "x", 8))
    two = b.concat("two", b.conv("c", "x", 8, 1), b.conv("d", "x", 8))
    b.conv("z", b.conv("e", "x", 8, 1))
    result = rewritten(b.build(b.conv("y", one), b.conv("v", two), "z"))
    (merged,) = (node.name for node in result.graph.nodes if " + " in node.name)
    assert merged == "conv_e + conv_a"
    assert result.graph.values["c"].inside == ChannelSlice("two", 0)
    assert not [node for node in result.graph.nodes if isinstance(node, Identity)]
