"""Counts the nodes and elements of a parsed model before any library processes it.

Nodes are counted as if all functions were inlined, but without inlining them, which could take too
long. The nodes of each function are counted once and multiplied by the number of its calls. For
example, 60 functions that each call the previous one twice count as 2**60 nodes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from math import prod

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from models.errors import ModelFileError, UnsupportedModelError
from models.onnx_loader.limits.bounds import (
    BATCH_LIMIT,
    CALL_DEPTH_LIMIT,
    EDGE_LIMIT,
    ELEMENT_LIMIT,
    INLINED_BYTES_LIMIT,
    NODE_LIMIT,
    PORT_LIMIT,
    RANK_LIMIT,
    SUBGRAPH_DEPTH_LIMIT,
    shown,
)

_NUMBERS_A_BYTE = 4  # the smallest type has two bits

_Key = tuple[str, str, str]  # a function's domain, name and overload


def check_census(model: ModelProto) -> None:
    """Check the numbers of nodes, inputs, outputs and elements in a model.

    Raises UnsupportedModelError if one of them exceeds its limit, and ModelFileError if the model
    is invalid.
    """
    _check_depth(model)
    written = 0
    for node in all_nodes(model):
        written += 1
        if not node.output:
            raise ModelFileError(f"its node {node.name or node.op_type} has no output")
        ports = max(len(node.input), len(node.output))
        if ports > PORT_LIMIT:
            raise UnsupportedModelError(
                f"its node {node.name or node.op_type} has {ports:,} inputs or outputs;"
                f" at most {PORT_LIMIT:,} are supported"
            )
    if written > NODE_LIMIT:
        raise UnsupportedModelError(
            f"it has {written:,} nodes; at most {NODE_LIMIT:,} are supported"
        )
    size = _inlined_size(model)
    if size.nodes > NODE_LIMIT:
        raise UnsupportedModelError(
            f"it has {shown(size.nodes)} nodes once its functions are inlined;"
            f" at most {NODE_LIMIT:,} are supported"
        )
    edges = size.edges + len(model.graph.input) + len(model.graph.output)
    if edges > EDGE_LIMIT:
        raise UnsupportedModelError(
            f"its nodes have {shown(edges)} inputs and outputs;"
            f" at most {EDGE_LIMIT:,} are supported"
        )
    limit = INLINED_BYTES_LIMIT + model.ByteSize()
    if size.copied > limit:
        raise UnsupportedModelError(
            f"its functions take {shown(size.copied)} bytes once they are inlined;"
            f" at most {limit:,} are supported ({INLINED_BYTES_LIMIT:,} more than the file has)"
        )
    _check_sparse(model)
    for tensor in tensors(model):
        _check_sizes(f"tensor {tensor.name}", tensor.dims)
        if prod(tensor.dims) > ELEMENT_LIMIT:
            raise UnsupportedModelError(
                f"its tensor {tensor.name} has {shown(prod(tensor.dims))} numbers;"
                f" at most {ELEMENT_LIMIT:,} are supported"
            )
    _check_inputs(model.graph)


def check_stored(model: ModelProto) -> None:
    """Raise an error if a model's tensors declare more elements than the file's bytes can hold."""
    numbers, stored = sum(prod(tensor.dims) for tensor in tensors(model)), model.ByteSize()
    if numbers > _NUMBERS_A_BYTE * stored:
        raise ModelFileError(
            f"its tensors declare {shown(numbers)} numbers in total,"
            f" which the model of {stored:,} bytes cannot hold"
        )


# --- walking --------------------------------------------------------------------------------------


def tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor of a model, including those in attributes, subgraphs and functions."""
    for graph in _graphs(model):
        yield from graph.initializer
    for node in all_nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _graphs(model: ModelProto) -> Iterator[GraphProto]:
    yield model.graph
    for node in all_nodes(model):
        for attribute in node.attribute:
            yield from _subgraphs(attribute)


def all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Yield every node of the model's graph, functions and subgraphs."""
    yield from _with_nested(model.graph.node)
    for function in model.functions:
        yield from _with_nested(function.node)


