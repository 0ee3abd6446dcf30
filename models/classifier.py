"""Reads and checks an image classifier: a network, and the preprocessing of its pixels."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from kernels.problems.precision import Precision
from models import imagenet
from models.as_given import AsGiven, GivenFile
from models.description import description_to_write, load_description
from models.errors import NoKernelsError, NotScoresError, UnsupportedModelError
from models.graph import Shape
from models.inner import find_embedding, in_onnx, origin, why_shut
from models.maps import find_maps
from models.onnx_loader import (
    FileLimits,
    LoadedModel,
    Outputs,
    expose,
    image_input,
    labels_of,
    load_proto,
    metadata_of,
    read_model,
    take_outputs,
    weighs_halves,
)
from models.onnx_loader.own_normalisation import own_normalisation
from models.precision import at_precision, kept_in_float
from models.preprocessing import Layout, Preprocessing, checked_labels, normalised
from models.readers import TRITONS
from models.rewrite import (
    RULES,
    RULES_AT_A_PRECISION,
    RULES_OF_INTEGERS,
    RewriteResult,
    RuleRefusal,
    rewrite,
)
from models.scores import Meaning, OutputKind, classes_of, meaning_of
from models.served import UNSOUGHT, Absent, Inner, Maps, Serving

_log = logging.getLogger(__name__)


TestImages = Callable[[Preprocessing], NDArray[np.uint8]]
"""Returns photographs as pixels of the network's size, N×H×W×C."""


@dataclass(frozen=True)
class Classifier:
    """Holds a network that returns one row of scores per image, and the preprocessing of its
    images."""

    name: str
    network: LoadedModel
    preprocessing: Preprocessing
    classes: int
    precision: Precision = Precision.FP32
    serving: Serving = field(default_factory=Serving)
    origin: str = ""  # one line: the facts that each file gave
    embedding: Inner | Absent = UNSOUGHT
    maps: Maps | Absent = UNSOUGHT  # the parts of the image that decided the scores
    keeps_input: bool = False  # whether engines can return the network's input, too
    takes_halves: bool = False  # the file's input is float16; engines take float32 in any case
    shown: bool = True  # whether the file or its graph shows what the scores are
    why: str = ""  # the reason for the kind of scores
    warning: str = ""  # why the model's answers are probably wrong
    path: Path | None = None  # the model file
    metadata: Mapping[str, str] = field(default_factory=dict)  # for files made from it, too
    given: AsGiven | None = None  # the scores of the original file

    @property
    def is_multi_label(self) -> bool:
        """Return whether an image may have several labels, or no label."""
        return self.classes > 1 and self.preprocessing.output.is_independent

    @property
    def scores(self) -> str:
        """Return a phrase for users with the name of the scores' output and the kind of the
        scores."""
        (output,) = self.network.graph.outputs
        said = meaning_of(self.preprocessing.output, self.classes)
        return f'its scores, "{output}", are {said}{f" ({self.why})" if self.why else ""}'

    @property
    def input(self) -> Inner:
        """Return the network's input, the value that engines compute from images."""
        (name,) = self.network.graph.inputs
        return Inner(name, self.network.graph.shape(name))

    @property
    def inner(self) -> Mapping[str, Inner]:
        """Return, by name, the values that engines can return in addition to the scores."""
        features = self.maps.features if isinstance(self.maps, Maps) else self.maps
        found = (self.embedding, features, self.input if self.keeps_input else None)
        return {value.name: value for value in found if isinstance(value, Inner)}

    @property
    def origins(self) -> Mapping[str, str]:
        """Return, for each name in `inner`, the name of this value in the rewritten network."""
        return {name: origin(self.network.graph, name) for name in self.inner}

    @cached_property
    def rewritten(self) -> RewriteResult:
        """Return the network after all rewrite rules, as Convoy's kernels run it. The ONNX Runtime
        engine does not use it.

        The outputs of the rewritten network are the scores, followed by the values in `origins`.
        The result's `refused` includes the layers that must stay in float32 at this precision.
        Raises NoKernelsError if Convoy has no kernels for the network.
        """
        if self.network.no_kernels:
            raise NoKernelsError(self.network.no_kernels)
        is_integer = self.precision is Precision.INT8
        loaded = self.network.graph
        outputs = tuple(dict.fromkeys((*loaded.outputs, *self.origins.values())))
        rules = RULES_OF_INTEGERS if is_integer else RULES
        rewritten = rewrite(replace(loaded, outputs=outputs), rules)
        kept = kept_in_float(rewritten.graph, self.precision)
        rule = self.precision.value
        at = rewrite(at_precision(rewritten.graph, self.precision), RULES_AT_A_PRECISION)
        of_precision = (RuleRefusal(rule, *item) for item in kept.items())
        return RewriteResult(
            graph=at.graph,
            applied=(*rewritten.applied, *at.applied),
            refused=(*rewritten.refused, *of_precision, *at.refused),
        )


