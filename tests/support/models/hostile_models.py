"""Creates models that need too many resources. Their files are small or cheap to write.

onnx's helpers refuse to write some of these models. Those models are assembled in protobuf's wire
format.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

Weights = dict[str, NDArray[Any]]
IMAGE = (1, 3, 8, 8)
FUNCTIONS = "f"  # the domain of model-local functions


def node(op: str, inputs: str, outputs: str, **rest: Any) -> NodeProto:
    """Return a node. `inputs` and `outputs` are names that are separated by spaces."""
    return helper.make_node(op, inputs.split(), outputs.split(), **rest)


def value(name: str, shape: Sequence[int | str | None] | None) -> ValueInfoProto:
    """Return a float value of a shape. In the shape, None means an unknown size."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(
    nodes: Sequence[NodeProto],
    weights: Weights | None = None,
    *,
    shape: Sequence[int] = IMAGE,
    axes: int = 4,
    opset: int = 21,
    functions: Sequence[FunctionProto] = (),
) -> ModelProto:
    """Return a model. Its input x has the given shape, and its output y has `axes` axes."""
    graph = helper.make_graph(
        nodes,
        "hostile",
        [value("x", shape)],
        [value("y", [None] * axes)],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(FUNCTIONS, 1)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=10, functions=functions or None
    )


def chain(op: str, n: int, more: str = "", **rest: Any) -> list[NodeProto]:
    """Return n nodes that form a chain from x to y. Each node reads the output of the previous
    node, and the inputs that `more` names."""
    names = ["x", *(f"v{i}" for i in range(1, n)), "y"]
    return [node(op, f"{names[i]} {more}", names[i + 1], **rest) for i in range(n)]


def relu(*shape: int) -> ModelProto:
    """Return a model with one Relu and an input of this shape."""
    return model(chain("Relu", 1), shape=shape, axes=len(shape))


def ints(*numbers: int) -> NDArray[np.int64]:
    """Return a flat tensor of integers."""
    return np.array(numbers, np.int64)


CONV = {"w": np.ones((3, 3, 1, 1), np.float32)}


def written(made: ModelProto | bytes) -> bytes:
    """Return the model's file as bytes."""
    return made if isinstance(made, bytes) else bytes(made.SerializeToString())


# --- functions and subgraphs ----------------------------------------------------------------------


