"""A Concat reads an earlier Concat of its first parts."""

import pytest

from models.graph import Concat
from models.rewrite import RewriteResult
from models.rewrite.nest_concats import nest_concats
from tests.support.models.graphs import GraphBuilder, rewritten

SHAPE = (8, 4, 4)


def convs(names: str) -> GraphBuilder:
    b = GraphBuilder(x=SHAPE)
    for name in names:
        b.conv(name, "x")
    return b


def parts(result: RewriteResult) -> dict[str, tuple[str, ...]]:
    return {node.output: node.parts for node in result.graph.nodes if isinstance(node, Concat)}


def test_each_concat_reads_the_longest_before_it() -> None:
    b = convs("cdef")
    b.concat("two", "c", "d")
    b.concat("three", "c", "d", "e")
    b.concat("four", "c", "d", "e", "f")
    result = rewritten(b.build("two", "three", "four"), rules=(nest_concats,))
    assert parts(result) == {"two": ("c", "d"), "three": ("two", "e"), "four": ("three", "f")}


@pytest.mark.parametrize(
    ("first", "axis"),
    [(("c", "d"), 1), (("d", "c"), 0), (("d", "e"), 0)],
    ids=["another axis", "another order", "not the first parts"],
)
def test_another_concat_is_not_read(first: tuple[str, ...], axis: int) -> None:
    b = convs("cde")
    b.concat("two", *first, axis=axis)
    b.concat("three", "c", "d", "e")
    result = rewritten(b.build("two", "three"), rules=(nest_concats,))
    assert parts(result) == {"two": first, "three": ("c", "d", "e")}


def test_a_concat_that_runs_later_is_not_read() -> None:
    b = convs("cde")
    b.concat("three", "c", "d", "e")
    b.concat("two", "c", "d")
    result = rewritten(b.build("three", "two"), rules=(nest_concats,))
    assert parts(result) == {"three": ("c", "d", "e"), "two": ("c", "d")}
