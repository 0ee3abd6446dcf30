"""Makes an input of uint8 pixels one of float32, which has all of their numbers."""

import onnx_ir as ir

# What only moves the numbers of its first input.
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
    """Retype uint8 inputs where all nodes that read them move pixels or cast them to float32.

    An input stays as it is where a node computes on its bytes, whose sums wrap around.
    """
    for value in model.graph.inputs:
        if value.dtype == ir.DataType.UINT8 and (moved := _moved(value)) is not None:
            for each in moved:
                each.type = ir.TensorType(ir.DataType.FLOAT)


def _moved(value: ir.Value) -> list[ir.Value] | None:
    """Return the values that have only this one's numbers; None if one is computed on."""
    found = [value]
    for each in found:  # which grows
        if each.is_graph_output():
            return None
        for node, index in each.uses():
            if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT:
                continue
            if node.domain or node.op_type not in _MOVES or index > 0:
                return None
            found += [output for output in node.outputs if output not in found]
    return found