def load_classifier(
    path: Path,
    *,
    overrides: Mapping[str, object] | None = None,
    limits: FileLimits | None = None,
    photographs: TestImages | None = None,
    threads: int = 0,
    keep: Path | None = None,
) -> Classifier:
    """Return the classifier in the file `path`, with the settings of its `model.toml`.

    `overrides` are command-line flags, with the same keys as `model.toml`. If neither the flags nor
    `model.toml` set a precision, it is int8 for a quantized model, and otherwise the type of the
    weights, float16 or float32. `keep` is passed to `load_proto`.

    The classifier can compute reference scores for its engines (`Classifier.given`): ONNX Runtime
    then runs the original file on a noise image and the `photographs`, with `threads` threads.

    Raises ModelFileError, UnsupportedModelError or PreprocessingError.
    """
    proto = read_model(path, limits or FileLimits())
    image, metadata = image_input(proto), metadata_of(proto)
    description = load_description(
        path,
        image.shape,
        overrides,
        metadata,
        takes_bytes=image.takes_bytes,
        own=own_normalisation(proto, image.name),
    )
    preprocessing, precision = description.preprocessing, description.precision
    try:
        outputs = take_outputs(proto, description.scores, description.embedding)
        network = load_proto(
            path.stem,
            proto,
            preprocessing.input_shape,
            opaque=True,
            outputs=outputs,
            labels=len(preprocessing.labels),
            beside=description.embedding,
            keep=keep,
        )
    except NotScoresError as error:
        raise UnsupportedModelError(f"{path}: {error}") from error
    except UnsupportedModelError as error:
        if preprocessing.layout is Layout.NHWC or image.shape[0] or image.shape[-1]:
            raise
        raise UnsupportedModelError(
            f"{error}\nThe shape of the model's input does not show which axis has the channels. If"
            ' the last axis has them, set layout = "nhwc" in model.toml, or pass --set layout=nhwc'
        ) from error
    if precision is None:
        precision = _own_precision(proto, network)
    if precision is Precision.INT8 and not network.quantized:
        raise UnsupportedModelError(
            f"{path} is not quantized, so its precision cannot be int8. Quantize the model"
            f" first, with typical photographs: convoy quantize {path} photos/ -o"
            f" {path.with_suffix('.int8.onnx')}"
        )
    graph = network.graph
    try:
        classes = _classes(path, graph.shape(graph.outputs[0]))
    except UnsupportedModelError as error:
        # If the model is refused in any case, its operators explain more than its output.
        raise UnsupportedModelError(network.no_kernels or str(error)) from error
    kind, why = _kind_of_scores(path, network.meaning, description.output, classes)
    labels = preprocessing.labels
    if not labels and (labels := labels_of(outputs, graph.outputs[0], classes)):
        metadata = {**metadata, "labels": json.dumps(labels)}  # no node has them any more
    if classes == imagenet.CLASSES and not labels:
        _log.warning("%s has 1000 classes and no labels: ImageNet's labels are used", path.name)
        labels = imagenet.labels()
    if description.labels_from == path.name and len(labels) not in (classes, classes_of(classes)):
        doubt = f"its metadata name {len(labels)} classes, but the model has {classes_of(classes)}"
        _log.warning("%s: %s; labels are class numbers until --labels is set", path.name, doubt)
        description = replace(description, origin=f"{description.origin}; {path.name}: {doubt}")
        labels = ()
    if Path(description.labels_from).name == TRITONS:
        labels = _as_triton(path, labels, classes)
    else:
        right = (
            f". Convoy found {description.labels_from} by its name; if it belongs to another model,"
            f" name the right file with --labels, or as labels in {description_to_write(path)}"
        )
        found = description.labels_found
        labels = checked_labels(
            labels, classes, description.labels_from, right=right if found else ""
        )
    return Classifier(
        path.stem,
        network,
        replace(preprocessing, output=kind or OutputKind.LOGITS, labels=labels),
        classes,
        precision,
        description.serving,
        description.origin,
        find_embedding(network, description.embedding or _features(network, outputs, classes)),
        find_maps(network),
        takes_halves=image.takes_halves,
        shown=kind is not None,
        why=why,
        path=path,
        metadata=metadata,
        given=_as_given(proto, network, preprocessing, photographs, threads),
    )


