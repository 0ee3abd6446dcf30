"""Counts the layers that ONNX Runtime computes with integers, and names the layers computed in
float."""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial

import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto

from models.served import Layers

_IN_FLOAT = frozenset(
    {"Conv", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "MatMul", "NhwcFusedConv"}
)
_ON_INTEGERS = frozenset(
    {
        "ConvInteger",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QGemm",
        "QLinearConv",
        "QLinearMatMul",
    }
)
# The suffix that ONNX Runtime appends to the names of nodes that it converts to channels-last.
_MOVED = re.compile(r"_token_\d+$")
# The suffix that it appends to the names of results whose channels it stores in blocks. The name of
# a result names its node.
_IN_BLOCKS = "_nchwc"


def layers_in(optimised: ModelProto, model: Callable[[], ModelProto]) -> Layers:
    """Count the layers in `optimised`, the graph that ONNX Runtime made from a model.

    `model` loads the original model. It is called only if ONNX Runtime has renamed a layer.
    """
    nodes = optimised.graph.node
    floats = [
        _MOVED.sub("", node.name) or node.output[0] for node in nodes if node.op_type in _IN_FLOAT
    ]
    if any(name.endswith(_IN_BLOCKS) for name in floats):
        makers = {name: node for node in model().graph.node for name in node.output}
        floats = [_layer(makers, name.removesuffix(_IN_BLOCKS)) or name for name in floats]
    return Layers(sum(node.op_type in _ON_INTEGERS for node in nodes), tuple(floats))


def _layer(makers: Mapping[str, NodeProto], name: str) -> str:
    """Return the name of the convolution that computes the value `name`, or "" if there is none.

    The search skips nodes that ONNX Runtime may have fused with the convolution.
    """
    waiting, seen = [name], {name}
    while waiting:
        node = makers.get(waiting.pop(0))
        if node is None or node.op_type in ("DequantizeLinear", "QuantizeLinear"):
            continue
        if node.op_type == "Conv":
            return str(node.name or node.output[0])
        waiting += [each for each in node.input if each not in seen]
        seen.update(node.input)
    return ""


def open_counted(model: bytes, options: ort.SessionOptions) -> tuple[ort.InferenceSession, Layers]:
    """Return a CPU session for the model, with the number of layers that it computes with integers
    and the names of its other layers.

    The layers are counted in the optimised graph, which ONNX Runtime writes to a file in memory.
    This takes a few milliseconds.
    """
    file = os.memfd_create("convoy-optimised")
    try:
        options.optimized_model_filepath = f"/proc/self/fd/{file}"
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        with os.fdopen(os.dup(file), "rb") as written:
            written.seek(0)
            optimised = onnx.load_model_from_string(written.read())
        return session, layers_in(optimised, partial(onnx.load_model_from_string, model))
    finally:
        os.close(file)
