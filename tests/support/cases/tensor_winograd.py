"""Lists cases of tensor_winograd.cu. Every layer has a case for every tile, with or without split
sums."""

from collections.abc import Iterator

from kernels.convolution.algorithms import ConvChoice
from kernels.convolution.split_sum import WinogradConfig
from kernels.convolution.tensor_winograd import TENSOR_WINOGRAD_TILES, TensorWinogradConv
from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.precision import Precision
from kernels.winograd.matrices import Points
from tests.support.cases.conv import conv_case
from tests.support.cases.tensor_gemm import at_precision
from tests.support.cases.winograd import LAYERS_3
from tests.support.kernels.conv_layers import Layer, dense, within
from tests.support.kernels.kernel_case import KernelCase
from tests.support.kernels.windows import conv_problem, window

F2 = TensorWinogradConv(m=2, r=3)

HALF_LAYERS = tuple(
    at_precision(layer, Precision.FP16)
    for layer in (
        *LAYERS_3,
        Layer(
            "of a last chunk of one channel, whose neighbour is another's",
            conv_problem(1, 33, 8, window((6, 5), (3, 3), pads=(1,) * 4)),
            within(33),
            dense(8),
            activation=Activation(ActivationKind.SILU),
        ),
        Layer(
            "of regions that end beyond the image",
            conv_problem(2, 18, 36, window((19, 35), (3, 3), pads=(1,) * 4)),
            dense(18),
            dense(36),
            dense(36),
            True,
            RELU,
        ),
    )
)

_SPLITS = (1, 2, 3, 5)


def _cases() -> Iterator[KernelCase]:
    """Yield each layer with each tile, with the splits in rotation."""
    for row, layer in enumerate(HALF_LAYERS):
        for column, tile in enumerate(TENSOR_WINOGRAD_TILES):
            split = _SPLITS[(row + column) % len(_SPLITS)]
            config = WinogradConfig(Points.INTEGER, tile, split)
            yield conv_case(layer, ConvChoice(F2, config))


TENSOR_WINOGRAD_CASES: tuple[KernelCase, ...] = tuple(_cases())
