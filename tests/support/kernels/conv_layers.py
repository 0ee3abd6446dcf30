"""Lists convolutions to test. Each has an epilogue, and states where its operands lie in memory."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from kernels.layout.pixels import Pixels
from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.conv import ConvProblem
from kernels.problems.prologue import Prologue
from tests.support.kernels.windows import conv_problem, window


def dense(channels: int) -> Pixels:
    """Return the layout of pixels without padding. Pixels are aligned to vectors only if their
    channels fill whole vectors."""
    return Pixels(channels, channels)


def filled(channels: int) -> Pixels:
    """Return the layout of pixels that are padded to whole vectors, as in a network's own
    buffers."""
    return Pixels(channels, -(-channels // 4) * 4)


def within(channels: int) -> Pixels:
    """Return the layout of some channels of wider pixels. The channels begin at the boundary of a
    vector."""
    return Pixels(channels, -(-channels // 4) * 4 + 8, offset=4)


def odd(channels: int) -> Pixels:
    """Return the layout of some channels of wider pixels. The channels do not begin at the boundary
    of a vector."""
    return Pixels(channels, channels + 3, offset=1)


@dataclass(frozen=True)
class Layer:
    """Holds a convolution, its epilogue, and the layouts of its operands in memory."""

    name: str
    problem: ConvProblem
    x: Pixels
    y: Pixels
    residual: Pixels | None = None
    bias: bool = True
    activation: Activation | None = None
    in_place: bool = False  # y overwrites the residual
    mean: float = 0.0  # of x
    nan: bool = False  # one channel of one pixel of x is NaN


_1x1 = window((5, 9), (1, 1))
_3x3 = window((6, 7), (3, 3), pads=(1, 1, 1, 1))
CLIP = Activation(ActivationKind.CLIP, 0.0, 6.0)


def drawn_layer(draw: st.DrawFn, problem: ConvProblem) -> Layer:
    """Draw a layer for a problem. The layouts of the operands are drawn, and optionally a residual,
    a bias and an activation."""
    places = st.sampled_from((dense, filled, within, odd))
    residual = draw(st.none() | places)
    return Layer(
        "drawn",
        problem,
        draw(places)(problem.c),
        draw(places)(problem.k),
        residual and residual(problem.k),
        bias=draw(st.booleans()),
        activation=draw(st.sampled_from((None, CLIP))),
    )


DIRECT_LAYERS = (
    Layer("as in VGG", conv_problem(1, 16, 24, _3x3), dense(16), dense(24), None, True, RELU),
    Layer(
        "as in ResNet",
        conv_problem(2, 12, 36, _3x3),
        dense(12),
        dense(36),
        dense(36),
        True,
        RELU,
        in_place=True,
    ),
    Layer(
        "the first, as in ResNet",
        conv_problem(1, 3, 20, window((17, 15), (7, 7), strides=(2, 2), pads=(3, 3, 3, 3))),
        filled(3),
        dense(20),
        None,
        True,
        RELU,
    ),
    Layer(
        "the first, as in AlexNet",
        conv_problem(2, 3, 8, window((27, 19), (11, 11), strides=(4, 4), pads=(2, 2, 2, 2))),
        dense(3),
        within(8),
    ),
    Layer(
        "as in GoogLeNet, into a slice",
        conv_problem(3, 8, 12, window((4, 5), (5, 5), pads=(2, 2, 2, 2))),
        within(8),
        within(12),
        activation=RELU,
    ),
    Layer(
        "a row",
        conv_problem(1, 8, 8, window((5, 9), (1, 7), pads=(0, 3, 0, 3))),
        dense(8),
        dense(8),
        bias=False,
    ),
    Layer(
        "a column",
        conv_problem(1, 8, 8, window((9, 5), (7, 1), pads=(3, 0, 3, 0))),
        within(8),
        odd(8),
        odd(8),
    ),
    Layer(
        "a shortcut, as in ResNet",
        conv_problem(5, 20, 28, window((6, 5), (1, 1), strides=(2, 2))),
        dense(20),
        dense(28),
        None,
        True,
    ),
    Layer(
        "uneven in everything",
        conv_problem(
            2,
            5,
            7,
            window((11, 8), (3, 2), strides=(2, 3), dilations=(2, 3), pads=(0, 1, 2, 0)),
        ),
        odd(5),
        odd(7),
        within(7),
        True,
        CLIP,
    ),
    Layer(
        "dilated",
        conv_problem(1, 12, 4, window((9, 9), (3, 3), dilations=(3, 2), pads=(3, 2, 3, 2))),
        within(12),
        dense(4),
        dense(4),
        False,
    ),
    Layer(
        "padded beyond the image",
        conv_problem(1, 4, 4, window((2, 3), (3, 3), strides=(3, 1), pads=(3, 4, 2, 5))),
        dense(4),
        dense(4),
    ),
    *(
        Layer(
            f"{c} channels to {k}",
            conv_problem(n, c, k, window((3, 4), (2, 3), pads=(1, 1, 0, 1))),
            x(c),
            y(k),
            y(k) if n % 2 else None,
        )
        for n, (c, k, x, y) in enumerate(
            (
                (1, 1, dense, dense),
                (3, 4, odd, dense),
                (4, 5, dense, within),
                (5, 3, filled, filled),
                (7, 8, within, odd),
                (8, 7, dense, dense),
                (12, 17, filled, odd),
                (17, 65, within, within),
                (33, 12, odd, filled),
            ),
            start=1,
        )
    ),
    Layer("2 groups", conv_problem(1, 24, 40, _3x3, 2), dense(24), dense(40), dense(40)),
    Layer("3 groups off vectors", conv_problem(2, 15, 21, _3x3, 3), filled(15), within(21)),
    Layer("groups of one channel", conv_problem(1, 6, 12, _3x3, 6), dense(6), dense(12)),
    Layer(
        "in 3-D, as in C3D",
        conv_problem(1, 8, 12, window((3, 4, 5), (3, 3, 3), pads=(1,) * 6)),
        dense(8),
        dense(12),
        None,
        True,
        RELU,
    ),
    Layer(
        "in 3-D, uneven, in groups",
        conv_problem(
            2,
            10,
            6,
            window(
                (5, 4, 6),
                (2, 1, 3),
                strides=(2, 1, 3),
                dilations=(2, 1, 2),
                pads=(1, 0, 2, 0, 1, 1),
            ),
            2,
        ),
        within(10),
        odd(6),
        dense(6),
    ),
    Layer(
        "with a NaN",
        conv_problem(2, 8, 12, window((3, 4, 5), (1, 3, 3), pads=(0, 1, 1, 0, 1, 1))),
        dense(8),
        dense(12),
        nan=True,
    ),
)

GEMM_LAYERS = (
    Layer("as in ResNet", conv_problem(1, 40, 68, _1x1), dense(40), dense(68), None, True, RELU),
    Layer(
        "with a shortcut, as in ResNet",
        conv_problem(3, 32, 36, _1x1),
        dense(32),
        dense(36),
        dense(36),
        True,
        RELU,
        in_place=True,
    ),
    Layer("as in SqueezeNet, into a slice", conv_problem(2, 16, 24, _1x1), dense(16), within(24)),
    Layer("of few pixels", conv_problem(1, 132, 20, window((1, 2), (1, 1))), dense(132), dense(20)),
    *(
        Layer(f"{c} channels to {k}", conv_problem(n, c, k, _1x1), x(c), y(k), y(k))
        for n, (c, k, x, y) in enumerate(
            (
                (1, 33, odd, dense),
                (3, 5, filled, within),
                (7, 4, within, filled),
                (37, 3, odd, odd),
            ),
            start=1,
        )
    ),
    Layer("in 3-D", conv_problem(2, 12, 8, window((2, 3, 3), (1, 1, 1))), dense(12), dense(8)),
    Layer("with a NaN", conv_problem(2, 13, 8, _1x1), filled(13), dense(8), nan=True),
)

_LAYER_NORM = Prologue(1e-3)  # so large that a wrong one is noticed
_BATCH_NORM = Prologue(activation=RELU)


def _after(
    prologue: Prologue, n: int, c: int, k: int, size: tuple[int, ...] = (5, 9)
) -> ConvProblem:
    one = (1,) * len(size)
    return replace(conv_problem(n, c, k, window(size, one)), prologue=prologue)


PROLOGUE_LAYERS = (
    Layer(
        "as in ConvNeXt",
        _after(_LAYER_NORM, 1, 40, 68),
        dense(40),
        dense(68),
        activation=Activation(ActivationKind.GELU),
        mean=5.0,
    ),
    Layer(
        "as in DenseNet, of a slice",
        _after(_BATCH_NORM, 2, 24, 36),
        within(24),
        dense(36),
        activation=RELU,
    ),
    Layer(
        "normalised, of many channels",
        _after(_LAYER_NORM, 1, 260, 20, (1, 2)),
        dense(260),
        dense(20),
    ),
    Layer(
        "scaled, of many channels", _after(_BATCH_NORM, 1, 132, 20, (1, 2)), dense(132), dense(20)
    ),
    *(
        Layer(f"{prologue}: {c} channels to {k}", _after(prologue, n, c, k), x(c), y(k), y(k))
        for n, prologue, c, k, x, y in (
            (1, _LAYER_NORM, 3, 5, filled, within),
            (2, _BATCH_NORM, 1, 33, odd, dense),
            (3, _LAYER_NORM, 37, 3, odd, odd),
            (4, _BATCH_NORM, 7, 4, within, filled),
        )
    ),
    Layer("normalised, in 3-D", _after(_LAYER_NORM, 2, 12, 8, (2, 3, 3)), dense(12), dense(8)),
    Layer("normalised, with a NaN", _after(_LAYER_NORM, 2, 13, 8), filled(13), dense(8), nan=True),
    Layer("scaled, with a NaN", _after(_BATCH_NORM, 2, 13, 8), filled(13), dense(8), nan=True),
)
"""1×1 convolutions whose input is normalised, or scaled and shifted, while it is loaded."""

ACTIVATED_LAYER = Layer("activated", conv_problem(1, 8, 12, _3x3), dense(8), filled(12))
UNCLAMPED_LAYER = Layer(
    "as in MobileNetV3",
    conv_problem(1, 8, 14, _3x3),
    dense(8),
    filled(14),
    filled(14),
    True,
    Activation(ActivationKind.HARD_SWISH),
)
"""A layer whose activation is in the kernels' second instantiation. It has whole and partial
vectors."""
SPLIT_LAYER = Layer(
    "split",
    conv_problem(2, 44, 70, window((5, 6), (3, 3), pads=(1, 0, 1, 0))),
    dense(44),
    filled(70),
    filled(70),
    True,
    RELU,
)

DEPTHWISE_LAYERS = (
    *(
        Layer(
            f"{c} channels",
            conv_problem(
                n, c, c, window(size, (s, s), strides=(stride, stride), pads=(s // 2,) * 4), c
            ),
            x(c),
            y(c),
            residual,
            n % 2 == 0,
            activation,
        )
        for s in (3, 5)
        for stride in (1, 2)
        for n, c, size, x, y, residual, activation in (
            (1, 8, (7, 9), dense, dense, None, CLIP),
            (2, 13, (6, 6), filled, within, dense(13), RELU),
            (3, 7, (2, 13), within, odd, filled(7), None),
            (4, 5, (5, 3), odd, dense, None, None),
        )
    ),
    Layer(
        "at the bottom of a shortcut",
        conv_problem(2, 12, 12, _3x3, 12),
        dense(12),
        dense(12),
        dense(12),
        in_place=True,
    ),
    replace(UNCLAMPED_LAYER, problem=conv_problem(1, 14, 14, _3x3, 14), x=filled(14)),
    Layer("with a NaN", conv_problem(1, 7, 7, _3x3, 7), filled(7), dense(7), nan=True),
    Layer("twice as many", conv_problem(2, 6, 12, _3x3, 6), filled(6), dense(12), dense(12)),
    Layer("thrice as many", conv_problem(1, 5, 15, _3x3, 5), odd(5), odd(15)),
    Layer(
        "wide",
        conv_problem(1, 8, 8, window((9, 8), (7, 7), pads=(3,) * 4), 8),
        dense(8),
        dense(8),
    ),
    Layer(
        "rows apart",
        conv_problem(
            1, 8, 8, window((9, 9), (3, 3), strides=(3, 2), dilations=(2, 1), pads=(2, 1, 0, 1)), 8
        ),
        dense(8),
        dense(8),
    ),
    Layer(
        "dilated",
        conv_problem(
            2,
            10,
            10,
            window((9, 8), (3, 3), strides=(1, 3), dilations=(1, 2), pads=(0, 3, 2, 1)),
            10,
        ),
        within(10),
        within(10),
    ),
    Layer(
        "uneven",
        conv_problem(1, 4, 4, window((6, 11), (2, 5), strides=(3, 1), pads=(1, 0, 0, 4)), 4),
        dense(4),
        dense(4),
    ),
)
