"""Plans are pure, with few launches and little memory, and every operand is where it may be."""

from dataclasses import replace
from functools import lru_cache
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.convolution.algorithms import ConvChoice, choices
from kernels.problems.activation import Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.tuning.heuristic import Facts, heuristic
from models.classifier import Classifier
from models.graph import Activate, Graph
from models.lowering import BufferOperand, Choose, lower
from models.plan import Pays, Plan, Region, build_plan
from models.rewrite import rewrite
from models.schedule.branches import in_order
from tests.support.kernels.arrays import FLOATING
from tests.support.models.engines import classifier_of, network_of, with_one_output
from tests.support.models.graphs import GraphBuilder
from tests.support.models.plans import check_operands, in_turn, least_arena, lower_bound
from tests.support.models.random_graphs import Draw
from tests.support.networks import EACH_NETWORK, light_network

H200 = heuristic(Facts(132))
# Launches, preprocessing and ranking included, each Conv counted once: what the CUDA engine
# promises for the four that have a bound.
MOST_LAUNCHES = {"squeezenet": 32, "vgg19": 26, "resnet50": 58, "inception_v1": 58}
# Of all launches, where tensor cores compute the convolutions.
MOST_ON_TENSOR_CORES = {"squeezenet": 32, "resnet50": 54, "inception_v1": 60}


@lru_cache(maxsize=1)
def network(name: str) -> Classifier:
    return network_of(name, light_network(name))


def plan_of(graph: Graph, n: int = 1, choose: Choose = H200, pays: Pays = lambda *_: False) -> Plan:
    return build_plan(graph, classifier_of(graph).preprocessing, n, choose, pays=pays)


def always(*_: object) -> bool:
    """Let branches run concurrently, whatever the cost model predicts."""
    return True


@EACH_NETWORK
def test_a_networks_plan_is_small_and_short(name: str) -> None:
    graph = network(name).rewritten.graph
    for n in (1, 8):
        more: list[int] = []  # launches of a Conv beyond the first

        def choose(problem: ConvProblem, more: list[int] = more) -> ConvChoice:
            choice = H200(problem)
            more.append(len(choice.algorithm.work(problem, choice.config)) - 1)
            return choice

        plan = plan_of(graph, n, choose)
        assert plan.arena_bytes <= 1.15 * lower_bound(plan.buffers)
        assert len(plan.steps) - sum(more) <= MOST_LAUNCHES.get(name, len(graph.nodes) + 2)
        check_operands(plan)


@pytest.mark.parametrize("precision", [each for each in FLOATING if each is not Precision.FP32])
@pytest.mark.parametrize("name", MOST_ON_TENSOR_CORES)
def test_a_network_on_tensor_cores_takes_few_launches(name: str, precision: Precision) -> None:
    graph = replace(network(name), precision=precision).rewritten.graph
    for n in (1, 2, 8):
        steps = plan_of(graph, n).steps
        # In fp16 every convolution takes one launch; else those of non-fused Winograd take three.
        counted = steps if precision is Precision.FP16 else {step.name for step in steps}
        assert len(counted) <= MOST_ON_TENSOR_CORES[name]


@EACH_NETWORK
def test_branches_side_by_side_take_little_more_memory(name: str) -> None:
    graph = network(name).rewritten.graph
    for n in (1, 8):
        plan = plan_of(graph, n, pays=always)
        assert plan.arena_bytes <= 1.05 * least_arena(plan)
        check_operands(plan)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_buffers_of_a_random_graph_that_may_be_in_use_at_once_lie_apart(
    data: st.DataObject,
) -> None:
    graph = rewrite(with_one_output(Draw(data).graph())).graph
    n = data.draw(st.integers(1, 3), "n")
    tape = lower(graph, classifier_of(graph).preprocessing, n, H200)
    plan = plan_of(graph, n, pays=always)
    users: dict[tuple[str, Region, int, int], set[int]] = {}  # by buffer: region, begin, end
    for index, (step, planned) in enumerate(zip(tape.steps, plan.steps, strict=True)):
        for name, operand in step.operands.items():
            if isinstance(operand, BufferOperand):
                at = planned.operands[name]
                begin = at.offset - operand.offset
                place = at.region, begin, begin + tape.buffers[operand.root]
                users.setdefault((operand.root, *place), set()).add(index)
    apart = in_turn(plan)
    for (one, steps), (other, theirs) in combinations(users.items(), 2):
        if one[1] is other[1] and one[2] < other[3] and other[2] < one[3]:
            assert apart(steps, theirs), (one, other)


def test_convolutions_on_one_value_run_side_by_side_and_their_sum_after_both() -> None:
    b = GraphBuilder(0, x=(8, 4, 4))
    first = b.conv("first", "x", 8, 3)
    left, right = b.conv("left", first, 8, 3), b.conv("right", first, 8, 1)
    graph = b.build(b.binary("y", BinaryOp.ADD, left, right))
    plan, chain = plan_of(graph, pays=always), plan_of(graph)
    names = [step.name for step in plan.steps]
    waits = {
        names[step]: {names[other] for other in after} for step, after in enumerate(plan.after)
    }
    assert waits["conv_left"] == waits["conv_right"] == {"conv_first"}
    assert waits["binary_y"] == {"conv_left", "conv_right"}
    assert chain.after == in_order(len(chain.steps))


