"""Changes uint8 inputs of a model to float32, which represents all uint8 numbers exactly."""

import onnx_ir as ir

# Operators that only move the numbers of their first input.
_MOVES = {
    *(
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Reshape",
        "Slice",
        "SpaceToDepth",
    ),
    *("Split", "Squeeze", "Transpose", "Unsqueeze"),
}


def pixels_to_float32(model: ir.Model) -> None:
    """Change uint8 inputs to float32 if the nodes that read them only move pixels or cast them to
    float32.

    An input remains uint8 if a node computes on it, because sums of uint8 wrap around.
    """
    for value in model.graph.inputs:
        if value.dtype == ir.DataType.UINT8 and (moved := _moved(value)) is not None:
            for each in moved:
                each.type = ir.TensorType(ir.DataType.FLOAT)


def _moved(value: ir.Value) -> list[ir.Value] | None:
    """Return all values that consist of elements of `value`, or None if a node computes on them."""
    found = [value]
    for each in found:  # the list grows meanwhile
        if each.is_graph_output():
            return None
        for node, index in each.uses():
            if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT:
                continue
            if node.domain or node.op_type not in _MOVES or index > 0:
                return None
            found += [output for output in node.outputs if output not in found]
    return found
