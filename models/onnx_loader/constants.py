"""Adds constants to a model, under names that nothing else has."""

import itertools
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray


def numbered(stem: str) -> Iterator[str]:
    """Yield a name, and then the name followed by 1, 2 and so on."""
    yield stem
    yield from (f"{stem}.{number}" for number in itertools.count(1))


def add_constant(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """Return a constant that `graph` did not have yet, called `name`, or `name` with a number."""
    # A model that was written in this form has constants of these names.
    name = next(free for free in numbered(name) if free not in graph.initializers)
    value = ir.Value(
        name=name,
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        shape=ir.Shape(array.shape),
        const_value=ir.Tensor(array, name=name),
    )
    graph.register_initializer(value)
    return value