def test_the_same_graph_gives_the_same_plan() -> None:
    graph = network("squeezenet").rewritten.graph
    first, second = plan_of(graph, 4), plan_of(graph, 4)
    assert first.steps == second.steps
    assert first.offsets == second.offsets


def test_every_flop_and_byte_of_the_network_is_some_steps() -> None:
    graph = network("squeezenet").rewritten.graph
    one, eight = (plan_of(graph, n) for n in (1, 8))
    assert sum(s.cost.flops for s in eight.steps) == 8 * sum(s.cost.flops for s in one.steps)
    assert sum(s.cost.flops for s in one.steps) > 700e6  # SqueezeNet: 0.35 G multiply-adds


def test_plans_of_all_n_share_their_weights_where_they_choose_alike() -> None:
    def direct(problem: ConvProblem) -> ConvChoice:
        return next(each for each in choices(problem) if each.algorithm.name == "direct")

    graph = network("squeezenet").rewritten.graph
    weights = [plan_of(graph, n, direct).weights for n in (1, 2, 8)]
    assert weights[0].keys() == weights[1].keys() == weights[2].keys()


def relu_chain() -> Graph:
    b = GraphBuilder(0, x=(8, 4, 4))
    y = b.conv("c", "x", 8, 3)
    for index in range(3):
        y = b.add(Activate, f"r{index}", b.shapes[y], x=y, activation=_leaky(index))
    return b.build(y)


def _leaky(index: int) -> Activation:
    return Activation(ActivationKind.LEAKY_RELU, 0.1 + index)


def test_an_activation_overwrites_what_nobody_else_reads() -> None:
    plan = plan_of(relu_chain())
    activations = [step for step in plan.steps if step.name.startswith("activate_")]
    assert len(activations) == 3
    assert all(step.operands["x"] == step.operands["y"] for step in activations)


def test_what_is_read_again_is_not_overwritten() -> None:
    b = GraphBuilder(0, x=(8, 4, 4))
    c = b.conv("c", "x", 8, 3)
    r = b.add(Activate, "r", b.shapes[c], x=c, activation=_leaky(0))
    plan = plan_of(b.build(b.binary("y", BinaryOp.ADD, r, c)))
    step = next(step for step in plan.steps if step.name == "activate_r")
    assert step.operands["x"] != step.operands["y"]


def test_a_convolution_may_overwrite_its_residual_but_never_its_input() -> None:
    b = GraphBuilder(0, x=(8, 4, 4))
    first = b.conv("first", "x", 8, 3)
    own = b.binary("own", BinaryOp.ADD, b.conv("a", first, 8, 3), first)  # residual = input
    other = b.conv("other", own, 8, 3)
    plan = plan_of(
        rewrite(b.build(b.binary("y", BinaryOp.ADD, b.conv("b", other, 8, 3), own))).graph
    )
    steps = [step for step in plan.steps if "residual" in step.operands]
    assert len(steps) == 2
    assert all(step.operands["y"] != step.operands["x"] for step in steps)
    assert steps[0].operands["residual"] == steps[0].operands["x"]


def test_concatenated_parts_are_written_side_by_side_without_a_copy() -> None:
    b = GraphBuilder(0, x=(8, 4, 4))
    parts = [b.conv(f"c{index}", "x", 16, 1) for index in range(3)]
    graph = rewrite(b.build(b.conv("end", b.concat("y", *parts), 8, 1))).graph
    plan = plan_of(graph)
    parts_written = [step for step in plan.steps if step.name.startswith("conv_c")]
    assert [s.name for s in plan.steps if s not in parts_written] == [
        "convoy/images",
        "conv_end",
        "end/scores",  # C×H×W of its own, brought into the order of scores
        "convoy/results",
    ]
    offsets = [step.operands["y"].offset for step in parts_written]
    assert [b - a for a, b in pairwise(offsets)] == [4 * 16, 4 * 16]


def test_a_tensor_beyond_32_bit_indices_is_refused() -> None:
    b = GraphBuilder(0, x=(8, 4, 4))
    graph = b.build(b.conv("c", "x", 8, 3))
    with pytest.raises(ValueError, match="32 bits"):
        plan_of(graph, 2**25)


def test_weights_are_made_as_the_kernels_read_them() -> None:
    b = GraphBuilder(0, x=(8, 4, 4))
    graph = b.build(b.gemm("fc", b.reshape("flat", "x", (128,))))
    made = {key: make() for key, make in plan_of(graph).weights.items()}
    assert all(array.dtype == np.float32 for array in made.values())
    assert {"convoy/multiplier", "convoy/offset"} <= made.keys()


def test_pixels_that_become_channels_are_copied_once() -> None:
    """Swin merges 2 × 2 tokens like this: the copy has the layout that the next convolution
    reads."""
    b = GraphBuilder(x=(8, 4, 4))
    apart = b.reshape("r", b.transpose("t", b.conv("c", "x"), 1, 2, 0), (2, 2, 2, 2, 8))
    joined = b.reshape("j", b.transpose("u", apart, 0, 2, 1, 3, 4), (2, 2, 32))
    b.conv("y", b.transpose("v", joined, 2, 0, 1), kernel=1)
    plan = plan_of(rewrite(b.build("y")).graph)
    copies = [step for step in plan.steps if step.launch.instantiation.kernel == "map"]
    assert [step.name for step in copies if step.name.startswith("reshape")] == ["reshape_j"]
    assert not [step for step in copies if step.name.startswith("transpose")]
