"""Prepares the operands of 8-bit convolutions, and lowers an 8-bit fully connected layer to a
convolution."""

from functools import partial

from kernels.convolution.algorithms import ConvChoice
from kernels.layout.operands import ConvTensors
from kernels.layout.pixels import Addend, Pixels
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision, Storage
from kernels.problems.window import Window
from models.graph import Conv, Gemm
from models.lowering.context import Context, pixels_of
from models.lowering.tape import Operand, at
from models.quantized_filters import operands_of
from models.schedule.time import PlannedConv

_PIXEL = Window(
    input=(1, 1),
    kernel=(1, 1),
    strides=(1, 1),
    dilations=(1, 1),
    pads_begin=(0, 0),
    pads_end=(0, 0),
    output=(1, 1),
)


def integer_operands(
    to: Context, node: Conv | Gemm, problem: ConvProblem, choice: ConvChoice
) -> dict[str, Operand]:
    """Return the operands of an 8-bit convolution: integer weights, and an offset and a scale per
    output.

    The kernel uses the offsets and scales to convert its 32-bit sums to bytes.
    """
    graph, grid = to.graph, to.graph.grids[node.weight]
    algorithm, config = choice.algorithm, choice.config
    bias = None if node.bias is None else graph.weights[node.bias]
    sums = node.rounded if isinstance(node, Conv) else None
    offset, scale = operands_of(
        grid,
        bias,
        None if node.bias is None else graph.grids.get(node.bias),
        graph.values[node.x].stored,
        sums or graph.values[node.output].stored,
    )
    numbers = grid.numbers.reshape(problem.filter_shape)
    return {
        "weight": to.tape.weight(
            node.weight,
            partial(algorithm.prepare_filter, numbers, problem, config),
            algorithm.filter_form(problem, config),
        ),
        "offset": to.tape.weight(node.output, lambda: offset, "offset"),
        "scale": to.tape.weight(node.output, lambda: scale, "scale"),
    }


def added_to(residual: Pixels, rounded: Storage) -> Addend:
    """Return the layout of the residual of an 8-bit convolution. The convolution's kernel first
    rounds the sums to `rounded`, and then adds the residual."""
    r = residual
    return Addend(r.channels, r.pitch, r.offset, r.stored, rounded)


def lower_integer_gemm(to: Context, node: Gemm) -> None:
    """Add the launches of an 8-bit fully connected layer. The layer becomes a convolution with one
    pixel per image."""
    k, c = to.graph.shape(node.weight)
    problem = ConvProblem(to.n, c, k, _PIXEL, precision=Precision.INT8)
    choice = to.choose(problem)
    algorithm, config = choice.algorithm, choice.config
    x, x_pixels = to.pixels(node.x)
    y = to.output(node.output)
    operands: dict[str, Operand] = {"x": at(x), "y": at(y)}
    operands |= integer_operands(to, node, problem, choice)
    operands |= to.tape.scratch(
        algorithm.workspace(problem, config), algorithm.counter_bytes(problem, config)
    )
    to.tape.chosen = PlannedConv(problem, choice)
    launches = algorithm.launches(
        problem, config, ConvTensors(x=x_pixels, y=pixels_of(y), activation=node.activation)
    )
    for launch in choice.triggered(launches):
        to.tape.emit(launch, **operands)
