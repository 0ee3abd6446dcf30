"""Lists cases of implicit_gemm.cu and depthwise.cu. Every layer has a case for every tile."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kernels.convolution.algorithms import Algorithm, ConvChoice
from kernels.convolution.depthwise import DepthwiseConv
from kernels.convolution.direct import DirectConv
from kernels.convolution.gemm import GemmConv
from kernels.convolution.implicit_gemm import TILES, Tile
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.tensor_gemm import TensorConv, to_tf32
from kernels.convolution.tensor_winograd import TensorWinogradConv
from kernels.convolution.winograd import WinogradConv
from kernels.convolution.winograd_nonfused import NonfusedWinogradConv
from kernels.layout.operands import ConvTensors
from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.problems.prologue import Prologue
from kernels.winograd.matrices import winograd_matrices
from kernels.winograd.stages import winograd_roundings
from tests.support.cases.elementwise import activation_error
from tests.support.kernels import reference
from tests.support.kernels.arrays import normal
from tests.support.kernels.conv_layers import (
    ACTIVATED_LAYER,
    DEPTHWISE_LAYERS,
    DIRECT_LAYERS,
    GEMM_LAYERS,
    PROLOGUE_LAYERS,
    SPLIT_LAYER,
    Layer,
)
from tests.support.kernels.kernel_case import POISON, Check, KernelCase, PlacedArray, placed
from tests.support.kernels.winograd_terms import winograd_terms
from tests.support.tolerance import EPS32, Array

DIRECT, GEMM, DEPTHWISE = DirectConv(), GemmConv(), DepthwiseConv()


def conv_case(layer: Layer, choice: ConvChoice) -> KernelCase:
    """Return the case of a layer with one algorithm and configuration."""
    problem, (algorithm, config, _) = layer.problem, choice
    launches = algorithm.launches(
        problem,
        config,
        ConvTensors(
            layer.x, layer.y, residual=layer.residual, bias=layer.bias, activation=layer.activation
        ),
    )

    workspace = algorithm.workspace(problem, config)

    def check() -> Check:
        x_layout = layer.x.strided(problem.n, problem.window.input)
        y_layout = layer.y.strided(problem.n, problem.window.output)
        stored = problem.precision.stored
        x = normal(x_layout.shape, 1, stored) + stored.dtype.type(layer.mean)
        weight = normal(problem.filter_shape, 2, stored)
        if layer.nan:
            x[(0, 0, *(size // 2 for size in problem.window.input))] = np.nan
        scale, shift = (normal((problem.c,), seed) for seed in (5, 6))
        bias = normal((problem.k,), 3) * np.float32(layer.bias)
        projection = problem.projection
        added = projection.input if projection else problem.window.output
        residual_layout = (layer.residual or layer.y).strided(problem.n, added)
        residual = normal(residual_layout.shape, 4, stored)
        residual *= stored.dtype.type(layer.residual is not None)
        inputs = {
            "x": placed(x, x_layout),
            "weight": PlacedArray(algorithm.prepare_filter(weight, problem, config)),
            "bias": PlacedArray(bias),
            "residual": placed(residual, residual_layout),
            "scale": PlacedArray(np.pad(scale, (0, -problem.c % 4))),
            "shift": PlacedArray(np.pad(shift, (0, -problem.c % 4))),
            "counters": _memory(algorithm.counter_bytes(problem, config), np.uint32(0)),
            **{name: _memory(nbytes, POISON) for name, nbytes in workspace.items()},
        }
        named = {name for launch in launches for name in launch.operands}
        factors = (x, weight, residual) if projection else (x, weight)
        tensor = isinstance(algorithm, TensorConv)
        rounded = [multiplied(each, problem.precision) if tensor else each for each in factors]
        wide, *others = map(exact, (*rounded[:2], bias, *(rounded[2:] or [residual])))
        wide, loaded_error = _after_prologue(problem.prologue, wide, exact(scale), exact(shift))
        sums = _conv(problem, wide, *others)
        error = _rounding_error(choice, problem, *map(size, (wide, *others)))
        if problem.prologue:
            error += reference.conv(loaded_error, size(others[0]), problem)
        return Check(
            {name: inputs[name] for name in inputs if name in named},
            y_layout,
            reference.activate(sums, layer.activation),
            activated_bound(sums, error, layer.activation),
            "residual" if layer.in_place else None,
            scratch=tuple(workspace),
        )

    return KernelCase(f"{choice} {layer.name}: {problem}", launches, check)


def _after_prologue(
    prologue: Prologue | None, x: Array, scale: Array, shift: Array
) -> tuple[Array, Array]:
    """Apply the prologue. Return its result, which is the convolution's input, and the allowed
    error of this result.

    The mean has one rounding per term of its sum. The differences from the mean have this error
    too, and so has the divisor.
    """
    if prologue is None:
        return x, np.zeros_like(x)
    plain = reference.prologue(x, scale, shift, replace(prologue, activation=None))
    s, t = (np.abs(each).reshape(-1, *[1] * (x.ndim - 2)) for each in (scale, shift))
    if prologue.epsilon is None:
        error = 2 * EPS32 * (np.abs(x) * s + t)
    else:
        by = 1 / np.sqrt(x.var(axis=1, keepdims=True) + prologue.epsilon)
        normal = reference.prologue(
            x, np.ones_like(scale), 0 * shift, replace(prologue, activation=None)
        )
        off = by * np.nanmax(np.abs(x)) * (1 + np.abs(normal))
        error = (x.shape[1] + 8) * EPS32 * ((np.abs(normal) + 2 * off) * s + t)
    return (
        reference.activate(plain, prologue.activation),
        activated_bound(plain, error, prologue.activation),
    )


def _conv(problem: ConvProblem, x: Array, weight: Array, bias: Array, residual: Array) -> Array:
    return reference.conv(x, weight, problem, bias, residual)


def _rounding_error(
    choice: ConvChoice,
    problem: ConvProblem,
    x: Array,
    weight: Array,
    bias: Array,
    residual: Array,
) -> Array:
    """Return the allowed error of the sums. It follows from the sizes of their terms."""
    algorithm, config = choice.algorithm, choice.config
    if isinstance(algorithm, WinogradConv | TensorWinogradConv | NonfusedWinogradConv):
        matrices = winograd_matrices(algorithm.m, algorithm.r, config.points)
        terms = winograd_terms(x, weight, problem, matrices)
        terms += residual + bias.reshape(-1, *[1] * len(problem.window.input))
        precision, halves = problem.precision, 3.01
        if isinstance(algorithm, NonfusedWinogradConv):
            precision = algorithm.arithmetic(problem)
        elif isinstance(algorithm, TensorWinogradConv):
            halves = 2.01
        # U and V are rounded to 11 bits, and halves of products in memory too.
        rounded = {
            Precision.FP32: 0.0,
            Precision.FP16: halves * 2.0**-11,
            Precision.TF32: 2.01 * 2.0**-11,
            Precision.TF32X3: SPLIT,
        }[precision]
        # Tensor cores truncate sums, which errs by up to twice as much as rounding them.
        unit = EPS32 / 2 if precision is Precision.FP32 else EPS32
        return ((winograd_roundings(problem, matrices) + 4) * unit + rounded) * terms
    length = problem.c // problem.groups * problem.window.kernel_volume + problem.projected
    split = SPLIT / EPS32 if problem.precision is Precision.TF32X3 else 0
    return (length + 4 + split) * EPS32 * _conv(problem, x, weight, bias, residual)


SPLIT = 3 * 2.0**-22
"""The relative error of a product in 3×TF32. Each factor is split into big + small, each rounded to
11 bits, and so lacks 2^-22. The product of the small parts is omitted."""


def multiplied(factor: Array, precision: Precision) -> Array:
    """Return the numbers that are multiplied: the factor itself, or the factor rounded to TF32."""
    return to_tf32(factor) if precision is Precision.TF32 else factor


def _memory(nbytes: int, value: np.uint32) -> PlacedArray:
    return PlacedArray(np.full(nbytes // 4, value))


def exact(numbers: Array) -> Array:
    """Convert numbers to float64, the type in which the reference computes."""
    return numbers.astype(np.float64)


def size(numbers: Array) -> Array:
    """Return absolute values in float64. They bound the rounding error of a sum."""
    return np.abs(exact(numbers))


def activated_bound(sum_: Array, error: Array, activation: Activation | None) -> Array:
    """Return a bound on the error of activation(sum). The error of the sum is at most `error`.

    The slope of an activation is at most 1.5 or its parameter a, whichever is larger.
    """
    steepest = max(1.5, abs(activation.a)) if activation else 1.0
    y = reference.activate(sum_, activation)
    return steepest * error + activation_error(sum_, y, activation)


def _by_every_tile(
    algorithm: Algorithm[TileConfig[Tile]], layers: tuple[Layer, ...]
) -> Iterator[KernelCase]:
    """Yield each layer with each tile. The sums are split into 1, 2, ... 8 parts in rotation."""
    for row, layer in enumerate(layers):
        for column, tile in enumerate(TILES):
            split = 1 + (row + column) % len(_SPLITS)
            yield conv_case(layer, ConvChoice(algorithm, TileConfig(tile, split)))


_SPLITS = range(1, 9)
_TILE = Tile(bm=32, bn=32, bk=32, tm=4, tn=4, stages=3)

CONV_CASES: tuple[KernelCase, ...] = (
    *_by_every_tile(DIRECT, DIRECT_LAYERS),
    *_by_every_tile(GEMM, GEMM_LAYERS),
    *_by_every_tile(GEMM, PROLOGUE_LAYERS),
    *(
        conv_case(SPLIT_LAYER, ConvChoice(DIRECT, TileConfig(tile, split)))
        for tile in TILES
        for split in _SPLITS
    ),
    *(
        conv_case(
            replace(ACTIVATED_LAYER, name=str(activation), activation=activation),
            ConvChoice(DIRECT, TileConfig(_TILE)),
        )
        for activation in (
            RELU,
            Activation(ActivationKind.CLIP, -0.5, 2.0),
            Activation(ActivationKind.CLIP, 2.0, -0.5),  # bounds that cross: the upper one holds
            Activation(ActivationKind.LEAKY_RELU, 0.1),
            Activation(ActivationKind.HARD_SIGMOID, 0.2, 0.5),
            Activation(ActivationKind.ELU, 1.3, 1.05),
            *(
                Activation(kind)
                for kind in ActivationKind
                if kind
                not in (
                    ActivationKind.RELU,
                    ActivationKind.CLIP,
                    ActivationKind.LEAKY_RELU,
                    ActivationKind.HARD_SIGMOID,
                    ActivationKind.ELU,
                    ActivationKind.SQRT,  # of sums near 0 it is as steep as one likes
                )
            ),
        )
    ),
    *(
        conv_case(layer, ConvChoice(DEPTHWISE, config))
        for layer in DEPTHWISE_LAYERS
        for config in DEPTHWISE.configs(layer.problem)
    ),
)