def function(name: str, nodes: Sequence[NodeProto]) -> FunctionProto:
    """Return a function from a to b."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(FUNCTIONS, 1)]
    return helper.make_function(FUNCTIONS, name, ["a"], ["b"], list(nodes), opsets)


def call(name: str, inputs: str, outputs: str, **rest: Any) -> NodeProto:
    """Return a call of a function."""
    return node(name, inputs, outputs, domain=FUNCTIONS, **rest)


def doubling(n: int, used: bool = True) -> ModelProto:
    """Return a model with n functions. Each function calls the previous function twice."""
    functions = [function("f0", [node("Relu", "a", "b")])]
    for i in range(1, n):
        calls = [call(f"f{i - 1}", "a", "t"), call(f"f{i - 1}", "t", "b")]
        functions.append(function(f"f{i}", calls))
    last = call(f"f{n - 1}", "x", "y") if used else node("Relu", "x", "y")
    return model([last], functions=functions)


def deep_calls(n: int) -> ModelProto:
    """Return a model with calls nested n deep."""
    functions = [function("f0", [node("Relu", "a", "b")])]
    functions += [function(f"f{i}", [call(f"f{i - 1}", "a", "b")]) for i in range(1, n)]
    return model([call(f"f{n - 1}", "x", "y")], functions=functions)


def recursion(*names: str) -> ModelProto:
    """Return a model of functions that call each other in a circle."""
    after = dict(zip(names, [*names[1:], names[0]], strict=True))
    functions = [function(name, [call(after[name], "a", "b")]) for name in names]
    return model([call(names[0], "x", "y")], functions=functions)


def circle_through_call() -> ModelProto:
    """Return a model with a function that computes y from y. y is defined only in the function's
    caller.

    onnx.checker does not check these functions, because the model's IR version is from before
    functions existed.
    """
    functions = [
        function("f0", [node("Relu", "a", "b")]),
        function("f1", [call("f0", "a", "t"), call("f0", "y", "b")]),
    ]
    result = model([call("f1", "x", "y")], functions=functions)
    result.ir_version = 7
    return result


def large_function(n: int) -> ModelProto:
    """Return a model that calls a function of a megabyte n times."""
    constant = numpy_helper.from_array(np.ones((1, 1, 512, 512), np.float32))
    nodes = [node("Constant", "", "c", value=constant), node("Mul", "a c", "b")]
    return model(chain("f0", n, domain=FUNCTIONS), functions=[function("f0", nodes)])


def nested_ifs(depth: int) -> ModelProto:
    """Return a model of nested Ifs, `depth` levels deep. All conditions are true."""

    def branch(nodes: Sequence[NodeProto]) -> GraphProto:
        return helper.make_graph(nodes, "branch", [], [value("o", None)])

    inner = branch([node("Relu", "x", "o")])
    for _ in range(depth - 1):
        inner = branch([node("If", "yes", "o", then_branch=inner, else_branch=inner_else())])
    last = node("If", "yes", "y", then_branch=inner, else_branch=inner_else())
    return model([last], {"yes": np.array(True)})


def inner_else() -> GraphProto:
    """Return a branch that does nothing."""
    return helper.make_graph([node("Identity", "x", "o")], "else", [], [value("o", None)])


def loop(times: int) -> ModelProto:
    """Return a model that doubles the number 1 `times` times, and adds the result to x."""
    scalar = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Add", "v v", "w")],
        "body",
        [scalar("i", TensorProto.INT64, []), scalar("go", TensorProto.BOOL, []), value("v", [1])],
        [scalar("on", TensorProto.BOOL, []), value("w", [1])],
    )
    weights = {"n": np.array(times), "yes": np.array(True), "one": np.ones(1, np.float32)}
    return constant_plus([node("Loop", "n yes one", "c", body=body)], weights)


# --- the wire format ------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    """Return a number as protobuf encodes it."""
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def message(number: int, content: bytes) -> bytes:
    """Return a field that holds a message, a text or packed numbers."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def with_graph_fields(content: bytes) -> bytes:
    """Return a valid model with additional fields in its graph."""
    return written(model(chain("Relu", 1))) + message(7, content)


def with_model_fields(content: bytes) -> bytes:
    """Return a valid model with additional top-level fields."""
    return written(model(chain("Relu", 1))) + content


def nested_messages(depth: int) -> bytes:
    """Return the bytes of a graph. Its node has an attribute that is another graph, and so on,
    `depth` levels deep."""
    content = b""
    for _ in range(depth):
        content = message(1, message(5, message(6, content)))
    return content


# --- shapes and names -----------------------------------------------------------------------------


def with_weight(dims: Sequence[int], raw: bytes = b"", kind: int = TensorProto.FLOAT) -> ModelProto:
    """Return a model of x + w, with any shape and bytes for w."""
    result = model([node("Add", "x w", "y")])
    tensor = result.graph.initializer.add(name="w", data_type=kind, raw_data=raw)
    tensor.dims.extend(dims)
    return result


def with_sparse_weight(size: int) -> ModelProto:
    """Return a model of x + w. w has `size` numbers, but only one of them is stored."""
    result = model([node("Add", "x w", "y")])
    sparse = result.graph.sparse_initializer.add(dims=[size])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(ints(0), "i"))
    return result


def with_outputs(n: int) -> ModelProto:
    """Return a model with n outputs. Each output is the Relu of the previous output."""
    result = model(chain("Relu", n))
    result.graph.output.extend(value(f"v{i}", [None] * 4) for i in range(1, n))
    return result


def named(name: str) -> ModelProto:
    """Return a model whose only node has this name and this operator."""
    return model([node(name, "x", "y", name=name)])


