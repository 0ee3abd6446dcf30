"""Compares a newly opened engine with ONNX Runtime's results for the original model file.

All engines run the converted model. Only this comparison can therefore find a conversion that
changes scores.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto

from models.as_given import AsGiven, GivenFile, GivenModel, in_floats
from models.classifier import Classifier
from models.engines.engine import Engine, Scores
from models.engines.tolerance import relative_error, repeat_tolerance, score_tolerance
from models.errors import EngineError, ModelError, UnsupportedModelError
from models.onnx_loader import FileLimits, expose, read_model

if TYPE_CHECKING:  # it imports the planner, which only a GPU needs
    from models.lowering import Choose

# Relative to an image's largest score. A network's rounding alone may allow a larger difference.
_ALLOWED = 1e-3
# In 8 bits, a number between two codes is rounded to either of them. This moves the layer's results
# by whole steps, which the next layers multiply. Example: NNCF's MobileNetV2 with random weights
# differs by 0.2 if scales are folded into its filters: 2 codes in 100,000 of the second layer
# differ, and three quarters of the codes of the last layer.
_ALLOWED_IN_8_BITS = 0.25
# Some networks amplify rounding errors: networks with random weights, or with logits of thousands.
# Allow this multiple of the difference between ONNX Runtime's two ways to run a file, but at most
# the second number.
_OF_OWN, _MOST_OF_OWN = 2.0, 0.05
# The number of values that one session returns, which bounds the memory.
_AT_ONCE = 32

_log = logging.getLogger("convoy")


def compare(engine: Engine, classifier: Classifier) -> None:
    """Raise UnsupportedModelError unless the engine's scores agree with the scores that ONNX
    Runtime computes from the original file.

    Scores that are NaN or infinite are always refused. If ONNX Runtime cannot run the original
    file, this is logged and the comparison is skipped. Both sides get the same normalised tensors,
    so the result does not depend on the preprocessing.
    """
    given = classifier.given
    if given is None or given.is_compared:
        return
    scores = np.concatenate([engine.run(tensor[np.newaxis]).scores for tensor in given.tensors])
    _check_finite(classifier, scores)
    expected = given.scores()
    if isinstance(expected, str):
        _log.info(
            "%s: its scores were not compared with ONNX Runtime's scores for the file: %s",
            classifier.name,
            expected,
        )
        given.is_compared = True
        return
    allowed = tolerance(classifier, expected)
    errors = [
        relative_error(ours[np.newaxis], theirs[np.newaxis])
        for ours, theirs in zip(scores, expected, strict=True)
    ]
    worst, of_own = int(np.argmax(errors)), ""
    if errors[worst] > allowed:
        given.own_difference = _own_difference(classifier, given)
        allowed = tolerance(classifier, expected)
        own = f"{given.own_difference:.1e}"
        of_own = f" (ONNX Runtime's own optimisations change its scores by {own})"
    if errors[worst] <= allowed:
        given.is_compared = True
        if of_own:
            _log.warning(
                "%s amplifies rounding errors: its scores differ from ONNX Runtime's scores for the"
                " file by %.1e of the largest score%s",
                classifier.name,
                errors[worst],
                of_own,
            )
        return
    raise UnsupportedModelError(
        f"{classifier.name} is not served: Convoy's scores differ from ONNX Runtime's scores for"
        f" the original file by {errors[worst]:.1e} of the largest score{of_own};"
        f" at most {allowed:.1e} is allowed. {_cause(classifier, given, worst, allowed)} Export the"
        " model with another opset, and report this error"
    )


def tolerance(
    classifier: Classifier,
    expected: Scores,
    choose: "Choose | None" = None,
    *,
    on_kernels: bool = False,
) -> float:
    """Return the allowed difference between an engine's scores and the scores of the original file,
    relative to the largest score.

    `on_kernels` is true for an engine that runs Convoy's kernels. `choose` then returns the
    algorithm of each convolution.
    """
    least = _ALLOWED_IN_8_BITS if classifier.network.quantized else _ALLOWED
    if classifier.given is not None:
        least = max(least, min(_OF_OWN * classifier.given.own_difference, _MOST_OF_OWN))
    smallest = float(expected.min())
    if on_kernels:
        return max(least, score_tolerance(classifier, smallest, choose))
    return max(least, repeat_tolerance(classifier, smallest))


def _own_difference(classifier: Classifier, given: AsGiven) -> float:
    """Return how much ONNX Runtime's optimisations change the file's scores, relative to the
    largest score.

    For an 8-bit model, the result is 0: integer kernels may overflow, and the difference would then
    not measure rounding alone.
    """
    if classifier.path is None or classifier.network.quantized:
        return 0.0
    try:
        optimised, exact = (
            _scores_of_the_file(classifier.path, classifier, given, exact=exact)
            for exact in (False, True)
        )
    except (ModelError, EngineError):  # the file is missing, or the session cannot run it
        return 0.0
    difference = relative_error(optimised, exact)
    return difference if np.isfinite(difference) else 0.0


def _scores_of_the_file(
    path: Path, classifier: Classifier, given: AsGiven, *, exact: bool
) -> Scores:
    proto = read_model(path, FileLimits(external_data=True))
    expose(proto, classifier.network.graph.outputs[0])
    run = GivenFile(
        proto,
        proto.graph.output[0].name,
        as_it_is=bool(classifier.network.no_kernels),
        threads=1,
        exact=exact,
    )
    return run(given.tensors)


def _check_finite(classifier: Classifier, scores: Scores) -> None:
    """Raise UnsupportedModelError if an image's scores cannot rank classes.

    This is the case if a score is NaN, or if the largest score is infinite.
    """
    bad = ~np.isfinite(scores.max(axis=1))
    if bad.any():
        raise UnsupportedModelError(
            f"{classifier.name} is not served: its scores for {int(bad.sum())} of {len(scores)}"
            " test images are not finite (NaN or infinite). A weight or another constant is"
            " probably invalid; export an earlier checkpoint, in float32"
        )


def _cause(classifier: Classifier, given: AsGiven, index: int, allowed: float) -> str:
    """Return a sentence that names the first node whose result differs from the file's result.

    The sentence is "" if no node can be named.
    """
    if classifier.path is None or classifier.network.no_kernels:
        return ""
    try:
        proto = read_model(classifier.path, FileLimits(external_data=True))
        return _first_difference(
            in_floats(proto), classifier.network.proto, given.tensors[index], allowed
        )
    except ModelError as error:  # the file may be missing now
        return f"The operator that differs could not be found: {error}."


def _first_difference(
    proto: ModelProto, normal: ModelProto, tensor: NDArray[np.float32], allowed: float
) -> str:
    others = {
        value.name
        for value in normal.graph.value_info
        if value.type.tensor_type.elem_type not in (TensorProto.UNDEFINED, TensorProto.FLOAT)
    }
    ours = {name for node in normal.graph.node for name in node.output} - others
    made = {name: node for node in proto.graph.node for name in node.output}
    common = [name for name in made if name in ours]
    for start in range(0, len(common), _AT_ONCE):
        names = common[start : start + _AT_ONCE]
        given, served = (_values(model, names, tensor) for model in (proto, normal))
        for name in names:
            if _differ(served[name], given[name], allowed):
                causes = _converted(name, made, ours) or [made[name]]
                named = ", ".join(f"{n.op_type} {n.name or n.output[0]}" for n in causes[:4])
                return f"The cause is {named}: the first result that differs is {name}."
    return "All intermediate results that exist in the file and in Convoy's form of it agree."


def _converted(
    name: str, made: Mapping[str, NodeProto], kept: Collection[str]
) -> Sequence[NodeProto]:
    """Return the file's nodes from which the result `name` is computed, back to the results in
    `kept`. `made` maps each result to its node.

    The node that computes `name` itself is not included.
    """
    found: list[NodeProto] = []
    pending = [*made[name].input]
    while pending:
        value = pending.pop()
        if value in made and value not in kept and made[value] not in found:
            found.append(made[value])
            pending += made[value].input
    return found


def _differ(a: NDArray[np.float32], b: NDArray[np.float32], allowed: float) -> bool:
    if a.size != b.size or not a.size:
        return a.size != b.size
    return not relative_error(a[np.newaxis], b[np.newaxis]) <= allowed  # also true for NaN


def _values(
    proto: ModelProto, names: Sequence[str], tensor: NDArray[np.float32]
) -> "dict[str, NDArray[np.float32]]":
    copy = ModelProto()
    copy.CopyFrom(proto)
    return dict(GivenModel(copy, names).run(tensor))
