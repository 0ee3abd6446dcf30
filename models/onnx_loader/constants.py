"""Adds constants to a model under unused names."""

import itertools
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray


def numbered(stem: str) -> Iterator[str]:
    """Yield `stem`, then `stem` with the suffixes ".1", ".2", and so on."""
    yield stem
    yield from (f"{stem}.{number}" for number in itertools.count(1))


def add_constant(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """Add a constant to `graph` and return it. If another constant has this name, append a
    number."""
    # A model that Convoy wrote already has constants of these names.
    name = next(free for free in numbered(name) if free not in graph.initializers)
    value = ir.Value(
        name=name,
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        shape=ir.Shape(array.shape),
        const_value=ir.Tensor(array, name=name),
    )
    graph.register_initializer(value)
    return value
