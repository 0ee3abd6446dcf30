"""Lists the hostile models, each with the pattern of the loader's message."""

from collections.abc import Callable

import numpy as np
from onnx import ModelProto, TensorProto, helper

from tests.support.models.hostile_models import (
    CONV,
    chain,
    circle_through_call,
    concat_doubling,
    constant_plus,
    deep_calls,
    doubled_pieces,
    doubling,
    gathers,
    ints,
    large_function,
    loop,
    message,
    model,
    named,
    nested_ifs,
    nested_messages,
    node,
    pools,
    random_branch,
    read_by,
    recursion,
    relu,
    through_pooling,
    with_bytes_for,
    with_graph_fields,
    with_model_fields,
    with_outputs,
    with_sparse_weight,
    with_weight,
)

Build = Callable[[], ModelProto | bytes]

MEGABYTES = 20 * 2**20
HUGE = 2**40
CUBE = ints(1, 3, 2**20, 2**20)

# Models with 20 MB of fields of two or three bytes, by the kind of field.
CROWDS: dict[str, Build] = {
    "nodes": lambda: with_graph_fields(b"\x0a\x00" * (MEGABYTES // 2)),
    "attributes": lambda: with_graph_fields(message(1, b"\x2a\x00" * (MEGABYTES // 2))),
    "inputs of a node": lambda: with_graph_fields(message(1, b"\x0a\x00" * (MEGABYTES // 2))),
    "initializers": lambda: with_graph_fields(b"\x2a\x00" * (MEGABYTES // 2)),
    "values": lambda: with_graph_fields(b"\x6a\x00" * (MEGABYTES // 2)),
    "inputs": lambda: with_graph_fields(b"\x5a\x00" * (MEGABYTES // 2)),
    "opsets": lambda: with_model_fields(b"\x42\x00" * (MEGABYTES // 2)),
    "functions": lambda: with_model_fields(b"\xca\x01\x00" * (MEGABYTES // 3)),
    "fields that are unknown": lambda: with_model_fields(b"\xfa\x7f\x00" * (MEGABYTES // 3)),
}
LISTS: dict[str, Build] = {
    "sizes of a tensor": lambda: with_graph_fields(message(5, message(1, b"\x01" * MEGABYTES))),
    "numbers of an attribute": lambda: with_graph_fields(
        message(1, message(5, message(8, b"\x01" * MEGABYTES)))
    ),
}

NODES = "nodes; at most 10,000 are supported"
INLINED = "nodes once its functions are inlined; at most 10,000 are supported"
PORTS = "inputs or outputs; at most 512 are supported"
NUMBERS = "at most 268,435,456 are supported"
AXES = "axes; at most 16 are supported"
FOLDING = "numbers; at most .* are supported for a file of this size"
WINDOW = "has {} of {}; {} to 16,384 are supported"

UNSUPPORTED: dict[str, tuple[str, Build]] = {
    "100,000 nodes": ("100,000 " + NODES, lambda: model(chain("Relu", 100_000))),
    "functions of 2**20 nodes": ("1,572,863 " + INLINED, lambda: doubling(20)),
    "functions of 2**60 nodes": (r"over 2\*\*60 " + INLINED, lambda: doubling(60)),
    "functions of just too many nodes": ("12,287 " + INLINED, lambda: doubling(13)),
    "calls 101 deep": ("function calls are nested more than 100 deep", lambda: deep_calls(101)),
    "calls 3000 deep": ("function calls are nested more than 100 deep", lambda: deep_calls(3000)),
    "a function of a megabyte, 3000 times": (
        "bytes once they are inlined; at most",
        lambda: large_function(3000),
    ),
    "subgraphs 20 deep": ("graphs are nested more than 8 deep", lambda: nested_ifs(20)),
    "6000 Slices of opset 9": (
        "24,000 nodes once it is converted from opset 9 to 24; at most 20,000",
        lambda: model(chain("Slice", 6000, starts=[0], ends=[8], axes=[2]), opset=9),
    ),
    "a million names": (PORTS, lambda: model([node("Sum", "x " * 200_000, "y")])),
    "nodes of many names": (
        "inputs and outputs; at most 80,000",
        lambda: model([node("Concat", "x " * 500, f"c{i}", axis=1) for i in range(200)]),
    ),
    "a value with 200 readers": ("x is read by 200 nodes; at most 128", lambda: read_by(200)),
    "1500 poolings in a row": ("the last of 129 nodes in a row", lambda: pools(1500)),
    "600 values joined": ("joins 600 values.*; at most 512", lambda: doubled_pieces(600)),
    # --- inputs and tensors
    "an input of 2**40 a side": (
        NUMBERS,
        lambda: relu(1, 3, HUGE, HUGE),
    ),
    "an input of 100,000 a side": (
        "x has 30,000,000,000 numbers per image; " + NUMBERS,
        lambda: model(chain("GlobalAveragePool", 1), shape=(1, 3, 100_000, 100_000)),
    ),
    "an input that overflows": (
        NUMBERS,
        lambda: relu(1, 2**63 - 1, 2, 2),
    ),
    "a batch of 2**40": ("images; at most 65,536", lambda: relu(HUGE, 3, 8, 8)),
    "an input of 1000 axes": ("1,000 " + AXES, lambda: relu(*[1] * 1000)),
    "a tensor of 2**40": ("tensor w has 1,099,511,627,776 numbers; ", lambda: with_weight([HUGE])),
    "a tensor of 2**200": (r"tensor w has over 2\*\*200", lambda: with_weight([HUGE] * 5)),
    "a tensor of 2**30 texts": (NUMBERS, lambda: with_weight([2**30], kind=TensorProto.STRING)),
    "a tensor of 2**33 halves of bytes": (
        NUMBERS,
        lambda: with_weight([2**33], b"\0" * 12, TensorProto.INT4),
    ),
    "a tensor of 100 axes": (AXES, lambda: with_weight([1] * 100, b"\0" * 4)),
    "a sparse tensor": ("sparse tensors", lambda: with_sparse_weight(HUGE)),
    # --- values that nodes make
    "zeros": (NUMBERS, lambda: constant_plus([node("ConstantOfShape", "s", "c")], {"s": CUBE})),
    "zeros in a branch": ("one axis with 2,147,483,648 entries", lambda: random_branch(2**31)),
    "an Expand": (
        NUMBERS,
        lambda: model([node("Expand", "x s", "y")], {"s": CUBE}, shape=(1, 3, 1, 1)),
    ),
    "a Tile": (NUMBERS, lambda: model([node("Tile", "x s", "y")], {"s": CUBE})),
    "a Resize": (
        NUMBERS,
        lambda: model([helper.make_node("Resize", ["x", "", "", "s"], ["y"])], {"s": CUBE}),
    ),
    "a Pad": (
        NUMBERS,
        lambda: model([node("Pad", "x p", "y")], {"p": ints(0, 0, HUGE, HUGE, 0, 0, HUGE, HUGE)}),
    ),
    "a Range": (
        "entries; at most 1,048,576",
        lambda: constant_plus(
            [node("Range", "a b d", "r"), node("Cast", "r", "c", to=TensorProto.FLOAT)],
            {"a": np.array(0), "b": np.array(HUGE), "d": np.array(1)},
        ),
    ),
    "a Range of a product": (
        "entries; at most 1,048,576",
        lambda: constant_plus(
            [
                node("Mul", "b b", "bb"),
                node("Range", "a bb d", "r"),
                node("Cast", "r", "c", to=TensorProto.FLOAT),
            ],
            {"a": np.array(0), "b": np.array(2**20), "d": np.array(1)},
        ),
    ),
    "a OneHot": (
        NUMBERS,
        lambda: constant_plus(
            [node("OneHot", "i d v", "c")],
            {"i": ints(0, 1), "d": np.array(HUGE), "v": np.array([0, 1], np.float32)},
        ),
    ),
    "an image's channels doubled 40 times": (NUMBERS, lambda: concat_doubling(40, "x")),
    "an image's channels doubled 70 times": (NUMBERS, lambda: concat_doubling(70, "x")),
    "a constant doubled 40 times": (
        FOLDING,
        lambda: concat_doubling(40, "k", {"k": np.ones((1, 3, 1, 1), np.float32)}),
    ),
    "large constants, one after the other": (
        FOLDING,
        lambda: constant_plus(
            [
                node("ConstantOfShape", "s", "k0"),
                *(node("Exp", f"k{i}", f"k{i + 1}") for i in range(60)),
                node("Identity", "k60", "c"),
            ],
            {"s": ints(1, 2**21, 1, 1)},
        ),
    ),
    "a product of large constants": (
        FOLDING,
        lambda: constant_plus(
            [node("ConstantOfShape", "s", "k"), node("MatMul", "k k", "c")],
            {"s": ints(2**11, 2**11)},
        ),
    ),
    "a weight that 1000 nodes share": (
        "constant numbers, counted once per node that reads them; " + FOLDING.partition("; ")[2],
        lambda: model(chain("Add", 1000, "w"), {"w": np.ones((1, 3, 300, 300), np.float32)}),
    ),
    "a shape of 2**20 sizes": (
        "1,048,576 " + AXES,
        lambda: model([node("Reshape", "x s", "y")], {"s": np.ones(2**20, np.int64)}),
    ),
    "15 axes a node": ("19 " + AXES, lambda: gathers(9000, np.zeros((1,) * 16, np.int64))),
    "twice the axes a node": ("32 " + AXES, lambda: gathers(40, None)),
    "an axis a node": (AXES, lambda: model(chain("Unsqueeze", 9000, "a"), {"a": ints(0)})),
    "two million indices": (
        "sizes and indices; at most 1,048,576",
        lambda: model(
            [
                node("Cast", "x", "i", to=TensorProto.INT64),
                node("Reshape", "i s", "a"),
                node("Add", "a a", "b"),
                node("Add", "a b", "y"),
            ],
            {"s": ints(-1)},
            shape=(1, 3, 512, 512),
            axes=1,
        ),
    ),
    # --- windows
    "strides": (
        WINDOW.format("strides", "1,099,511,627,776", 1),
        lambda: model([node("Conv", "x w", "y", strides=[HUGE] * 2)], CONV),
    ),
    "no strides": (
        WINDOW.format("strides", 0, 1),
        lambda: model([node("Conv", "x w", "y", strides=[0, 0])], CONV),
    ),
    "dilations": (
        WINDOW.format("dilations", r"over 2\*\*62", 1),
        lambda: model([node("Conv", "x w", "y", dilations=[2**62] * 2)], CONV),
    ),
    "pads": (
        WINDOW.format("pads", r"over 2\*\*62", "-16,384"),
        lambda: model([node("Conv", "x w", "y", pads=[2**62] * 4)], CONV),
    ),
    "a kernel of 1e9 a side": (
        WINDOW.format("kernel_shape", "1,000,000,000", 1),
        lambda: through_pooling(10**9),
    ),
    "a filter of 1e9 a side": (NUMBERS, lambda: with_weight([3, 3, 10**9, 10**9], b"\0" * 36)),
    "2**40 groups": (
        "does not fit 3 channels, group=1099511627776",
        lambda: model([node("Conv", "x w", "y", group=HUGE)], CONV),
    ),
    "a kernel_shape of another filter": (
        r"kernel_shape=\(5, 5\), but the filter has the shape \(3, 3, 1, 1\)",
        lambda: model([node("Conv", "x w", "y", kernel_shape=[5, 5])], CONV),
    ),
    "an LRN": (
        WINDOW.format("size", "1,000,000,001", 0),
        lambda: model([node("LRN", "x", "y", size=10**9 + 1)]),
    ),
    "a function that reads what its caller writes": (
        "the model contradicts itself: Nodes in a graph must be topologically sorted",
        circle_through_call,
    ),
    "a Split into fewer than it writes": (
        "Split a has 3 outputs, but num_outputs=2",
        lambda: model([node("Split", "x", "a b c", axis=1, num_outputs=2), node("Relu", "a", "y")]),
    ),
    "100 outputs": (
        r"has 100 outputs \(.*, \.\.\.\); name its scores: set scores = ",
        lambda: with_outputs(100),
    ),
    "loops": (
        "Loop: the operator is not supported",
        lambda: loop(HUGE),
    ),
}

BROKEN: dict[str, tuple[str, Build]] = {
    **{
        f"20 MB of {what}": ("more than 1,000,000 protobuf fields", build)
        for what, build in CROWDS.items()
    },
    **{
        f"20 MB of {what}": ("more than 4,194,304 integers", build) for what, build in LISTS.items()
    },
    "a function that calls itself": ("themselves.*f::f0 calls f::f0", lambda: recursion("f0")),
    "a circle of functions": ("f::f0 calls f::f1 calls f::f0", lambda: recursion("f0", "f1")),
    "a size below 0": (r"negative size: \[-3, 1, 1\]", lambda: with_weight([-3, 1, 1], b"\0" * 12)),
    "sizes below 0": ("negative size", lambda: with_weight([-1, -3, 1, 1], b"\0" * 12)),
    "more sizes than numbers": ("not a valid ONNX model", lambda: with_weight([9, 9], b"\0" * 12)),
    "no numbers": (
        "tensors declare 100,000,000 numbers in total, which .* bytes cannot hold",
        lambda: with_weight([10**8]),
    ),
    "a name of a megabyte": ("has 1,000,000 bytes; the limit is 1,024", lambda: named("n" * 10**6)),
    "a name on two lines": ("'two.nlines' has characters that", lambda: named("two\nlines")),
    "a name with a NUL": ("'a.x00b' has characters that", lambda: named("a\0b")),
    "a name of colours": ("has characters that cannot be printed", lambda: named("\x1b[31mred")),
    "a name that is no text": (
        "is not UTF-8",
        lambda: with_bytes_for("quad", b"\xed\xa0\x80!", named("quad")),
    ),
    "two values of one name": (
        "not a valid ONNX model",
        lambda: model([node("Relu", "x", "v"), node("Relu", "v", "v"), node("Relu", "v", "y")]),
    ),
    "a node that writes nothing": ("has no output", lambda: model([node("Relu", "x", "")])),
    "a field longer than its message": ("truncated", lambda: with_model_fields(b"\x3a\x7f\x00")),
    "a number without end": ("truncated", lambda: with_model_fields(b"\x08" + b"\xff" * 20)),
    "a wire type that is none": ("truncated", lambda: with_model_fields(b"\x0f")),
    "messages 200 deep": ("truncated", lambda: with_graph_fields(nested_messages(200))),
}

# The models that would need most without the bounds: gigabytes, or minutes.
MEASURED = (
    "100,000 nodes",
    "functions of 2**60 nodes",
    "a function of a megabyte, 3000 times",
    "zeros in a branch",
    "a constant doubled 40 times",
    "twice the axes a node",
    "a weight that 1000 nodes share",
    "20 MB of attributes",
    "20 MB of sizes of a tensor",
)
