"""Runs the original model file with ONNX Runtime, as the reference for Convoy's conversions.

    file ─┬─ Convoy's loader ─ converted model ─ engines ─ scores ─┐
          └─ ONNX Runtime ────────────── AsGiven.scores ───────────┴─ equal, or the model is refused

The file is changed only in ways that do not affect scores: the IR version is lowered, unused nodes
are removed, and float16 is converted to float32, as in Convoy's loader. `in_floats` replaces each
integer operator by the float operators with which the ONNX specification defines it. This avoids
ONNX Runtime's integer kernels, which may overflow and whose rounding differs by up to half a
quantization step. In a deep network, such differences reach 12% of the largest score.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

from models.errors import EngineError
from models.session import open_session

Tensors = NDArray[np.float32]  # n images in the network's input format

# The type of the input's tensors. Tensors of whole numbers contain whole numbers already.
_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
}
# The newest IR version that ONNX Runtime must support. A higher number in a file does not mean that
# its nodes are newer.
_IR_VERSION = 12


class AsGiven:
    """Holds test images, and runs the original model file on them when their scores are first
    requested.

    Commands that only read a model, such as `convoy inspect`, therefore open no session for the
    file.
    """

    def __init__(self, tensors: Tensors, run: Callable[[Tensors], Tensors]) -> None:
        """Store the images, one per row. `run` computes their scores, and may raise EngineError."""
        self.tensors = tensors
        self.is_compared = False  # with a CPU engine; all CPU engines compute alike
        # The difference between ONNX Runtime's scores with and without its optimisations, relative
        # to the largest score. 0 until it is computed.
        self.own_difference = 0.0
        self._run: Callable[[Tensors], Tensors] | None = run
        self._found: Tensors | str = ""

    def scores(self) -> Tensors | str:
        """Return the scores, one row per image, or the reason why ONNX Runtime cannot run the
        file."""
        if self._run is not None:
            try:
                self._found = self._run(self.tensors)
            except EngineError as error:
                self._found = str(error)
            self._run = None  # this also frees the file
        return self._found


@dataclass(frozen=True)
class GivenFile:
    """Computes the scores of several images with the original model file, one image at a time."""

    proto: ModelProto
    output: str  # the name of the scores
    as_it_is: bool  # whether Convoy serves the file's own nodes and types
    threads: int = 0
    exact: bool = True  # whether ONNX Runtime's optimisations are off

    def __call__(self, tensors: Tensors) -> Tensors:
        """Return one row of scores per image. Raises EngineError.

        Call it only once, because it edits `proto`.
        """
        proto = self.proto if self.as_it_is else in_floats(self.proto)
        model = GivenModel(
            proto,
            [self.output],
            keep_halves=self.as_it_is,
            threads=self.threads,
            exact=self.exact,
        )
        return np.stack([np.ravel(model.run(tensor)[self.output]) for tensor in tensors])


class GivenModel:
    """Runs a model file with its original opset and nodes, one image at a time."""

    def __init__(
        self,
        proto: ModelProto,
        outputs: Sequence[str],
        *,
        keep_halves: bool = False,
        threads: int = 0,
        exact: bool = True,
    ) -> None:
        """Open a session that returns the values named in `outputs`. This edits `proto`.

        If `keep_halves` is true, float16 nodes compute in float16, and otherwise in float32.
        `exact` is passed to `open_session`. Raises EngineError if ONNX Runtime cannot open the
        file.
        """
        data = _prepared(proto, outputs, keep_halves)
        try:
            # Node by node: of 10,000 nodes that opens ten times as fast, in half of the memory.
            self._session = open_session(data, threads, exact=exact)
        except Exception as error:  # ONNX Runtime's exceptions have no other common base class
            raise EngineError(f"ONNX Runtime cannot open the file: {_in_a_line(error)}") from error
        (self._input,) = self._session.get_inputs()
        self._outputs = list(outputs)
        first = self._input.shape[0] if self._input.shape else 1
        self._batch = first if isinstance(first, int) else 1

    def run(self, tensor: Tensors) -> Mapping[str, NDArray[np.float32]]:
        """Return the values of one image by name. Raises EngineError if ONNX Runtime fails.

        If the file has a fixed batch size, the image is repeated to fill the batch.
        """
        kind = _TYPES.get(self._input.type)
        if kind is None:
            raise EngineError(
                f"its input {self._input.name} has the type {self._input.type};"
                f" export the model with one of the types {', '.join(_TYPES)}"
            )
        images = np.ascontiguousarray(np.broadcast_to(tensor, (self._batch, *tensor.shape)))
        try:
            found = self._session.run(self._outputs, {self._input.name: images.astype(kind)})
        except Exception as error:  # as above
            raise EngineError(f"ONNX Runtime cannot run the file: {_in_a_line(error)}") from error
        rows = (np.ravel(value)[: np.size(value) // self._batch] for value in found)
        return {name: row.astype(np.float32) for name, row in zip(self._outputs, rows, strict=True)}


def in_floats(proto: ModelProto) -> ModelProto:
    """Return the model with integer operators replaced by float operators of the same opset.

    Before opset 13, DequantizeLinear takes only a single scale. In models of these opsets, a
    quantized constant with several scales becomes a float constant.
    """
    if not any(node.op_type.startswith("Q") for node in proto.graph.node):
        return proto
    # These modules take half a second to import, and few files need them.
    import onnx_ir as ir  # noqa: PLC0415

    from models.onnx_loader.integers import spell_out_integers  # noqa: PLC0415

    model = ir.serde.deserialize_model(proto)
    spell_out_integers(model)
    if model.opset_imports.get("", 1) < _AXIS_OPSET:
        _without_axes(model)
    spelled: ModelProto = ir.serde.serialize_model(model)
    return spelled


_AXIS_OPSET = 13


def _without_axes(model: Any) -> None:
    import onnx_ir as ir  # noqa: PLC0415

    from models.onnx_loader.constants import add_constant  # noqa: PLC0415
    from models.onnx_loader.integers import dequantized  # noqa: PLC0415

    for node in list(model.graph):
        if node.op_type != "DequantizeLinear" or "axis" not in node.attributes:
            continue
        constant = dequantized(node)
        if constant is None:
            del node.attributes["axis"]
        else:
            (output,) = node.outputs
            floats = add_constant(model.graph, f"{output.name}/floats", constant.floats)
            ir.convenience.replace_all_uses_with(output, floats)
            model.graph.remove(node, safe=True)


def _prepared(proto: ModelProto, outputs: Collection[str], keep_halves: bool) -> bytes:
    """Return the model as bytes, with only the named outputs and the nodes that they need.

    This edits `proto`.
    """
    proto.ir_version = min(proto.ir_version, _IR_VERSION)
    _keep(proto.graph, outputs)
    halves = any(weight.data_type == TensorProto.FLOAT16 for weight in proto.graph.initializer)
    data: bytes = (_as_floats(proto) if halves and not keep_halves else proto).SerializeToString()
    return data


def _keep(graph: GraphProto, outputs: Collection[str]) -> None:
    """Replace the outputs of the graph by the named values, and remove the nodes that these values
    do not need."""
    # Engines that never run the original file do not need the loader.
    from models.onnx_loader.limits.census import names_read  # noqa: PLC0415

    needed, dropped = set(outputs), []
    for index in reversed(range(len(graph.node))):
        if needed.isdisjoint(graph.node[index].output):
            dropped.append(index)
        else:
            needed.update(names_read(graph.node[index]))
    for index in dropped:
        del graph.node[index]
    if [value.name for value in graph.output] != list(outputs):
        declared = {value.name: value for value in (*graph.value_info, *graph.output)}
        values = [declared.get(name, ValueInfoProto(name=name)) for name in outputs]
        kept = [ValueInfoProto.FromString(value.SerializeToString()) for value in values]
        del graph.output[:]
        graph.output.extend(kept)


def _as_floats(proto: ModelProto) -> ModelProto:
    # As above: few files have float16.
    import onnx_ir as ir  # noqa: PLC0415

    from models.onnx_loader.normalise import to_float32  # noqa: PLC0415

    model = ir.serde.deserialize_model(proto)
    to_float32(model)
    floats: ModelProto = ir.serde.serialize_model(model)
    return floats


def _in_a_line(error: Any) -> str:
    return str(error).strip().partition("\n")[0]