def _with_nested(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield the nodes and all nodes in their subgraphs, without recursion."""
    pending = [iter(nodes)]
    while pending:
        for node in pending.pop():
            yield node
            for attribute in node.attribute:
                pending += [iter(graph.node) for graph in _subgraphs(attribute)]


def names_read(node: NodeProto) -> set[str]:
    """Return the names of all values that a node and its subgraphs read."""
    names: set[str] = set()
    for each in _with_nested([node]):
        names.update(each.input)
        for attribute in each.attribute:
            for graph in _subgraphs(attribute):
                names.update(value.name for value in graph.output)  # maybe of an outer graph
    return names


def _subgraphs(attribute: AttributeProto) -> Iterator[GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


# --- nodes ----------------------------------------------------------------------------------------


def _check_depth(model: ModelProto) -> None:
    level: list[Iterable[NodeProto]] = [model.graph.node, *(f.node for f in model.functions)]
    for _ in range(SUBGRAPH_DEPTH_LIMIT + 1):
        level = [
            graph.node
            for nodes in level
            for node in nodes
            for attribute in node.attribute
            for graph in _subgraphs(attribute)
        ]
        if not level:
            return
    raise UnsupportedModelError(
        f"its graphs are nested more than {SUBGRAPH_DEPTH_LIMIT} deep, which is the limit"
    )


@dataclass(frozen=True, slots=True)
class _Size:
    """The size of a graph or function, with all calls counted as if they were inlined."""

    nodes: int = 0
    edges: int = 0  # names read and written
    copied: int = 0  # bytes that inlining writes
    depth: int = 0  # the depth of nested calls


def _inlined_size(model: ModelProto) -> _Size:
    functions: dict[_Key, FunctionProto] = {}
    for function in model.functions:
        key = (_domain(function.domain), function.name, function.overload)
        if key in functions:
            raise ModelFileError(f"it defines the function {_named(key)} more than once")
        functions[key] = function
    calls = {
        key: {_called(node) for node in _with_nested(function.node)} & functions.keys()
        for key, function in functions.items()
    }
    sizes: dict[_Key, _Size] = {}
    try:
        for key in TopologicalSorter(calls).static_order():
            own = sum(node.ByteSize() for node in functions[key].node)
            size = _size(functions[key].node, sizes)
            sizes[key] = replace(size, copied=size.copied + own)
            if size.depth >= CALL_DEPTH_LIMIT:
                raise UnsupportedModelError(
                    f"its function calls are nested more than {CALL_DEPTH_LIMIT} deep,"
                    " which is the limit"
                )
    except CycleError as error:
        circle = " calls ".join(_named(key) for key in error.args[1][:8])
        raise ModelFileError(
            f"its functions call themselves, which is not allowed: {circle}"
        ) from error
    return _size(model.graph.node, sizes)


def _size(nodes: Iterable[NodeProto], sizes: Mapping[_Key, _Size]) -> _Size:
    total, edges, copied, depth = 0, 0, 0, 0
    for node in _with_nested(nodes):
        # The call itself counts, too; otherwise calls of empty functions would be free.
        total += 1
        edges += len(node.input) + len(node.output)
        called = sizes.get(_called(node))
        if called is not None:
            total += called.nodes
            edges += called.edges
            # Each node of a function may get the call's attributes.
            attributes = sum(attribute.ByteSize() for attribute in node.attribute)
            copied += called.copied + called.nodes * attributes
            depth = max(depth, called.depth + 1)
    return _Size(total, edges, copied, depth)


def _called(node: NodeProto) -> _Key:
    return (_domain(node.domain), node.op_type, node.overload)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _named(key: _Key) -> str:
    return "::".join(part for part in key[:2] if part)


# --- sizes ----------------------------------------------------------------------------------------


def _check_sparse(model: ModelProto) -> None:
    sparse = [tensor.values.name for graph in _graphs(model) for tensor in graph.sparse_initializer]
    sparse += [
        node.name or "a constant"
        for node in all_nodes(model)
        for attribute in node.attribute
        if attribute.HasField("sparse_tensor") or attribute.sparse_tensors
    ]
    if sparse:
        raise UnsupportedModelError(
            f"it stores sparse tensors ({sparse[0]}, ...), which are not supported;"
            " export the model with dense tensors"
        )


def _check_sizes(what: str, dims: Sequence[int]) -> None:
    if len(dims) > RANK_LIMIT:
        raise UnsupportedModelError(
            f"its {what} has {len(dims):,} axes; at most {RANK_LIMIT} are supported"
        )
    if min(dims, default=0) < 0:
        raise ModelFileError(f"its {what} has a negative size: {list(dims)}")


def _check_inputs(graph: GraphProto) -> None:
    stored = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        if value.name in stored:
            continue
        # A size of 0 (or, in old exports, a negative size) is a size that the model leaves open.
        sizes = [max(dim.dim_value, 1) for dim in value.type.tensor_type.shape.dim]
        _check_sizes(f"input {value.name}", sizes)
        batch, image = prod(sizes[:1]), prod(sizes[1:])
        if batch > BATCH_LIMIT:
            raise UnsupportedModelError(
                f"its input {value.name} is a batch of {batch:,} images;"
                f" at most {BATCH_LIMIT:,} are supported"
            )
        if image > ELEMENT_LIMIT:
            raise UnsupportedModelError(
                f"its input {value.name} has {shown(image)} numbers per image;"
                f" at most {ELEMENT_LIMIT:,} are supported"
            )
