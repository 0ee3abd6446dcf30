"""Converts a model to Convoy's typed graph and to an ONNX model for any batch size.

This is a separate module so that importing the package does not import onnx-ir and its
dependencies, which takes 0.6 s.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import onnx_ir as ir
from onnx import ModelProto
from onnx_ir.passes import common as passes

from models.errors import NoKernelsError, UnsupportedModelError
from models.graph import Graph, Shape
from models.onnx_loader.as_it_is import as_it_is
from models.onnx_loader.batch import make_batch_symbolic
from models.onnx_loader.importer import (
    Importer,
    ImpossibleError,
    OnnxNode,
    RefusedError,
    UnknownShapeError,
)
from models.onnx_loader.integers import on_integers
from models.onnx_loader.limits.bounds import shortened
from models.onnx_loader.limits.structure import check_structure
from models.onnx_loader.meaning import meaning_of_scores
from models.onnx_loader.normalise import normalise
from models.onnx_loader.one_image import separate_batch
from models.onnx_loader.operators import OPERATORS
from models.scores import UNSHOWN, Meaning


class Translation(NamedTuple):
    """All fields of a `LoadedModel` except its name."""

    graph: Graph
    proto: ModelProto
    quantized: bool
    meaning: Meaning


def translate(
    name: str,
    proto: ModelProto,
    input_shape: Shape | None,
    *,
    opaque: bool,
    choose: Callable[[ir.Model], None] | None = None,
) -> Translation:
    """Convert a model to a typed graph and to an ONNX model in normal form.

    `choose` edits the model to keep only some of its outputs. If typed nodes cannot express the
    model, this raises NoKernelsError. If `opaque` is True, the result has the original nodes
    instead.
    """
    model = normalise(proto, input_shape)
    if choose is not None:
        choose(model)
        passes.RemoveUnusedNodesPass()(model)
    meaning = meaning_of_scores(model.graph.outputs[0]) if model.graph.outputs else UNSHOWN
    quantized = on_integers(model.graph)
    try:
        graph, model = _at_batch_one(name, model)
    except NoKernelsError as error:
        if not opaque:
            raise
        del model.graph.outputs[1:]
        graph, runnable = as_it_is(name, proto, model, str(error))
        return Translation(graph, runnable, bool(quantized), meaning)
    check_structure(graph)
    make_batch_symbolic(model)
    written = ir.serde.serialize_model(model)
    if choose is not None:  # other values are requested by name
        graph = replace(graph, outputs=graph.outputs[:1])
        del written.graph.output[1:]
    return Translation(graph, written, bool(quantized), meaning)


def _at_batch_one(name: str, model: ir.Model) -> tuple[Graph, ir.Model]:
    """Return the typed graph for one image, and the model from which it is made.

    If axis 0 of some values is not the batch, `separate_batch` may add a batch axis to a copy of
    the model. Raises NoKernelsError.
    """
    try:
        return _typed_graph(name, model), model
    except NoKernelsError as error:
        apart = model.clone()
        try:
            if not separate_batch(apart):
                raise
            passes.RemoveUnusedNodesPass()(apart)
            return _typed_graph(name, apart), apart
        except RefusedError as refused:
            raise NoKernelsError(f"{error}\nA batch axis cannot be added: {refused}") from error


# Operators that may be applied to integers that represent other numbers.
_MOVES = frozenset(
    {
        "Concat", "DepthToSpace", "DequantizeLinear", "Expand", "Flatten", "Gather", "Identity",
        "MaxPool", "Pad", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Transpose",
        "Unsqueeze",
    }
)  # fmt: skip


def _typed_graph(name: str, model: ir.Model) -> Graph:
    importer = Importer(
        frozenset(str(output.name) for node in model.graph for output in node.outputs)
    )
    for value in model.graph.inputs:
        if value.dtype != ir.DataType.FLOAT:
            raise NoKernelsError(
                f"a node reads the input {value.name} as {value.dtype}; export the model with a"
                " cast to float before this node"
            )
    inputs = tuple(importer.declare(value) for value in model.graph.inputs)
    problems: list[_Problem] = []
    for ir_node in model.graph:
        node = OnnxNode(ir_node)
        known = ir_node.domain == "" and ir_node.op_type in OPERATORS
        try:
            if not known:
                raise RefusedError("the operator is not supported")
            if ir_node.op_type not in _MOVES and any(map(_holds_integers, ir_node.inputs[:1])):
                raise RefusedError("it computes on 8-bit integers, which is not supported")
            written = len(importer.nodes)
            OPERATORS[ir_node.op_type](importer, node)
            if ir_node.op_type != "QuantizeLinear" and _holds_integers(ir_node.outputs[0]):
                importer.keep_storage(written)
        # A LookupError: onnx.checker does not check the number of inputs, nor the numbers in
        # attributes.
        except (RefusedError, UnsupportedModelError, ValueError, LookupError) as error:
            operator = f"{ir_node.domain}.{ir_node.op_type}".removeprefix(".")
            problems.append(_Problem(operator, node.name, error))
    if impossible := [
        problem for problem in problems if isinstance(problem.error, ImpossibleError)
    ]:
        raise UnsupportedModelError(
            "\n".join(["the model contradicts itself:", *_lines(impossible)])
        )
    if problems:
        raise NoKernelsError(_report(problems))
    outputs = []
    for value in model.graph.outputs:
        if str(value.name) not in importer.values:
            raise UnsupportedModelError(
                f"output {value.name} is the same for every image. Export the model with an output"
                " that depends on its input"
            )
        if _holds_integers(value):
            raise NoKernelsError(
                f"output {value.name} is quantized; export the model with a DequantizeLinear at its"
                " end"
            )
        outputs.append(str(value.name))
    return importer.graph(name, inputs, tuple(outputs))


def _holds_integers(value: ir.Value | None) -> bool:
    """Return whether a value is computed (not a constant) and has the type int8 or uint8."""
    return (
        value is not None
        and value.const_value is None
        and value.dtype in (ir.DataType.INT8, ir.DataType.UINT8)
    )


@dataclass(frozen=True)
class _Problem:
    operator: str
    node: str
    error: Exception


# The details of a reason: parentheses, brackets, numbers, and the name of a value after "of".
_DETAILS = re.compile(r"\([^)]*\)|\[[^]]*\]|\d+|(?<=shape of )\S+")

# The most reasons in one message.
_REASONS = 50


def _report(problems: list[_Problem]) -> str:
    """Return an error message with all problems. Unknown shapes are listed only if there are no
    other problems."""
    causes = [p for p in problems if not isinstance(p.error, UnknownShapeError)] or problems
    return "\n".join(
        [
            "the model has parts that Convoy does not run:",
            *_lines(causes),
            f"Supported operators: {', '.join(OPERATORS)}. Most others are supported on constants",
        ]
    )


def _lines(causes: list[_Problem]) -> list[str]:
    """Return one line per operator and reason, with the names of the first nodes.

    After `_REASONS` lines, one more line gives the number of other reasons.
    """
    grouped: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for problem in causes:
        reason = shortened(str(problem.error))
        # One line per reason. Shapes and names of values in the line are from the first node.
        kind = _DETAILS.sub("", reason)
        grouped.setdefault((problem.operator, kind), []).append((problem.node, reason))
    lines = [
        f"  {operator}: {same[0][1]} (in {', '.join(node for node, _ in same[:8])}"
        f"{', ...' if len(same) > 8 else ''}; {len(same)} {'node' if len(same) == 1 else 'nodes'})"
        for (operator, _), same in islice(grouped.items(), _REASONS)
    ]
    if len(grouped) > _REASONS:
        lines.append(f"  and {len(grouped) - _REASONS:,} more reasons")
    return lines
