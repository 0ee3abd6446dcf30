"""Quantizes a classifier, and refuses a result that changes too many labels.

    half of the photographs ─ ranges by three methods ─┐
    the other half ─ the best method; the error and time of each layer ─ layers in float ─ the goal?

The error is the divergence between the probabilities of the quantized model and of the float model.
Few labels change, so the number of changed labels is a coarser measure. A layer stays in float if
the goal requires it. It also stays in float if this reduces the error by a larger fraction than it
increases the time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto

from models.classifier import Classifier
from models.errors import EngineError, QuantizationError, UnsupportedModelError
from models.preprocessing import normalised
from models.quantization.candidate import (
    Method,
    Ranges,
    calibrate,
    layers,
    quantized,
    with_corrected_biases,
)
from models.quantization.journal import Journal
from models.quantization.measure import (
    Comparison,
    Goal,
    compare,
    probabilities,
    time_in_turn,
)

FEWEST = 20
"""The smallest number of photographs from which ranges and labels can be judged."""

MOST_PHOTOGRAPHS = 1000
"""The largest number of photographs that are used. More would take time and change little."""

# The opsets of the result. The oldest opset that the model allows is used.
_OPSETS = (17, 21)
# The IR version that was released with these opsets.
_IR_VERSION = 10
# The number of threads when layers are timed. Several threads would wait for each other and for
# other programs.
_ONE_THREAD = 1
# The number of images with which the error of a layer is measured.
_PROBED = 32
# The allowed time, relative to the model all in 8 bits, with layers in float that the goal does not
# require.
_SLOWER = 1.25
# The difference by which a layer's share of the error must exceed its share of the time. Repeated
# times differ by a few percent.
_PAYS = 0.1
# The batch sizes that are timed, each with its number of rounds.
_TIMED = {1: 25, 8: 9}
_ROUNDS = 20

Progress = Callable[[str, int, int], None]
"""Called with the current task, the number of its completed steps, and their total number."""


@dataclass(frozen=True, slots=True)
class Photographs:
    """Holds decoded images and, for images with known labels, the correct classes of each image."""

    names: tuple[str, ...]
    pixels: NDArray[np.uint8]
    right: tuple[frozenset[int], ...]


@dataclass(frozen=True, slots=True)
class LayerReport:
    """The divergence that the quantization of one layer adds, and the time that it saves."""

    name: str
    divergence: float
    saved: float  # the time that float adds, as a share of the time all in 8 bits
    in_float: bool


@dataclass(frozen=True, slots=True)
class BatchTime:
    """The time of a batch before and after quantization on this machine, in seconds."""

    n: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """A report of how a quantized model differs from its original."""

    model: str
    method: str
    biases_corrected: bool
    calibrated_on: int
    compared: Comparison
    layers: tuple[LayerReport, ...]
    bytes_before: int
    bytes_after: int
    times: tuple[BatchTime, ...]
    opset: int


@dataclass(frozen=True)
class _Candidate:
    """The activation ranges that one method found, and a comparison of the quantized model with the
    float model."""

    method: Method
    corrected: bool
    proto: ModelProto  # the model in float
    ranges: Ranges
    compared: Comparison


def quantize(
    classifier: Classifier,
    photographs: Photographs,
    *,
    goal: Goal,
    threads: int,
    journal: Path,
    progress: Progress,
) -> tuple[ModelProto, QuantizationReport]:
    """Return a quantized model that reaches the goal, and a report of how it differs from the
    original.

    Measurements are stored in the file `journal` until the run is complete. Raises
    QuantizationError if the goal cannot be reached, and UnsupportedModelError if the model cannot
    be quantized.
    """
    _check(classifier, len(photographs.names))
    kept = Journal(journal, _question(classifier, photographs, goal, threads))
    try:
        result = _Run(classifier, photographs, goal, threads, kept, progress).result()
    except QuantizationError:  # this is a result, too
        kept.remove()
        raise
    kept.remove()
    return result


def _check(classifier: Classifier, images: int) -> None:
    network = classifier.network
    if network.quantized:
        raise UnsupportedModelError(
            f"{classifier.name} is already quantized; quantize the original float model instead"
        )
    if network.no_kernels:
        raise UnsupportedModelError(
            f"{classifier.name} cannot be quantized, because {network.no_kernels}"
        )
    if classifier.preprocessing.frames is not None:
        raise UnsupportedModelError(
            f"{classifier.name} takes clips; only models that take images can be quantized"
        )
    check_photograph_count(images)


def check_photograph_count(photographs: int) -> None:
    """Raise QuantizationError if there are too few photographs to choose ranges and check
    labels."""
    if photographs < FEWEST:
        are = "photograph is" if photographs == 1 else "photographs are"
        raise QuantizationError(
            f"{photographs} {are} too few; give at least {FEWEST}, better several"
            " hundred. Half of them serve to choose ranges, and half to check labels"
        )


class _Run:
    """Runs the stages of one quantization: it chooses ranges, measures layers, and chooses the
    layers in float."""

    def __init__(
        self,
        classifier: Classifier,
        photographs: Photographs,
        goal: Goal,
        threads: int,
        journal: Journal,
        progress: Progress,
    ) -> None:
        self._classifier, self._goal, self._threads = classifier, goal, threads
        self._proto, self._output = classifier.network.proto, classifier.preprocessing.output
        self._journal, self._progress = journal, progress
        images = normalised(photographs.pixels, classifier.preprocessing)
        # Every second image, in the order of their names: half of each folder.
        self._seen, self._held = images[0::2], images[1::2]
        self._right = photographs.right[1::2]
        self._layers = layers(self._proto)
        if not self._layers:
            raise UnsupportedModelError(
                f"{classifier.name} has no layer to quantize: no Conv, Gemm or MatMul"
            )
        last = self._layers[list(self._layers)[-1]]
        nodes = (node for node in self._proto.graph.node if node.name in last)
        self._last = {value for node in nodes for value in node.output}
        self._before = probabilities(self._proto, self._held, self._output)
        if not np.isfinite(self._before).all():
            raise QuantizationError(
                f"{classifier.name} gives scores that are NaN or infinite; correct its preset"
            )

    def result(self) -> tuple[ModelProto, QuantizationReport]:
        """Choose the ranges and layers, check the goal, and return the model with its report."""
        best = self._best()
        if best.compared.clear == 0:
            raise QuantizationError(
                "there is no photograph whose two best probabilities are at least"
                f" {self._goal.margin:g} apart, so no label is certain. Give photographs of the"
                " model's own classes, correct its preset, or pass a smaller --margin"
            )
        found = self._layer_reports(best)
        in_float, compared = self._in_float(best, found)
        shortfall, kept = compared.shortfall(self._goal), f"{len(in_float)} of {len(found)}"
        if shortfall:
            reason = f"{shortfall}, even with {kept} layers in float"
        elif len(in_float) == len(found):
            reason = (
                f"the goal is reached only with {kept} layers in float; with all layers in 8 bits,"
                f" {best.compared.shortfall(self._goal)}"
            )
        else:
            reason = ""
        if reason:
            raise QuantizationError(
                f"{self._classifier.name} is not quantized: for {compared.images} photographs that"
                f" calibration did not use, {reason}. Give more photographs, or a lower --keep"
            )
        proto, opset = self._portable(self._build(best, in_float), self._held[:_PROBED])
        onnx.helper.set_model_props(proto, dict(self._classifier.metadata))
        times = tuple(self._time(proto, n) for n in _TIMED)
        return proto, QuantizationReport(
            model=self._classifier.name,
            method=best.method.value,
            biases_corrected=best.corrected,
            calibrated_on=len(self._seen),
            compared=compared,
            layers=tuple(
                LayerReport(layer.name, layer.divergence, layer.saved, layer.name in in_float)
                for layer in found
            ),
            bytes_before=self._proto.ByteSize(),
            bytes_after=proto.ByteSize(),
            times=times,
            opset=opset,
        )

    def _best(self) -> _Candidate:
        """Return the candidate with the smallest divergence from the float model, of all candidates
        that reach the goal.

        If no candidate reaches the goal, all candidates are considered.
        """
        candidates: list[_Candidate] = []
        steps = 2 * len(Method)
        for method in Method:
            self._progress("calibrating", len(candidates), steps)
            found = self._journal.result(
                f"ranges by {method.value}",
                partial(calibrate, self._proto, self._seen, method),
            )
            # The largest scores decide the label, so no method may cut them off.
            whole = candidates[0].ranges if candidates else found
            ranges: Ranges = {
                name: (whole if name in self._last else found)[name] for name in found
            }
            for corrected in (False, True):
                proto = self._proto
                if corrected:
                    proto = with_corrected_biases(self._proto, ranges, self._seen)
                compared = self._compare(quantized(proto, ranges))
                candidates.append(_Candidate(method, corrected, proto, ranges, compared))
        self._progress("calibrating", steps, steps)

        def by_error(candidate: _Candidate) -> tuple[bool, float]:
            return bool(candidate.compared.shortfall(self._goal)), candidate.compared.divergence

        return min(candidates, key=by_error)

    def _layer_reports(self, best: _Candidate) -> list[LayerReport]:
        """Measure, for each layer, how much the result changes if only this layer stays in
        float."""
        held, before = self._held[:_PROBED], self._before[:_PROBED]
        right = self._right[:_PROBED]

        def divergence(proto: ModelProto) -> float:
            after = probabilities(proto, held, self._output)
            return compare(before, after, right, self._goal.margin).divergence

        whole = self._build(best, ())
        of_all = divergence(whole)

        def probe(name: str) -> tuple[float, float]:
            without = self._build(best, (name,))
            all_in_8, other = time_in_turn([whole, without], held[:1], _ONE_THREAD, _ROUNDS)
            return of_all - divergence(without), other / all_in_8 - 1

        found = []
        for index, name in enumerate(self._layers):
            self._progress("measuring layers", index, len(self._layers))
            error, saved = self._journal.result(f"layer {name}", partial(probe, name))
            found.append(LayerReport(name, error, saved, in_float=False))
        self._progress("measuring layers", len(found), len(found))
        return found

    def _in_float(
        self, best: _Candidate, found: Sequence[LayerReport]
    ) -> tuple[tuple[str, ...], Comparison]:
        """Choose the layers that stay in float. Return their names, and how the resulting model
        differs from the float model."""
        names: tuple[str, ...] = ()
        compared = best.compared
        # Layers with the most error per time come first. A layer that is faster in float costs
        # nothing.
        order = sorted(
            found, key=lambda layer: layer.divergence / max(layer.saved, 0.01), reverse=True
        )
        slower = 1.0
        for index, layer in enumerate(order):
            self._progress("choosing layers", index, len(order))
            needed = bool(compared.shortfall(self._goal))
            total = slower + max(layer.saved, 0.0)
            share = layer.divergence / max(compared.divergence, 1e-9)
            if not needed and (share < max(layer.saved, 0.0) + _PAYS or total > _SLOWER):
                continue
            longer = (*names, layer.name)
            find = partial(self._compared, best, longer)
            after = Comparison(**self._journal.result("in float: " + ", ".join(longer), find))
            worse = after.shortfall(self._goal) or after.divergence >= compared.divergence
            if not needed and worse:
                continue
            names, compared, slower = longer, after, total
        self._progress("choosing layers", len(order), len(order))
        return names, compared

    def _build(self, best: _Candidate, in_float: Sequence[str]) -> ModelProto:
        nodes = [node for name in in_float for node in self._layers[name]]
        return quantized(best.proto, best.ranges, nodes)

    def _compare(self, proto: ModelProto) -> Comparison:
        after = probabilities(proto, self._held, self._output)
        return compare(self._before, after, self._right, self._goal.margin)

    def _compared(self, best: _Candidate, in_float: Sequence[str]) -> dict[str, Any]:
        return asdict(self._compare(self._build(best, in_float)))

    def _time(self, proto: ModelProto, n: int) -> BatchTime:
        images = np.resize(self._held, (n, *self._held.shape[1:]))
        before, after = time_in_turn([self._proto, proto], images, self._threads, _TIMED[n])
        return BatchTime(n, before, after)

    def _portable(self, proto: ModelProto, images: NDArray[np.float32]) -> tuple[ModelProto, int]:
        """Set the oldest opset with which the model gives exactly the same scores. Return the model
        and this opset."""
        expected = probabilities(proto, images, self._output)
        for opset in _OPSETS:
            older = ModelProto()
            older.CopyFrom(proto)
            older.ir_version = _IR_VERSION
            del older.opset_import[:]
            older.opset_import.append(onnx.helper.make_opsetid("", opset))
            try:
                onnx.checker.check_model(older, full_check=True)
                same = np.array_equal(probabilities(older, images, self._output), expected)
            except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, EngineError):
                continue  # the older opset lacks an operator, or a form of it
            if same:
                return older, opset
        return proto, max(entry.version for entry in proto.opset_import)


def _question(classifier: Classifier, photographs: Photographs, goal: Goal, threads: int) -> str:
    """Return a hash of everything that affects the measurements."""
    digest = sha256(classifier.network.proto.SerializeToString(deterministic=True))
    digest.update(photographs.pixels.tobytes())
    said: Mapping[str, Any] = {
        "right": [sorted(classes) for classes in photographs.right],
        "goal": asdict(goal),
        "threads": threads,
        "preprocessing": repr(classifier.preprocessing),
        "runtime": ort.__version__,
    }
    digest.update(repr(said).encode())
    return digest.hexdigest()
