"""Lists cases of convolutions of bytes. Tiles rotate over the layers. The answers are exact."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.convolution.algorithms import Algorithm
from kernels.convolution.depthwise import DepthwiseConfig
from kernels.convolution.integer import requantization
from kernels.convolution.integer_depthwise import IntegerDepthwiseConv
from kernels.convolution.integer_gemm import IntegerConv, IntegerWarpgroupConv
from kernels.convolution.integer_patch import INTEGER_PATCH_TILES, IntegerPatchConv
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.tensor_gemm import TensorTile
from kernels.convolution.tensor_patch import PatchTile
from kernels.layout.operands import ConvTensors
from kernels.layout.pixels import Addend
from kernels.problems.activation import RELU, ActivationKind
from kernels.problems.precision import BYTE, Precision, Storage
from tests.support.kernels import byte_reference
from tests.support.kernels.conv_layers import (
    CLIP,
    DEPTHWISE_LAYERS,
    DIRECT_LAYERS,
    GEMM_LAYERS,
    SPLIT_LAYER,
    Layer,
    dense,
    odd,
    within,
)
from tests.support.kernels.kernel_case import Check, KernelCase, PlacedArray, placed
from tests.support.kernels.windows import conv_problem, window

INTEGER, INTEGER_PATCH = IntegerConv(), IntegerPatchConv()
INTEGER_DEPTHWISE, INTEGER_WARPGROUPS = IntegerDepthwiseConv(), IntegerWarpgroupConv()

_ZERO_POINTS = (0, 128, 77, 255)


def in_bytes(layer: Layer, row: int = 0) -> Layer:
    """Convert a layer to a layer of bytes. The number `row` determines the zero points. It also
    determines whether the sum is rounded before the residual is added.

    The scale of y is chosen so that the sums use about the whole range of bytes.
    """
    problem = replace(layer.problem, precision=Precision.INT8)
    zeros = [_ZERO_POINTS[(row + place) % len(_ZERO_POINTS)] for place in range(4)]
    length = problem.c // problem.groups * problem.window.kernel_volume
    sums = 74 * 74 * np.sqrt(length) * _SCALES["x"] * _SCALES["weight"]
    y = Storage(BYTE.dtype, float(np.float32(sums / 50)), zeros[1])
    added = Storage(BYTE.dtype, float(np.float32(sums / 60)), zeros[2])
    ahead = Storage(BYTE.dtype, float(np.float32(sums / 40)), zeros[3])
    residual = layer.residual and replace(layer.residual, stored=added)
    if residual and row % 2:
        residual = Addend(residual.channels, residual.pitch, residual.offset, added, ahead)
    if layer.in_place and residual:  # both are then stored in the same way
        residual = replace(residual, stored=y)
    clamps = layer.activation is None or layer.activation.kind in _CLAMPS
    return replace(
        layer,
        problem=problem,
        x=replace(layer.x, stored=Storage(BYTE.dtype, _SCALES["x"], zeros[0])),
        y=replace(layer.y, stored=y),
        residual=residual,
        activation=layer.activation if clamps else RELU,
    )


_SCALES = {"x": float(np.float32(0.0213)), "weight": 0.0037}
_CLAMPS = (ActivationKind.RELU, ActivationKind.CLIP)


def _algorithm_of(config: object) -> Algorithm[Any]:
    """Return the algorithm that has this configuration."""
    if isinstance(config, DepthwiseConfig):
        return INTEGER_DEPTHWISE
    tile = config.tile if isinstance(config, TileConfig) else None
    if not isinstance(tile, TensorTile):
        return INTEGER_PATCH
    return INTEGER_WARPGROUPS if tile in tiles_of(INTEGER_WARPGROUPS) else INTEGER


Shape = tuple[int, ...]
Draw = Callable[[np.random.Generator, Shape, Shape], tuple[NDArray[np.uint8], NDArray[np.int32]]]


def _any_bytes(
    rng: np.random.Generator, x: Shape, filters: Shape
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    return _bytes(rng, x), rng.integers(-128, 128, filters).astype(np.int32)


def _cancelling_bytes(
    rng: np.random.Generator, x: Shape, filters: Shape
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Draw pixels that nearly all equal the zero point, and weights of one sign."""
    strays = rng.integers(-2, 3, x) * (rng.random(x) < _STRAYS)
    return (_LARGE_ZERO + strays).astype(np.uint8), rng.integers(100, 128, filters).astype(np.int32)