def _as_given(
    proto: ModelProto,
    network: LoadedModel,
    preprocessing: Preprocessing,
    photographs: TestImages | None,
    threads: int,
) -> AsGiven:
    """Return the test images, and a function that runs the original file on them.

    This edits `proto`.
    """
    shape = preprocessing.image_shape
    images = np.random.default_rng(0).integers(0, 256, (1, *shape)).astype(np.uint8)
    if photographs is not None:
        images = np.concatenate([photographs(preprocessing), images])
    (scores,) = network.graph.outputs
    expose(proto, scores)
    name = proto.graph.output[0].name
    run = GivenFile(proto, name, as_it_is=bool(network.no_kernels), threads=threads)
    return AsGiven(normalised(images, preprocessing), run)


def _own_precision(proto: ModelProto, network: LoadedModel) -> Precision:
    if network.quantized:
        return Precision.INT8
    return Precision.FP16 if weighs_halves(proto) else Precision.FP32


def _classes(path: Path, shape: Shape) -> int:
    """Return the number of scores per image.

    Raises UnsupportedModelError if the scores of an image are not a vector.
    """
    classes, *others = sorted(shape, reverse=True) or [1]
    if any(size != 1 for size in others):
        raise UnsupportedModelError(
            f"{path} gives {'×'.join(map(str, shape))} values per image; Convoy runs classifiers,"
            " whose output is one score per class. Is the model a detector, a segmenter or a"
            " backbone?"
        )
    return classes


def _as_triton(path: Path, labels: tuple[str, ...], scores: int) -> tuple[str, ...]:
    """Return the labels of a Triton label file, at most one per class. Logs a warning if the file
    has fewer or more labels than the model has classes."""
    classes = classes_of(scores)
    if len(labels) != classes:
        doubt = f"its label file has {len(labels)} labels, but the model has {classes} classes"
        few = "as in Triton, the other classes get their numbers as labels"
        many = f"as in Triton, only the first {classes} labels are used"
        rest = few if len(labels) < classes else many
        _log.warning("%s: %s; %s", path.name, doubt, rest)
    return labels[:classes]


def _kind_of_scores(
    path: Path, shown: Meaning, stated: OutputKind | None, classes: int
) -> tuple[OutputKind | None, str]:
    """Return the kind of scores and the reason for it. The kind is None if it is unknown.

    The kind that a file or flag sets is ignored if it asks for a softmax or sigmoid of scores that
    the graph shows to be bounded. A softmax or sigmoid of bounded scores would keep the order of
    the classes, but make every probability wrong.
    """
    if shown.refusal:
        raise UnsupportedModelError(f"{path}: {shown.refusal}")
    if stated is None and shown.around_0 and classes == 1:
        raise UnsupportedModelError(
            f"{path}: {shown.reason} to numbers around 0. This range does not show how a score s"
            " becomes a probability. If the probability is (1 + s) / 2, export the model with this"
            ' operation at its end. Otherwise, set output = "sigmoid", "probabilities" or another'
            " kind in model.toml, or with --set"
        )
    if stated is None:
        return shown.kind, shown.reason
    if shown.kind is not None and not shown.kind.is_unbounded and stated.is_unbounded:
        _log.warning(
            '%s: output = "%s" is overruled, because %s; the scores are %s',
            path.name,
            stated.value,
            shown.reason,
            meaning_of(shown.kind, classes),
        )
        return shown.kind, shown.reason
    return stated, f'output = "{stated.value}"'


def _features(network: LoadedModel, outputs: Outputs, classes: int) -> str | None:
    """Return the name of the only output that can be the embedding, or None if there is no such
    output or more than one."""
    graph = network.graph
    if why_shut(network):
        return None
    found = [
        name
        for name in outputs.features
        if name in graph.values
        and name not in (*graph.inputs, *graph.outputs)
        and prod(graph.shape(name)) == max(graph.shape(name), default=1) != classes
        and isinstance(in_onnx(network, name), Inner)
    ]
    return found[0] if len(found) == 1 else None
