"""A final softmax has no launch of its own; scores and ranking stay probabilities."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from kernels.device.device import Device
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from kernels.problems.precision import Precision
from models.engines.tolerance import relative_error
from models.graph import Graph, Softmax
from models.lowering import lower
from models.lowering.last_softmax import without_last_softmax
from models.scores import OutputKind
from tests.support.models.engines import (
    H200_CHOICE,
    classifier_of,
    network_tolerance,
    opened,
    pixels,
    reference_scores,
)
from tests.support.models.graphs import GraphBuilder

CLASSES = 40
Ending = Callable[[GraphBuilder], str]


def pooled(b: GraphBuilder) -> str:
    """SqueezeNet has no linear layer at its end, so fp16 stores the logits as float16."""
    return b.pool("logits", b.conv("c", "x", CLASSES), PoolKind.AVERAGE, 5)


def linear(b: GraphBuilder, *shape: int) -> str:
    flat = b.gemm("logits", b.reshape("flat", b.conv("c", "x", 4), (4 * 5 * 5,)), CLASSES)
    return b.reshape("shaped", flat, shape) if shape else flat


def softmax(b: GraphBuilder, x: str, axis: int = 0, *, log: bool = False) -> str:
    return b.add(Softmax, "y", b.shapes[x], x=x, axis=axis, log=log)


def read_twice(b: GraphBuilder) -> str:
    y = softmax(b, linear(b))
    b.binary("twice", BinaryOp.MUL, y, 2.0)
    return y


RANKED: Mapping[str, Ending] = {
    "of pooled pixels": lambda b: softmax(b, pooled(b)),
    "of pooled pixels, then flat": lambda b: b.reshape("z", softmax(b, pooled(b)), (CLASSES,)),
    "of a linear layer": lambda b: softmax(b, linear(b)),
    "along a later axis": lambda b: softmax(b, linear(b, 1, CLASSES), 1),
}
LEFT: Mapping[str, Ending] = {
    "no softmax": linear,
    "its logarithm": lambda b: softmax(b, linear(b), log=True),
    "of some of the classes": lambda b: softmax(b, linear(b, 2, CLASSES // 2), 1),
    "followed by arithmetic": lambda b: b.binary("z", BinaryOp.MUL, softmax(b, linear(b)), 2.0),
    "read by another node too": read_twice,
}


def built(ending: Ending) -> Graph:
    b = GraphBuilder(0, x=(3, 5, 5))
    return b.build(ending(b))


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
@pytest.mark.parametrize("ending", RANKED)
def test_scores_are_probabilities_and_so_are_those_ranked(
    ending: str, precision: Precision, device: Device
) -> None:
    classifier = replace(classifier_of(built(RANKED[ending])), precision=precision)
    images = pixels(classifier, 2)
    engine = opened(classifier, device, max_batch=2)
    kernels = [step.launch.instantiation.kernel for step in engine.plans[2].steps]
    assert kernels[-1] == "top_k"
    assert "softmax" not in kernels
    scores, ranked, *_ = engine.run(images)
    tolerance = network_tolerance(classifier.rewritten.graph)
    assert relative_error(scores, reference_scores(classifier, images)) < tolerance
    assert ranked is not None
    indices = ranked.indices.astype(int)
    assert (indices == np.argsort(-scores, axis=1, kind="stable")[:, : indices.shape[1]]).all()
    assert (ranked.probabilities == np.take_along_axis(scores, indices, axis=1)).all()
    engine.close()


@pytest.mark.parametrize("ending", LEFT)
def test_any_other_end_keeps_its_launches(ending: str) -> None:
    assert without_last_softmax(built(LEFT[ending])) is None


def test_where_probabilities_are_taken_as_logits_they_stay_the_scores() -> None:
    classifier = classifier_of(built(RANKED["of a linear layer"]))
    said = replace(classifier.preprocessing, output=OutputKind.LOGITS)
    tape = lower(classifier.rewritten.graph, said, 1, H200_CHOICE)
    assert "softmax" in [step.launch.instantiation.kernel for step in tape.steps]