def with_bytes_for(text: str, replacement: bytes, original: ModelProto) -> bytes:
    """Return the model's file, in which a text is replaced by bytes of the same length."""
    assert len(text) == len(replacement)
    return written(original).replace(text.encode(), replacement)


def constant_plus(nodes: Sequence[NodeProto], weights: Weights) -> ModelProto:
    """Return a model of x + c. `nodes` compute c."""
    return model([*nodes, node("Add", "x c", "y")], weights)


def concat_doubling(n: int, first: str, weights: Weights | None = None) -> ModelProto:
    """Return a model that doubles the channels n times, and adds the result to x."""
    names = [first, *(f"d{i}" for i in range(1, n)), "c"]
    doubled = [node("Concat", f"{names[i]} {names[i]}", names[i + 1], axis=1) for i in range(n)]
    return constant_plus(doubled, weights or {})


def gathers(n: int, index: NDArray[np.int64] | None) -> ModelProto:
    """Return a model with n Gathers, each of which adds axes. A Gather reads its own input as its
    index, or an index with many numbers."""
    names = ["x", *(f"v{i}" for i in range(1, n)), "y"]
    nodes = [
        node("Gather", f"{names[i]} {names[i] if index is None else 'i'}", names[i + 1])
        for i in range(n)
    ]
    return model(nodes, {} if index is None else {"i": index})


def pools(n: int) -> ModelProto:
    """Return a model with n poolings, one after another, and then a Relu."""
    names = ["x", *(f"v{i}" for i in range(n))]
    window = {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]}
    nodes = [node("MaxPool", names[i], names[i + 1], **window) for i in range(n)]
    return model([*nodes, node("Relu", names[-1], "y")])


def read_by(n: int) -> ModelProto:
    """Return a model in which n nodes read x and their outputs are added."""
    nodes = [node("LeakyRelu", "x", f"r{i}", alpha=(i + 1) / (n + 1)) for i in range(n)]
    sums = ["r0", *(f"s{i}" for i in range(1, n - 1)), "y"]
    return model(nodes + [node("Add", f"{sums[i]} r{i + 1}", sums[i + 1]) for i in range(n - 1)])


def doubled_pieces(n: int) -> ModelProto:
    """Return a model that concatenates n copies of x, as two concatenations of half of them."""
    nodes = [
        node("Concat", "x " * (n // 2), "half", axis=1),
        node("Concat", "half half " + "x" * (n % 2), "y", axis=1),
    ]
    return model(nodes)


def through_pooling(kernel: int) -> ModelProto:
    """Return a model with one pooling. The side of its window is `kernel`."""
    pads = [kernel // 2] * 4
    return model([node("MaxPool", "x", "y", kernel_shape=[kernel] * 2, pads=pads)])


def flat(n: int) -> ModelProto:
    """Return a model that creates a vector of n zeros, and adds its sum to x."""
    nodes = [node("ConstantOfShape", "n", "z"), node("ReduceSum", "z", "c", keepdims=0)]
    return constant_plus(nodes, {"n": ints(n)})


def reshaped(axes: int) -> ModelProto:
    """Return a model that reshapes x to this many axes and back."""
    shape = ints(1, *[1] * (axes - 2), 192)
    nodes = [node("Reshape", "x many", "m"), node("Reshape", "m few", "y")]
    return model(nodes, {"many": shape, "few": ints(1, 3, 8, 8)})


def random_branch(size: int) -> ModelProto:
    """Return a model with branches that declare an output of one number, but return `size` numbers.
    The image decides which branch runs."""
    branch = helper.make_graph([node("ConstantOfShape", "n", "o")], "branch", [], [value("o", [1])])
    nodes = [
        node("ReduceMax", "x", "most", keepdims=0),
        node("Cast", "most", "yes", to=TensorProto.BOOL),
        node("If", "yes", "c", then_branch=branch, else_branch=branch),
    ]
    return constant_plus(nodes, {"n": ints(size)})
