"""Adds normalisation to a network as ONNX nodes: x = pixel · multiplier + offset."""

from collections.abc import Iterable, Sequence

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from models.preprocessing import Layout, Preprocessing, normalisation
from models.served import Inner
from models.session import PIXELS, TENSORS


def with_normalisation(model: ModelProto, preprocessing: Preprocessing) -> ModelProto:
    """Return a copy of `model` that takes PIXELS as its input and normalises them."""
    nodes = _normalise(preprocessing, model.graph.input[0].name)
    return _before(model, preprocessing, nodes, [_pixels(preprocessing)])


def with_either_input(
    model: ModelProto, preprocessing: Preprocessing, inner: Iterable[Inner] = ()
) -> ModelProto:
    """Return a copy of `model` with two inputs: N images as PIXELS and M images as TENSORS.

    N or M may be 0. The output has the scores of the pixels, followed by the scores of the tensors.
    The pixels are copied (by a Concat) only if M is not 0. The values inside the network that
    `inner` lists become additional outputs.
    """
    joined = _tensor(preprocessing, "convoy/joined")
    normalised = _normalise(preprocessing, "convoy/normalised")
    join = helper.make_node("Concat", ["convoy/normalised", TENSORS], [joined.name], axis=0)
    alone = helper.make_graph(_normalise(preprocessing, joined.name), "pixels", [], [joined])
    both = helper.make_graph([*normalised, join], "both", [], [joined])
    nodes = [
        helper.make_node("Size", [TENSORS], ["convoy/size"]),
        helper.make_node("Cast", ["convoy/size"], ["convoy/some"], to=TensorProto.BOOL),
        helper.make_node(
            "If",
            ["convoy/some"],
            [model.graph.input[0].name],
            then_branch=both,
            else_branch=alone,
        ),
    ]
    inputs = [_pixels(preprocessing), _tensor(preprocessing, TENSORS)]
    result = _before(model, preprocessing, nodes, inputs)
    for value in inner:
        shape = [model.graph.output[0].type.tensor_type.shape.dim[0].dim_param or 1, *value.shape]
        output = helper.make_tensor_value_info(value.name, TensorProto.FLOAT, shape)
        result.graph.output.append(output)
    return result


def _pixels(preprocessing: Preprocessing) -> ValueInfoProto:
    shape = [None, *preprocessing.image_shape]
    return helper.make_tensor_value_info(PIXELS, TensorProto.UINT8, shape)


def _tensor(preprocessing: Preprocessing, name: str) -> ValueInfoProto:
    shape = [None, *preprocessing.input_shape]
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _normalise(preprocessing: Preprocessing, output: str) -> list[NodeProto]:
    """Return nodes that compute the model's input, called `output`, from the pixels in PIXELS."""
    pixels, transpose = PIXELS, []
    if preprocessing.layout is Layout.NCHW:
        # The bytes are transposed first, so that neighbouring numbers share a factor. With channels
        # last, the three nodes below take three times as long: a quarter of SqueezeNet's time in 8
        # bits.
        *spatial, channels = range(1, 1 + len(preprocessing.image_shape))  # axes
        pixels = "convoy/planes"
        transpose = [
            helper.make_node("Transpose", [PIXELS], [pixels], perm=[0, channels, *spatial])
        ]
    return [
        *transpose,
        helper.make_node("Cast", [pixels], ["convoy/float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["convoy/float", "convoy/multiplier"], ["convoy/scaled"]),
        helper.make_node("Add", ["convoy/scaled", "convoy/offset"], [output]),
    ]


def _before(
    model: ModelProto,
    preprocessing: Preprocessing,
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
) -> ModelProto:
    """Return a copy of `model` with new `inputs`. `nodes` compute the model's original input from
    the new inputs."""
    spatial = len(preprocessing.image_shape) - 1
    after = [1] * spatial if preprocessing.layout is Layout.NCHW else []
    multiplier, offset = (v.reshape(-1, *after) for v in normalisation(preprocessing))
    result = ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    for index, node in enumerate(nodes):
        graph.node.insert(index, node)
    graph.initializer.append(numpy_helper.from_array(multiplier, "convoy/multiplier"))
    graph.initializer.append(numpy_helper.from_array(offset, "convoy/offset"))
    del graph.input[:]
    graph.input.extend(inputs)
    return result
