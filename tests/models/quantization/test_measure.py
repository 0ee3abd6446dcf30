"""The changes that are counted, and the limits for them."""

from dataclasses import replace
from time import sleep

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models import BUILT_IN_MODEL
from models.onnx_loader import load_proto
from models.quantization import measure
from models.quantization.measure import (
    Comparison,
    Goal,
    compare,
    probabilities,
    time_in_turn,
)
from models.scores import OutputKind

BEFORE = np.array([[0.8, 0.1, 0.1], [0.4, 0.35, 0.25], [0.1, 0.1, 0.8], [0.3, 0.6, 0.1]])
AFTER = np.array([[0.7, 0.2, 0.1], [0.35, 0.4, 0.25], [0.1, 0.1, 0.8], [0.1, 0.2, 0.7]])
RIGHT = [frozenset({0}), frozenset({1}), frozenset[int](), frozenset({1, 2})]


def test_labels_are_counted_in_all_and_where_they_are_clear() -> None:
    found = compare(BEFORE, AFTER, RIGHT, margin=0.1)
    assert (found.images, found.kept, found.clear, found.kept_clear) == (4, 2, 3, 2)
    assert (found.named, found.right_before, found.right_after) == (3, 2, 3)
    assert (found.lost, found.won) == (0, 1)
    assert found.largest_shift == pytest.approx(0.6)
    logs = np.log(BEFORE / AFTER)
    assert found.divergence == pytest.approx((BEFORE * logs).sum() / 4)
    assert compare(BEFORE, BEFORE, RIGHT, margin=0.1).divergence == 0


def test_a_label_is_clear_from_the_margin_on() -> None:
    rows = np.array([[0.75, 0.25], [0.625, 0.375]])
    found = compare(rows, rows, [frozenset[int]()] * 2, margin=0.5)
    assert (found.clear, found.kept_clear) == (1, 1)


ALL_KEPT = Comparison(
    images=200,
    kept=200,
    clear=100,
    kept_clear=100,
    named=200,
    right_before=150,
    right_after=150,
    lost=0,
    won=0,
    largest_shift=0.0,
    divergence=0.0,
)


@pytest.mark.parametrize(
    ("changes", "goal", "shortfall"),
    [
        ({}, Goal(), ""),
        ({"kept_clear": 99}, Goal(), ""),
        ({"kept_clear": 98}, Goal(), "98 of the 100 photographs whose"),
        ({"kept_clear": 98}, Goal(keep=0.98), ""),
        ({"kept": 190}, Goal(), ""),
        ({"kept": 189}, Goal(), "189 of 200 labels are kept; the goal is 95%"),
        ({"kept": 189}, Goal(keep=0.9), ""),
        # Of 8 changes at least 7 are losses in 9 of 256 draws, at least 6 in 37.
        ({"right_after": 144, "lost": 7, "won": 1}, Goal(), "144 of 200 answers are right; 150"),
        ({"right_after": 146, "lost": 6, "won": 2}, Goal(), ""),
        ({"right_after": 156, "lost": 1, "won": 7}, Goal(), ""),
        ({"kept": 0, "kept_clear": 0}, Goal(keep=0), ""),
    ],
)
def test_the_goal_is_of_labels_and_of_accuracy(
    changes: dict[str, int], goal: Goal, shortfall: str
) -> None:
    said = replace(ALL_KEPT, **changes).shortfall(goal)
    assert said.startswith(shortfall)
    assert bool(said) is bool(shortfall)


def test_scores_become_probabilities_and_models_are_timed() -> None:
    proto = load_proto("digits", onnx.load(BUILT_IN_MODEL)).proto
    images = np.random.default_rng(0).random((10, 1, 32, 32), np.float32)
    logits = probabilities(proto, images, OutputKind.PROBABILITIES)
    softmax = probabilities(proto, images, OutputKind.LOGITS)
    np.testing.assert_allclose(softmax.sum(axis=1), 1)
    powers = np.exp(logits)
    np.testing.assert_allclose(softmax, powers / powers.sum(axis=1, keepdims=True), rtol=1e-6)
    first, second = time_in_turn([proto, proto], images[:1], 1, 3)
    assert min(first, second) > 0


def test_sums_are_measured_as_they_are_served_where_they_could_saturate() -> None:
    """Two products of 255 and 127 exceed 16 bits, in which a CPU without VNNI adds them."""
    scale, zero = np.float32(0.01), np.uint8(0)
    filters = np.full((2, 8, 1, 1), 127, np.int8)
    filters[1, ::2] = -127
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s", "w_zero"], ["f"]),
        helper.make_node("Conv", ["d", "f"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "t", "z"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "t", "z"], ["y"]),
    ]
    constants = {"s": scale, "z": zero, "t": np.float32(0.2), "w": filters, "w_zero": np.int8(0)}
    graph = helper.make_graph(
        nodes,
        "bright",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8, 1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2, 1, 1])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    bright = np.full((1, 8, 1, 1), 2.55, np.float32)
    found = probabilities(proto, bright, OutputKind.PROBABILITIES)
    np.testing.assert_allclose(found, [[8 * 2.55 * 1.27, 0]], rtol=0.01)


def test_one_thread_is_timed_by_what_it_computes_and_several_by_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "_run", lambda *_: sleep(0.05))
    proto = load_proto("digits", onnx.load(BUILT_IN_MODEL)).proto
    image = np.zeros((1, 1, 32, 32), np.float32)
    (computed,), (waited,) = (time_in_turn([proto], image, threads, 1) for threads in (1, 2))
    assert computed < 0.03
    assert waited >= 0.05
