"""Reads ONNX models and converts them to typed nodes. No other package reads ONNX operators.

path ─ file ─ ModelProto ─ normalise ─ one plain form ─┬─ operators ─ Graph (typed)
       limits, checker     float32, opset, folding     └─ batch ─ ModelProto for any N

A file may be hostile. Before it is parsed, `limits` counts its fields. Before functions are
inlined, it counts the nodes. Before anything is computed, it bounds axes and sizes. At last, it
bounds the structure of the graph, because rewrite rules search it.
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
    """Holds a model in two equivalent forms: as Convoy's typed graph and as an ONNX model."""

    name: str
    graph: Graph  # typed nodes as exported, before any rewriting
    proto: ModelProto  # the normal form with a symbolic batch axis, or the original nodes
    quantized: bool = False  # whether the model computes on
    meaning: Meaning = UNSHOWN  # the meaning of the scores

    @property
    def no_kernels(self) -> str:
        """Return the reason why Convoy's kernels cannot run the model, or "" if they can.

        If they cannot, `graph` is a single Opaque node, and the images of a batch may affect each
        other's scores.
        """
        return "".join(node.reason for node in self.graph.nodes if isinstance(node, Opaque))


def metadata_of(proto: ModelProto) -> Mapping[str, str]:
    """Return the metadata entries in the model file, except those that are not valid text."""
    entries = ((entry.key, entry.value) for entry in proto.metadata_props)
    # protobuf returns text that is not UTF-8 as bytes, although its type hints say str.
    return {key: value for key, value in entries if {type(key), type(value)} == {str}}


def weighs_halves(proto: ModelProto) -> bool:
    """Return whether most of the model's weights are stored as float16."""
    elements = Counter[int]()
    for tensor in proto.graph.initializer:
        elements[tensor.data_type] += prod(tensor.dims)
    return elements[TensorProto.FLOAT16] > elements[TensorProto.FLOAT]


def load_model(
    path: Path, *, input_shape: Shape | None = None, limits: FileLimits | None = None
) -> LoadedModel:
    """Read, check and normalise the model file `path`.

    If the model's input does not fix all sizes, `input_shape` must be the shape of one image.
    Raises ModelFileError if the file is broken, and UnsupportedModelError if Convoy cannot run the
    model.
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
    """Convert a checked ModelProto to a typed graph and to ONNX in normal form, and return both.

    `opaque` allows models that typed nodes cannot express; ONNX Runtime runs their original nodes.
    `outputs` is the result of `take_outputs`. Of these outputs, only the classifier's scores are
    kept; if `outputs` is None, all are kept. `labels` is the number of classes, or 0 if it is
    unknown. The nodes that compute the value `beside` are kept, too. If `keep` is a folder, the
    result is cached in it. Raises NoKernelsError, whose message lists all unsupported nodes.
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
