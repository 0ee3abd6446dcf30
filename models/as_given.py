"""Runs a model's file by ONNX Runtime as it was given: the judge of all that Convoy makes of it.

    file ─┬─ Convoy's loader ─ normal form ─ engines ─ scores ─┐
          └─ ONNX Runtime ──────────── AsGiven.scores ─────────┴─ equal, or the model is refused

Only what no score depends on is changed: the number of the IR, nodes that nothing reads, and
float16, which is read as float32, as in the normal form.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# ONNX Runtime's Linux wheels switch telemetry on when they are imported: they write an identifier
# into the home directory and send it away. Its own off switch is read at that moment only.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # noqa: TID251  set, not read

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from models.errors import EngineError

Tensors = NDArray[np.float32]  # n images as the network takes them

# What the input's tensors become; those of whole numbers are whole already.
_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
}
# The newest IR that ONNX Runtime need know: a higher number alone says nothing of the nodes.
_IR_VERSION = 12


@dataclass(frozen=True)
class AsGiven:
    """Holds some images, as tensors, and their scores by the file as it was given."""

    tensors: Tensors
    scores: Tensors | None = None  # one row an image
    why_not: str = ""  # why ONNX Runtime cannot run the file


def run_as_given(
    proto: ModelProto, scores: str, tensors: Tensors, *, keep_halves: bool, threads: int = 0
) -> AsGiven:
    """Return the scores of the file for each image alone.

    `scores` names the output; `proto` is edited. `keep_halves` computes in float16 where the file
    does.
    """
    integers = sorted({node.op_type for node in proto.graph.node if _is_of_integers(node)})
    if integers:
        why = f"{', '.join(integers)} may overflow, on this processor otherwise than on another"
        return AsGiven(tensors, why_not=why)
    try:
        model = GivenModel(proto, [scores], keep_halves=keep_halves, threads=threads)
        rows = [model.run(tensor)[scores] for tensor in tensors]
    except EngineError as error:
        return AsGiven(tensors, why_not=str(error))
    return AsGiven(tensors, np.stack([np.ravel(row) for row in rows]))


def _is_of_integers(node: NodeProto) -> bool:
    return node.op_type.startswith("QLinear") or node.op_type in _OF_INTEGERS


_OF_INTEGERS = frozenset({"ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "QGemm"})


class GivenModel:
    """Runs a file in its own opset and nodes, one image at a time."""

    def __init__(
        self,
        proto: ModelProto,
        outputs: Sequence[str],
        *,
        keep_halves: bool = False,
        threads: int = 0,
    ) -> None:
        """Open a session for these values, which edits `proto`.

        Raises EngineError where ONNX Runtime cannot open the file.
        """
        quantised = any(node.op_type == "DequantizeLinear" for node in proto.graph.node)
        try:
            data = _prepared(proto, outputs, keep_halves)
            self._session = open_session(data, threads, exact=quantised)
        except Exception as error:  # its own exceptions share no base class but this
            raise EngineError(f"ONNX Runtime cannot open the file: {_in_a_line(error)}") from error
        (self._input,) = self._session.get_inputs()
        self._outputs = list(outputs)
        first = self._input.shape[0] if self._input.shape else 1
        self._batch = first if isinstance(first, int) else 1

    def run(self, tensor: Tensors) -> Mapping[str, NDArray[np.float32]]:
        """Return the values of one image by name. Raises EngineError where ONNX Runtime fails.

        A file of a fixed batch gets that many of the image.
        """
        kind = _TYPES.get(self._input.type)
        if kind is None:
            raise EngineError(f"its input {self._input.name} is a {self._input.type}")
        images = np.ascontiguousarray(np.broadcast_to(tensor, (self._batch, *tensor.shape)))
        try:
            found = self._session.run(self._outputs, {self._input.name: images.astype(kind)})
        except Exception as error:  # as above
            raise EngineError(f"ONNX Runtime fails on the file: {_in_a_line(error)}") from error
        rows = (np.ravel(value)[: np.size(value) // self._batch] for value in found)
        return {name: row.astype(np.float32) for name, row in zip(self._outputs, rows, strict=True)}


def open_session(model: bytes, threads: int, *, exact: bool = False) -> ort.InferenceSession:
    """Return a session on the CPU; with `threads` = 0 ONNX Runtime chooses their number."""
    options = session_options(threads, exact=exact)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def session_options(threads: int, *, exact: bool = False) -> ort.SessionOptions:
    """Return the options of a session for the CPU.

    An `exact` one computes node by node, so that quantised layers are computed in float: their sums
    of 8-bit products may overflow where a processor has no instruction for them.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # its errors are raised, too
    # Threads that spin between runs would take cores from decoding.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if exact:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _prepared(proto: ModelProto, outputs: Collection[str], keep_halves: bool) -> bytes:
    """Return the file as bytes, with these outputs and only the nodes that they need; it edits
    `proto`."""
    proto.ir_version = min(proto.ir_version, _IR_VERSION)
    _keep(proto.graph, outputs)
    halves = any(weight.data_type == TensorProto.FLOAT16 for weight in proto.graph.initializer)
    data: bytes = (_as_floats(proto) if halves and not keep_halves else proto).SerializeToString()
    return data


def _keep(graph: GraphProto, outputs: Collection[str]) -> None:
    """Make these values the graph's outputs, and drop the nodes that none of them needs."""
    needed, dropped = set(outputs), []
    for index in reversed(range(len(graph.node))):
        if needed.isdisjoint(graph.node[index].output):
            dropped.append(index)
        else:
            needed.update(_read(graph.node[index]))
    for index in dropped:
        del graph.node[index]
    if [value.name for value in graph.output] != list(outputs):
        declared = {value.name: value for value in (*graph.value_info, *graph.output)}
        values = [declared.get(name, ValueInfoProto(name=name)) for name in outputs]
        kept = [ValueInfoProto.FromString(value.SerializeToString()) for value in values]
        del graph.output[:]
        graph.output.extend(kept)


def _read(node: NodeProto) -> set[str]:
    """Return the names that a node reads, those of graphs inside it included."""
    names, pending = set(node.input), [node]
    while pending:
        for attribute in pending.pop().attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                names.update(value.name for value in graph.output)  # perhaps of a graph around
                for inner in graph.node:
                    names.update(inner.input)
                    pending.append(inner)
    return names


def _as_floats(proto: ModelProto) -> ModelProto:
    # They take half a second to import, and few files have halves.
    import onnx_ir as ir  # noqa: PLC0415

    from models.onnx_loader.normalise import to_float32  # noqa: PLC0415

    model = ir.serde.deserialize_model(proto)
    to_float32(model)
    floats: ModelProto = ir.serde.serialize_model(model)
    return floats


def _in_a_line(error: Any) -> str:
    return str(error).strip().partition("\n")[0]
