"""The only package that reads ONNX: its output has typed nodes, no operator strings.

path ─ file ─ ModelProto ─ normalise ─ one plain form ─┬─ operators ─ Graph (typed)
       limits, checker     float32, opset, folding     └─ batch ─ ModelProto for any N

A file may be hostile: `limits` counts its fields before it is parsed, its nodes before they are
inlined, its axes and numbers before anything is computed, and what the rewrite rules will walk.
"""

import re
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path

import onnx_ir as ir
from onnx import ModelProto, TensorProto

from models.errors import NoKernelsError, UnsupportedModelError
from models.graph import Graph, Shape
from models.onnx_loader.as_it_is import Opaque, as_it_is
from models.onnx_loader.batch import make_batch_symbolic
from models.onnx_loader.file import FileLimits, read_model
from models.onnx_loader.importer import (
    Importer,
    ImpossibleError,
    OnnxNode,
    RefusedError,
    UnknownShapeError,
)
from models.onnx_loader.limits.bounds import shortened
from models.onnx_loader.limits.structure import check_structure
from models.onnx_loader.normalise import normalise
from models.onnx_loader.operators import OPERATORS

__all__ = [
    "FileLimits",
    "LoadedModel",
    "Opaque",
    "image_shape",
    "load_model",
    "load_proto",
    "read_model",
    "weighs_halves",
]


@dataclass(frozen=True)
class LoadedModel:
    """A model in both of its forms, which compute the same."""

    name: str
    graph: Graph  # typed nodes as exported, before any rewriting
    proto: ModelProto  # the normal form as ONNX, its batch axis symbolic; or the file's own
    # Why Convoy's kernels cannot run it: `graph` is one Opaque node, and nothing shows whether
    # images of a batch stay apart in it.
    no_kernels: str = ""


def image_shape(proto: ModelProto) -> tuple[int | None, ...]:
    """One image's shape as the model's only input declares it; None where it leaves a size open."""
    initializers = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in initializers]
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs[:8]) or "none"
        names += ", ..." if len(inputs) > 8 else ""
        raise UnsupportedModelError(
            f"the model has {len(inputs)} inputs ({names}); a classifier has one, its image"
        )
    dims = inputs[0].type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.dim_value > 0 else None for dim in dims)[1:]


def weighs_halves(proto: ModelProto) -> bool:
    """Whether a model's weights are float16, most of their elements at least."""
    elements = Counter[int]()
    for tensor in proto.graph.initializer:
        elements[tensor.data_type] += prod(tensor.dims)
    return elements[TensorProto.FLOAT16] > elements[TensorProto.FLOAT]


def load_model(
    path: Path, *, input_shape: Shape | None = None, limits: FileLimits | None = None
) -> LoadedModel:
    """Read, check and normalise the model in `path`.

    `input_shape` is one image's shape for a model whose input leaves sizes open. Raises
    ModelFileError (the file) or UnsupportedModelError (what it asks for).
    """
    return load_proto(path.stem, read_model(path, limits or FileLimits()), input_shape)


def load_proto(
    name: str, proto: ModelProto, input_shape: Shape | None = None, *, opaque: bool = False
) -> LoadedModel:
    """A checked ModelProto, normalised; NoKernelsError lists all that is missing.

    With `opaque`, a model that typed nodes cannot express is loaded as it is, for ONNX Runtime.
    """
    model = normalise(proto, input_shape)
    try:
        graph = _typed_graph(name, model)
    except NoKernelsError as error:
        if not opaque:
            raise
        graph, runnable = as_it_is(name, proto, model, str(error))
        return LoadedModel(name, graph, runnable, str(error))
    check_structure(graph)
    make_batch_symbolic(model)
    return LoadedModel(name, graph, ir.serde.serialize_model(model))


# Operators on integers; those of constants alone are folded before.
_QUANTISED = re.compile("^QLinear|QuantizeLinear$|Integer$")


def _typed_graph(name: str, model: ir.Model) -> Graph:
    importer = Importer(
        frozenset(str(output.name) for node in model.graph for output in node.outputs)
    )
    for value in model.graph.inputs:
        if value.dtype != ir.DataType.FLOAT:
            raise UnsupportedModelError(
                f"input {value.name} holds {value.dtype}; only float32 and float16 are supported"
            )
    inputs = tuple(importer.declare(value) for value in model.graph.inputs)
    if quantised := sorted({n.op_type for n in model.graph if _QUANTISED.search(n.op_type)}):
        raise NoKernelsError(
            f"Convoy has no kernels for quantised models ({', '.join(quantised)}); on a GPU, serve "
            "the float32 model that it was made from: --precision fp16 halves its weights"
        )
    problems: list[_Problem] = []
    for ir_node in model.graph:
        node = OnnxNode(ir_node)
        known = ir_node.domain == "" and ir_node.op_type in OPERATORS
        try:
            if not known:
                raise RefusedError("the operator is not supported")
            OPERATORS[ir_node.op_type](importer, node)
        # LookupError: onnx.checker does not count a node's inputs, nor the numbers in attributes.
        except (RefusedError, UnsupportedModelError, ValueError, LookupError) as error:
            operator = f"{ir_node.domain}.{ir_node.op_type}".removeprefix(".")
            problems.append(_Problem(operator, node.name, error))
    if impossible := [each for each in problems if isinstance(each.error, ImpossibleError)]:
        raise UnsupportedModelError(
            "\n".join(["the model contradicts itself:", *_lines(impossible)])
        )
    if problems:
        raise NoKernelsError(_report(problems))
    outputs = []
    for value in model.graph.outputs:
        if str(value.name) not in importer.values:
            raise UnsupportedModelError(f"output {value.name} is constant: no image changes it")
        outputs.append(str(value.name))
    return importer.graph(name, inputs, tuple(outputs))


@dataclass(frozen=True)
class _Problem:
    operator: str
    node: str
    error: Exception


# Parentheses, brackets and numbers in a reason; and the name of a value after "of".
_DETAILS = re.compile(r"\([^)]*\)|\[[^]]*\]|\d+|(?<=shape of )\S+")

# Reasons in one message.
_REASONS = 50


def _report(problems: list[_Problem]) -> str:
    """All causes at once, without the unknown shapes that follow from them."""
    causes = [p for p in problems if not isinstance(p.error, UnknownShapeError)] or problems
    return "\n".join(
        [
            "the model asks for what Convoy does not run:",
            *_lines(causes),
            f"Supported operators: {', '.join(OPERATORS)};"
            " and most others of constants alone, which are folded",
        ]
    )


def _lines(causes: list[_Problem]) -> list[str]:
    """Return a line for each reason, with the nodes that it is of."""
    grouped: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for problem in causes:
        reason = shortened(str(problem.error))
        # One line a reason: shapes, and the names of values, are those of its first node.
        kind = _DETAILS.sub("", reason)
        grouped.setdefault((problem.operator, kind), []).append((problem.node, reason))
    lines = [
        f"  {operator}: {same[0][1]} (in {', '.join(node for node, _ in same[:8])}"
        f"{', ...' if len(same) > 8 else ''}; {len(same)} {'node' if len(same) == 1 else 'nodes'})"
        for (operator, _), same in islice(grouped.items(), _REASONS)
    ]
    if len(grouped) > _REASONS:
        lines.append(f"  and {len(grouped) - _REASONS:,} reasons more")
    return lines
