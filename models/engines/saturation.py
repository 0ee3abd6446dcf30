"""Tests whether ONNX Runtime's sums of 8-bit products saturate on this machine."""

from functools import cache

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

_CHANNELS = 64
_X, _WEIGHT = 255, 127
_EXPECTED = 200


@cache
def pairs_saturate() -> bool:
    """Return whether this processor saturates a sum of two products of uint8 and int8.

    An x86 processor without VNNI adds two products in 16 bits (vpmaddubsw). The function does not
    query the processor. Instead, it runs a convolution of one pixel with the largest products.
    """
    operands = {
        "one": np.float32(1),
        "zero": np.uint8(0),
        "filter": np.full((1, _CHANNELS, 1, 1), _WEIGHT, np.int8),
        "filter_zero": np.int8(0),
        "scale": np.float32(_CHANNELS * _X * _WEIGHT / _EXPECTED),
    }
    node = helper.make_node(
        "QLinearConv", ["x", "one", "zero", "filter", "one", "filter_zero", "scale", "zero"], ["y"]
    )
    shape = [1, _CHANNELS, 1, 1]
    graph = helper.make_graph(
        [node],
        "pairs",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [1, 1, 1, 1])],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in operands.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (y,) = session.run(None, {"x": np.full(shape, _X, np.uint8)})
    return int(y.item()) != _EXPECTED
