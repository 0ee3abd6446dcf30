"""Reads ONNX models and converts them to typed nodes. No other package reads ONNX operators.

path ─ file ─ ModelProto ─ normalise ─ normal form ─┬─ operators ─ Graph (typed)
       limits, checker     float32, opset, folding  └─ batch ─ ModelProto for any batch size

The package does not trust the file. `limits` counts the protobuf fields before the file is parsed,
and the nodes before functions are inlined. It checks axes and sizes before constants are folded.
Last, it checks the structure of the graph, so that rewrite rules end quickly.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

from onnx import ModelProto, TensorProto

from models.graph import Graph, Shape
from models.onnx_loader.file import FileLimits, external_files, read_model
from models.onnx_loader.image_input import ImageInput, image_input
from models.onnx_loader.kept import translated
from models.onnx_loader.opaque import Opaque
from models.onnx_loader.outputs import Outputs, expose, labels_of, take_outputs
from models.scores import UNSHOWN, Meaning

__all__ = [
    "FileLimits",
    "ImageInput",
    "LoadedModel",
    "Opaque",
    "Outputs",
    "expose",
    "external_files",
    "image_input",
    "labels_of",
    "load_model",
    "load_proto",
    "metadata_of",
    "read_model",
    "take_outputs",
    "weighs_halves",
]


@dataclass(frozen=True)
class LoadedModel:
    """A model in two equivalent forms: a typed graph and an ONNX model."""

    name: str
    graph: Graph  # typed nodes as exported, before any rewriting
    proto: ModelProto  # the normal form with a symbolic batch axis, or the original nodes
    quantized: bool = False  # whether nodes quantize values or compute on integers
    meaning: Meaning = UNSHOWN  # the meaning of the scores

    @property
    def no_kernels(self) -> str:
        """Return the reason why Convoy's kernels cannot run the model, or "" if they can.

        If they cannot, `graph` has a single Opaque node. The model may then mix the images of a
        batch, so each image must run alone.
        """
        return "".join(node.reason for node in self.graph.nodes if isinstance(node, Opaque))


def metadata_of(proto: ModelProto) -> Mapping[str, str]:
    """Return the metadata entries in the model file, except those that are not valid text."""
    entries = ((entry.key, entry.value) for entry in proto.metadata_props)
    # protobuf returns text that is not UTF-8 as bytes, although its type hints say str.
    return {key: value for key, value in entries if {type(key), type(value)} == {str}}


def weighs_halves(proto: ModelProto) -> bool:
    """Return whether the model has more float16 weights than float32 weights."""
    elements = Counter[int]()
    for tensor in proto.graph.initializer:
        elements[tensor.data_type] += prod(tensor.dims)
    return elements[TensorProto.FLOAT16] > elements[TensorProto.FLOAT]


def load_model(
    path: Path, *, input_shape: Shape | None = None, limits: FileLimits | None = None
) -> LoadedModel:
    """Read, check and normalise the model file `path`.

    `input_shape` is the shape of one image. It is required if the file leaves a size of the input
    unknown. Raises ModelFileError if the file is broken, and UnsupportedModelError if Convoy cannot
    run the model.
    """
    return load_proto(path.stem, read_model(path, limits or FileLimits()), input_shape)


def load_proto(
    name: str,
    proto: ModelProto,
    input_shape: Shape | None = None,
    *,
    opaque: bool = False,
    outputs: Outputs | None = None,
    labels: int = 0,
    beside: str | None = None,
    keep: Path | None = None,
) -> LoadedModel:
    """Convert a checked ModelProto to a typed graph and to ONNX in normal form.

    `outputs` is the result of `take_outputs`. If it is given, all outputs except the class scores
    are removed. `labels` is the number of class labels, or 0 if it is unknown. `beside` names
    another output, whose nodes are kept. If `keep` is given, the result is cached in this folder.

    If typed nodes cannot express the model, this raises NoKernelsError, whose message lists the
    unsupported nodes. If `opaque` is True, the result has the original nodes instead.
    """

    def translate() -> tuple[Graph, ModelProto, bool, Meaning]:
        # The libraries of these modules take 0.6 s to import.
        from models.onnx_loader.choose import choose_scores  # noqa: PLC0415
        from models.onnx_loader.translate import translate  # noqa: PLC0415

        choose = (
            None
            if outputs is None
            else partial(choose_scores, outputs=outputs, labels=labels, beside=beside)
        )
        made = translate(name, proto, input_shape, opaque=opaque, choose=choose)
        return made.graph, made.proto, made.quantized, made.meaning

    question = (name, input_shape, opaque, outputs, labels, beside)
    return LoadedModel(name, *translated(proto, question, translate, keep))
