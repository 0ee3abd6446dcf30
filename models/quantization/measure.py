"""Measures how quantization changes labels, accuracy, probabilities and time."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, comb
from time import perf_counter, thread_time

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto

from models.engines.saturation import pairs_saturate
from models.engines.unsigned import on_integers
from models.errors import EngineError
from models.scores import OutputKind, probabilities_of
from models.session import open_session

Tensors = NDArray[np.float32]
Probabilities = NDArray[np.float64]

# The fraction of labels that must be kept among all images, unless the goal asks for less. Images
# whose two best probabilities are nearly equal change their labels.
_OF_ALL = 0.95
# A loss of accuracy counts if its probability would be lower than this for two equally good models.
_SIGNIFICANT = 0.05
# Two probabilities below this count as equal. The logarithm of 0 would dominate all other terms.
_TINY = 1e-9
_BATCH = 8


@dataclass(frozen=True)
class Goal:
    """The goal of a quantization: at least the fraction `keep` of the labels must stay the same.

    Only images whose two highest probabilities differ by at least `margin` count.
    """

    keep: float = 0.99
    margin: float = 0.1


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between the labels, correct answers and probabilities of two models for the
    same images."""

    images: int
    kept: int
    clear: int  # images whose two best probabilities differ by at least `margin`
    kept_clear: int
    named: int  # images whose true label is known
    right_before: int
    right_after: int
    lost: int  # right answers that became wrong
    won: int
    largest_shift: float  # the largest change of a probability
    divergence: float  # the Kullback-Leibler divergence, averaged over the images

    def shortfall(self, goal: Goal) -> str:
        """Return the reason why the comparison misses the goal, or "" if it reaches the goal."""
        if self.kept_clear < ceil(goal.keep * self.clear - 1e-9):
            return (
                f"{self.kept_clear} of the {self.clear} photographs whose two best probabilities"
                f" are at least {goal.margin:g} apart keep their label; the goal is {goal.keep:.1%}"
            )
        of_all = min(_OF_ALL, goal.keep)
        if self.kept < ceil(of_all * self.images - 1e-9):
            return f"{self.kept} of {self.images} labels are kept; the goal is {of_all:.0%}"
        if self.lost > self.won and _chance(self.lost, self.lost + self.won) < _SIGNIFICANT:
            return (
                f"{self.right_after} of {self.named} answers are right;"
                f" {self.right_before} were right before"
            )
        return ""


def _chance(lost: int, changed: int) -> float:
    """Return the probability that at least `lost` of `changed` changes are losses, if losses and
    gains are equally likely."""
    ways = sum(comb(changed, k) for k in range(lost, changed + 1))
    return float(ways / 2**changed)


def compare(
    before: Probabilities, after: Probabilities, right: Sequence[frozenset[int]], margin: float
) -> Comparison:
    """Compare two models' probabilities for the same images. `right` has the correct classes of
    each image."""
    best = np.sort(before, axis=1)
    clear = best[:, -1] - best[:, -2] >= margin
    was, is_ = before.argmax(axis=1), after.argmax(axis=1)
    kept = was == is_
    named = [index for index, classes in enumerate(right) if classes]
    good = [(was[i] in right[i], is_[i] in right[i]) for i in named]
    logs = np.log(np.maximum(before, _TINY)) - np.log(np.maximum(after, _TINY))
    return Comparison(
        images=len(kept),
        kept=int(kept.sum()),
        clear=int(clear.sum()),
        kept_clear=int(kept[clear].sum()),
        named=len(named),
        right_before=sum(first for first, _ in good),
        right_after=sum(second for _, second in good),
        lost=sum(first and not second for first, second in good),
        won=sum(second and not first for first, second in good),
        largest_shift=float(np.abs(before - after).max()),
        divergence=float((before * logs).sum(axis=1).mean()),
    )


def probabilities(proto: ModelProto, images: Tensors, output: OutputKind) -> Probabilities:
    """Return a model's probabilities, computed with one thread so that they are reproducible."""
    try:
        session = _opened(proto, 1)
    except Exception as error:  # ONNX Runtime's exceptions have no other common base class
        raise EngineError(f"ONNX Runtime cannot open the model: {error}") from error
    batches = (images[i : i + _BATCH] for i in range(0, len(images), _BATCH))
    scores = np.concatenate([_run(session, batch) for batch in batches]).astype(np.float64)
    return probabilities_of(scores, output)


def _opened(proto: ModelProto, threads: int) -> ort.InferenceSession:
    """Open a model with ONNX Runtime in the form that engines run.

    In a quantized model, this form prevents sums of 8-bit products from saturating.
    """
    if any(node.op_type == "QuantizeLinear" for node in proto.graph.node):
        proto = on_integers(proto, pairs_saturate=pairs_saturate())
    return open_session(proto.SerializeToString(), threads)


def _run(session: ort.InferenceSession, images: Tensors) -> Tensors:
    (image,) = session.get_inputs()
    (scores,) = session.run(None, {image.name: images})
    rows: Tensors = np.reshape(scores, (len(images), -1))
    return rows


def time_in_turn(
    models: Sequence[ModelProto], images: Tensors, threads: int, rounds: int
) -> list[float]:
    """Return the shortest time, in seconds, that each model takes for a batch of all images.

    The models run alternately, so that other programs slow all of them equally. Other programs can
    only add time, so the shortest of several runs is closest to the true time. If one thread is
    used, its processor time is measured, which excludes waiting for other programs.
    """
    clock = thread_time if threads == 1 else perf_counter
    sessions = [_opened(model, threads) for model in models]
    seconds: list[list[float]] = [[] for _ in models]
    for count in range(rounds + 1):
        for session, own in zip(sessions, seconds, strict=True):
            started = clock()
            _run(session, images)
            if count:  # the first run allocates memory and does not count
                own.append(clock() - started)
    return [min(own) for own in seconds]
