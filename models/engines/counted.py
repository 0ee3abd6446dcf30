"""Counts the layers that ONNX Runtime computes on integers, and names those in float."""

import os
import re

import onnx
import onnxruntime as ort
from onnx import ModelProto

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
# What ONNX Runtime appends to the names of nodes that it moves to channels-last.
_MOVED = re.compile(r"_token_\d+$")


def layers_in(optimised: ModelProto) -> Layers:
    """Return the layers of a graph that ONNX Runtime has optimised."""
    nodes = optimised.graph.node
    floats = tuple(
        _MOVED.sub("", node.name) or node.output[0] for node in nodes if node.op_type in _IN_FLOAT
    )
    return Layers(sum(node.op_type in _ON_INTEGERS for node in nodes), floats)


def open_counted(model: bytes, options: ort.SessionOptions) -> tuple[ort.InferenceSession, Layers]:
    """Return a session on the CPU, and the layers that it runs.

    ONNX Runtime writes its graph to a file in memory, which takes a few milliseconds of the time
    that it needs to make the graph.
    """
    file = os.memfd_create("convoy-optimised")
    try:
        options.optimized_model_filepath = f"/proc/self/fd/{file}"
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        with os.fdopen(os.dup(file), "rb") as written:
            written.seek(0)
            return session, layers_in(onnx.load_model_from_string(written.read()))
    finally:
        os.close(file)
