"""The driver: fixpoint, order, history, and the removal of nodes that no node reads."""

import time

from kernels.problems.activation import RELU
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from models.graph import Conv, Graph
from models.rewrite import RewriteStep, rewrite
from tests.support.models.graphs import GraphBuilder, kinds, rewritten
from tests.support.models.slowness import idle_core


def residual_block() -> Graph:
    b = GraphBuilder(x=(8, 5, 5))
    b.scale_shift("n1", b.conv("c1", "x"))
    b.activate("r1", "n1", RELU)
    b.scale_shift("n2", b.conv("c2", "r1"))
    b.binary("s", BinaryOp.ADD, "n2", "x")
    b.activate("y", "s", RELU)
    return b.build("y")


def test_rules_feed_each_other_until_none_applies() -> None:
    result = rewritten(residual_block(), rounds=True)
    first, second = result.graph.nodes
    assert isinstance(first, Conv)
    assert isinstance(second, Conv)
    assert (first.output, first.activation, first.residual) == ("r1", RELU, None)
    assert (second.output, second.activation, second.residual) == ("y", RELU, "x")
    assert result.refused == ()


def test_rewriting_again_changes_nothing() -> None:
    once = rewrite(residual_block())
    twice = rewrite(once.graph)
    assert twice.applied == ()
    assert twice.graph.nodes == once.graph.nodes


def test_values_and_weights_that_nothing_uses_are_dropped() -> None:
    graph = rewrite(residual_block()).graph
    assert set(graph.values) == {"x", "r1", "y"}
    assert set(graph.weights) == {"c1.weight", "c1.bias", "c2.weight", "c2.bias"}


def test_nodes_that_no_output_needs_are_dropped() -> None:
    b = GraphBuilder(x=(8, 5, 5))
    b.conv("y", "x")
    b.activate("unread", b.conv("c", "x"), RELU)
    result = rewritten(b.build("y"))
    assert [node.output for node in result.graph.nodes] == ["y"]
    assert result.applied == ()


def test_the_history_of_a_node_names_the_rewrites_that_made_it() -> None:
    result = rewrite(residual_block())
    assert result.made_by("conv_c1") == (
        RewriteStep("fold_scale_shift", ("scaleshift_n1", "conv_c1"), ("conv_c1",)),
        RewriteStep("fuse_activation", ("activate_r1", "conv_c1"), ("conv_c1",)),
    )
    assert [step.rule for step in result.made_by("conv_c2")] == [
        "fold_scale_shift",
        "fuse_activation",
        "fuse_residual",
    ]
    assert result.made_by("activate_y") == ()


def test_history_follows_a_node_that_was_itself_rewritten_before_it_was_folded() -> None:
    b = GraphBuilder(x=(8, 5, 5))
    b.binary("y", BinaryOp.MUL, b.conv("c", "x"), 2.0)
    result = rewritten(b.build("y"), rounds=True)
    rules = [step.rule for step in result.made_by("conv_c")]
    assert rules == ["canonical_scale_shift", "fold_scale_shift"]


def test_a_refusal_that_a_later_rewrite_resolves_is_not_reported() -> None:
    b = GraphBuilder(x=(8, 5, 5))
    b.conv("c", "x")
    b.scale_shift("n", "c")
    b.binary("unread", BinaryOp.MUL, "c", "c")  # would hold c in memory
    b.identity("y", "n")
    result = rewritten(b.build("y"), rounds=True)
    assert kinds(result) == ["Conv"]
    assert result.refused == ()


def test_inputs_and_outputs_keep_their_names_and_order() -> None:
    b = GraphBuilder(b=(8, 5, 5), a=(8, 5, 5))
    b.identity("second", b.conv("c", "a"))
    b.activate("first", b.conv("d", "b"), RELU)
    graph = rewritten(b.build("second", "first")).graph
    assert graph.inputs == ("b", "a")
    assert graph.outputs == ("second", "first")


def test_nine_hundred_nodes_are_rewritten_within_two_seconds() -> None:
    b = GraphBuilder(x=(8, 2, 2))
    x = b.pool("p", "x", PoolKind.MAX, 1, stride=2)
    for layer in range(180):  # DenseNet's layers: 5 nodes each, and Concats that keep growing
        b.scale_shift(f"n{layer}", x)
        b.activate(f"r{layer}", f"n{layer}", RELU)
        b.conv(f"c{layer}", f"r{layer}", kernel=1)
        b.scale_shift(f"m{layer}", f"c{layer}")
        x = b.concat(f"x{layer}", x, f"m{layer}")
    graph = b.build(x)
    with idle_core(time.process_time) as spent:
        result = rewrite(graph)
    assert spent.seconds < 2
    assert set(kinds(result)) == {"Pool", "ScaleShift", "Conv"}
