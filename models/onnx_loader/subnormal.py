"""Sets subnormal weights (closer to 0 than 1.18e-38) to 0.

Many processors take several times as long to compute with such numbers. Weight decay leaves them in
filters that are not used. A few of them in each layer slow down the whole network, but they are too
small to change a float32 score. Numbers that are subnormal in float16 are normal in float32 and
stay unchanged.
"""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper

from models.onnx_loader.limits.census import tensors

_TINY = np.finfo(np.float32).tiny  # the smallest normal number
_CHUNK = 2**16  # numbers that fit a processor's cache while they are checked


def flush(model: ir.Model) -> None:
    """Set subnormal numbers in the model's float32 initializers to 0."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype != ir.DataType.FLOAT:
                continue
            if (normal := _flushed(tensor.numpy())) is not None:
                value.const_value = ir.Tensor(normal, name=tensor.name)


def flush_proto(proto: ModelProto) -> None:
    """Set subnormal numbers in all float32 tensors of `proto` to 0."""
    for tensor in tensors(proto):
        if tensor.data_type != TensorProto.FLOAT:
            continue
        if (normal := _flushed(numpy_helper.to_array(tensor))) is not None:
            tensor.CopyFrom(numpy_helper.from_array(normal, tensor.name))


def _flushed(array: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Return a copy of the array without subnormal numbers, or None if it contains none."""
    numbers = array.reshape(-1)
    chunks = (numbers[at : at + _CHUNK] for at in range(0, numbers.size, _CHUNK))
    if not any(_subnormal(chunk).any() for chunk in chunks):
        return None
    normal = np.where(_subnormal(array), np.float32(0), array)
    return normal.astype(np.float32)


def _subnormal(numbers: NDArray[np.float32]) -> NDArray[np.bool_]:
    size = np.abs(numbers)
    return (size < _TINY) & (size > 0)