def integer_case(
    layer: Layer,
    config: TileConfig[TensorTile] | TileConfig[PatchTile] | DepthwiseConfig,
    seed: int = 0,
    draw: Draw = _any_bytes,
) -> KernelCase:
    """Return a case of a layer of bytes with one configuration, which determines the algorithm."""
    algorithm = _algorithm_of(config)
    problem = layer.problem
    residual = layer.residual
    ahead = residual.ahead if isinstance(residual, Addend) else None
    launches = algorithm.launches(
        problem, config, ConvTensors(layer.x, layer.y, residual, layer.bias, layer.activation)
    )
    workspace = algorithm.workspace(problem, config)

    def check() -> Check:
        rng = np.random.default_rng(seed)
        x_layout = layer.x.strided(problem.n, problem.window.input)
        y_layout = layer.y.strided(problem.n, problem.window.output)
        x, numbers = draw(rng, x_layout.shape, problem.filter_shape)
        scale = (rng.uniform(0.3, 1.7, problem.k) * _SCALES["weight"]).astype(np.float32)
        bias = rng.integers(-20000, 20000, problem.k) if layer.bias else None
        added = _bytes(rng, y_layout.shape) if residual else None
        offset, step = requantization(numbers, scale, bias, layer.x.stored, ahead or layer.y.stored)
        inputs = {
            "x": placed(x, x_layout),
            "weight": PlacedArray(algorithm.prepare_filter(numbers, problem, config)),
            "offset": PlacedArray(offset),
            "scale": PlacedArray(step),
            "counters": PlacedArray(
                np.zeros(algorithm.counter_bytes(problem, config) // 4, np.uint32)
            ),
            **{name: PlacedArray(_garbage(nbytes)) for name, nbytes in workspace.items()},
        }
        if residual is not None and added is not None:
            residual_layout = residual.strided(problem.n, problem.window.output)
            inputs["residual"] = placed(added, residual_layout)
        named = {name for launch in launches for name in launch.operands}
        expected = byte_reference.quantized_conv(
            x,
            numbers,
            scale,
            problem,
            (layer.x.stored, layer.y.stored),
            bias,
            None if residual is None or added is None else (added, residual.stored),
            ahead,
            layer.activation,
        )
        return Check(
            {name: inputs[name] for name in inputs if name in named},
            y_layout,
            expected.astype(np.float64),
            0.0,
            "residual" if layer.in_place else None,
            scratch=tuple(workspace),
        )

    return KernelCase(f"{algorithm.name} {config} {layer.name}: {problem}", launches, check)


def _bytes(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    return rng.integers(0, 256, shape).astype(np.uint8)


def _garbage(nbytes: int) -> NDArray[np.int32]:
    return np.full(nbytes // 4, 0x7FC0DEAD, np.int32)


def tiles_of(algorithm: IntegerConv) -> tuple[TensorTile, ...]:
    """Return the tiles of an algorithm. No other algorithm has these tiles."""
    return algorithm.blocks_of(in_bytes(SPLIT_LAYER).problem)


def _in_turn(algorithm: IntegerConv) -> Iterator[KernelCase]:
    """Yield each layer with one tile and one split. All tiles and 5 splits are used in rotation."""
    tiles = tiles_of(algorithm)
    for row, layer in enumerate((*DIRECT_LAYERS, *GEMM_LAYERS)):
        config = TileConfig(tiles[row % len(tiles)], 1 + row % 5)
        yield integer_case(in_bytes(layer, row), config, row)


def _split(algorithm: IntegerConv) -> Iterator[KernelCase]:
    """Yield a layer with each tile, and then with further splits of the last tile. Integer sums are
    exact in any order, so splits do not change the answer."""
    layer, tiles = in_bytes(SPLIT_LAYER), tiles_of(algorithm)
    for split, tile in enumerate(tiles, start=1):
        yield integer_case(layer, TileConfig(tile, split))
    for split in range(len(tiles) + 1, 10):
        yield integer_case(layer, TileConfig(tile, split))


def _patches() -> Iterator[KernelCase]:
    """Yield each layer twice, with tiles and splits in rotation."""
    layers = (each for each in (*DIRECT_LAYERS, SPLIT_LAYER, _OF_SLICES, _OF_IMAGES))
    able = [each for each in layers if INTEGER_PATCH.supports(in_bytes(each).problem) is None]
    for row, layer in enumerate(able):
        made = in_bytes(layer, row)
        for number in (2 * row, 2 * row + 1):
            configs = INTEGER_PATCH.configs(made.problem)
            tile = INTEGER_PATCH_TILES[number % len(INTEGER_PATCH_TILES)]
            of_tile = [config for config in configs if config.tile == tile] or list(configs)
            yield integer_case(made, of_tile[number % len(of_tile)], number)


def _depthwise() -> Iterator[KernelCase]:
    """Yield each layer with each of its configurations."""
    for row, layer in enumerate(DEPTHWISE_LAYERS):
        made = in_bytes(layer, row)
        for config in INTEGER_DEPTHWISE.configs(made.problem):
            yield integer_case(made, config, row)


_OF_SLICES = Layer(
    "of several slices, the last one smaller",
    conv_problem(2, 270, 72, window((9, 11), (3, 3), strides=(2, 2), pads=(1,) * 4)),
    within(270),
    dense(72),
    dense(72),
    True,
    RELU,
)
_OF_IMAGES = Layer(
    "of more images than a tile has, off vectors",
    conv_problem(7, 20, 12, window((5, 7), (5, 5), pads=(2,) * 4)),
    odd(20),
    dense(12),
)

_LARGE_ZERO, _STRAYS = 228, 0.01

_CANCELLING = Layer(
    "of sums beyond 2^24 that offsets cancel",
    conv_problem(1, 80, 24, window((4, 5), (3, 3), pads=(1,) * 4)),
    dense(80),
    dense(24),
    bias=False,
)


def _cancelling() -> Iterator[KernelCase]:
    """Yield a layer whose sums and offsets are both too large for floats. They largely cancel, so
    the answer is exact only if they are added as integers.

    One unit of the sum corresponds to about one unit of y.
    """
    unit = float(np.float32(_SCALES["x"] * _SCALES["weight"]))
    made = in_bytes(_CANCELLING)
    made = replace(
        made,
        x=replace(made.x, stored=Storage(BYTE.dtype, _SCALES["x"], _LARGE_ZERO)),
        y=replace(made.y, stored=Storage(BYTE.dtype, unit, 128)),
    )
    for algorithm in (INTEGER, INTEGER_WARPGROUPS):
        for split in (1, 2):
            config = TileConfig(tiles_of(algorithm)[-1], split)
            yield integer_case(made, config, draw=_cancelling_bytes)
    yield integer_case(made, INTEGER_PATCH.configs(made.problem)[0], draw=_cancelling_bytes)


INTEGER_CASES: tuple[KernelCase, ...] = (
    *_in_turn(INTEGER),
    *_split(INTEGER),
    *_in_turn(INTEGER_WARPGROUPS),
    *_split(INTEGER_WARPGROUPS),
    *_patches(),
    *_depthwise(),
    *_cancelling(),
    integer_case(replace(in_bytes(SPLIT_LAYER), activation=CLIP), TileConfig(tiles_of(INTEGER)[3])),
)
