"""Implements non-fused Winograd convolution, whose three stages are separate launches.

    x ── data transform ─ "data" ── batched products ─ "products" ── inverse transform ── y
                          tiles × alpha² × C           tiles × alpha² × K

The products at a tile's alpha² positions are computed as a 1×1 convolution with alpha² groups.
implicit_gemm.py computes this convolution in fp32, and tensor_gemm.py at other precisions. The data
between the stages is larger than x and y. Therefore a large layer is divided into chunks of tiles,
and the three stages run for one chunk after another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil, prod
from typing import Any, ClassVar

from kernels.convolution.implicit_gemm import FloatGemm
from kernels.convolution.rounding import FACTORS, winograd_rounding
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.tensor_gemm import TensorConv, to_tf32
from kernels.convolution.winograd import WinogradConv
from kernels.convolution.work import NO_INNER_LOOPS, Work
from kernels.device.device import Instantiation
from kernels.device.launch import Launch, instantiate, int32, launch, struct, window_struct
from kernels.layout.operands import (
    ConvTensors,
    Filter,
    check_filter,
    check_operands,
    padded,
    vectors_in,
)
from kernels.layout.pixels import Pixels
from kernels.layout.strided import VECTOR
from kernels.operations.epilogue import epilogue_arguments, finish
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import FLOAT, Precision
from kernels.problems.refusals import not_floating
from kernels.problems.window import Window
from kernels.winograd.filter import filter_rows, filter_transform
from kernels.winograd.matrices import Points, winograd_matrices
from kernels.winograd.stages import winograd_growth

THREADS = 64
"""The number of threads per block of the transforms. The number is low, so that small layers have
many blocks."""

MAX_BYTES = 128 << 20
"""The largest size of "data" and "products" together, in bytes. A chunk of at most `_STEP` tiles
may exceed this size."""

CACHED_BYTES = 32 << 20
"""The largest size of "data" and "products" together, in bytes, that stays in a second-level cache
of at least 40 MB. Chunks of this size need more launches."""

_STEP = 64
"""A chunk is a multiple of this number of tiles, so that few tiles of the products are partial."""

LARGEST_GROWTH = 2.0
"""Data and filters may be rounded to 11 bits if rounding errors grow at most by this factor from
the transforms to y. The factor is 1.7 for F(2x2,3x3), 2.2 for F(2x2x2,3x3x3) and 6.9 for F(4x4,3x3)
(`winograd_growth`)."""

_SPLITS = (1, 2, 4, 8)
_ENOUGH_BLOCKS = 512
"""A number of blocks that is enough for any GPU. Launches with more blocks do not split sums."""


@dataclass(frozen=True, slots=True)
class NonfusedConfig:
    """Sets the interpolation points of F(m, r), the configuration of the batched matrix products,
    and the number of tiles in a chunk."""

    points: Points
    gemm: TileConfig[Any]
    chunk: int

    def __str__(self) -> str:
        return f"{self.points.name.lower()} points, {self.gemm}, {self.chunk} tiles at a time"


@dataclass(frozen=True, slots=True)
class _BatchedProducts(FloatGemm):
    """Multiplies many pairs of matrices in one launch, as a grouped 1×1 convolution."""

    POINTWISE: ClassVar[bool] = True


def _product(products: ConvProblem) -> TensorConv | _BatchedProducts:
    """Return the algorithm that computes the batched matrix products. Except in strict fp32, it
    uses tensor cores."""
    return _BatchedProducts() if products.precision is Precision.FP32 else TensorConv()


@dataclass(frozen=True, slots=True)
class NonfusedWinogradConv:
    """Computes F(m, r) along each of `axes` axes, with three launches for each chunk of tiles.

    Sources: Lavin & Gray 2015, algorithm 1, with global memory between its stages; for 3-D Lan et
    al. 2017, section 3.2. A NaN or an infinity in x turns all outputs of the tiles that read it
    into NaN. The data between the stages is float32. Except in fp32, tensor cores multiply this
    data at the precision that `arithmetic` returns.
    """

    m: int
    r: int
    axes: int

    @property
    def name(self) -> str:
        """Return the algorithm's name, such as "winograd F(2x2,3x3) non-fused"."""
        return f"{self._winograd.name} non-fused"

    def supports(self, problem: ConvProblem) -> str | None:
        """Return why the algorithm cannot compute this convolution, or None if it can. The
        algorithm supports a kernel of size r along every axis, stride 1, dilation 1 and one
        group."""
        return not_floating(problem) or self._winograd.misfit(problem)

    def arithmetic(self, problem: ConvProblem) -> Precision:
        """Return the precision of the batched matrix products.

        Transformed data and products may exceed 65504, the largest float16, even if y does not.
        Therefore fp16 problems use TF32, which has the same 11 bits of precision. For some F(m, r),
        rounding the data and the filter to 11 bits would more than double the error of y. Then
        3×TF32 is used, which is nearly as exact as float32. Problems in fp32 use fp32.
        """
        if problem.precision is Precision.FP32:
            return Precision.FP32
        growth = _growth(self.m, self.r, self._winograd.points[0]) ** self.axes
        if growth > LARGEST_GROWTH:
            return Precision.TF32X3
        return Precision.TF32 if problem.precision is Precision.FP16 else problem.precision

    def rounding(self, problem: ConvProblem, config: NonfusedConfig) -> float:
        """Return the output's estimated relative rounding error, in units of float32's eps / 2.
        The factors of the matrix products have the precision that `arithmetic` returns. All other
        numbers are float32."""
        factors = FACTORS[self.arithmetic(problem)]
        return winograd_rounding(problem, self.m, self.r, config.points, factors)

    def multiplications(self, problem: ConvProblem) -> int:
        """Return the number of multiplications, N·⌈P/m⌉·⌈Q/m⌉·C·K·alpha² (Lavin & Gray, equation
        19). The transforms are not counted."""
        return self._winograd.multiplications(problem)

    def configs(self, problem: ConvProblem) -> tuple[NonfusedConfig, ...]:
        """Return configurations with two chunk sizes. The larger size is the largest that MAX_BYTES
        allows. With the smaller size, the data of a chunk stays in the second-level cache.

        For F(4, 3), only the more accurate set of interpolation points is used. The other set would
        save almost no time. At C = 512 without split sums, it would give over 20 times the error of
        direct convolution.
        """
        points = self._winograd.points[0]
        total = problem.n * self._winograd.image_tiles(problem)
        chunks = dict.fromkeys(
            self._chunk(problem, total, nbytes) for nbytes in (MAX_BYTES, CACHED_BYTES)
        )
        return tuple(
            NonfusedConfig(points, gemm, chunk)
            for chunk in chunks
            for gemm in self._gemms(self._products(problem, chunk))
        )

    def work(self, problem: ConvProblem, config: NonfusedConfig) -> tuple[Work, ...]:
        """Return a description of each launch for the cost model. The memory accesses of the
        transforms are coalesced, and each of their threads starts all its loads at once."""
        positions, outputs = self._winograd.positions, self.m**self.axes
        stored, between = problem.precision.stored.itemsize, FLOAT.itemsize
        works: list[Work] = []
        for _, count in self._chunks(problem, config):
            data = Work(
                kernel=self._instantiate("winograd_data", problem, config),
                blocks=ceil(count * self._channels(problem) / THREADS),
                threads=THREADS,
                shared_bytes=0,
                bytes=THREADS * (stored + between) * positions,
                trips=NO_INNER_LOOPS,
                products=0,
                vectors=0,
                rounds=0,
                tail_bytes=0,
                weight_bytes=0,
            )
            inverse = Work(
                kernel=self._instantiate("winograd_inverse", problem, config, finish=finish(None)),
                blocks=ceil(count * padded(problem.k) / VECTOR / THREADS),
                threads=THREADS,
                shared_bytes=16 * THREADS * outputs,
                bytes=THREADS * VECTOR * (between * positions + stored * outputs),
                trips=NO_INNER_LOOPS,
                products=0,
                vectors=outputs,
                rounds=1,
                tail_bytes=0,
                weight_bytes=0,
            )
            products = self._products(problem, count)
            works += (data, *_product(products).work(products, config.gemm), inverse)
        return tuple(works)

    def workspace(self, problem: ConvProblem, config: NonfusedConfig) -> Mapping[str, int]:
        """Return the sizes in bytes of the buffers "data" and "products" for one chunk. If the
        matrix products split their sums, also return the size of the partial sums."""
        products = self._products(problem, config.chunk)
        pixels = FLOAT.itemsize * config.chunk
        return {
            "data": pixels * products.c,
            "products": pixels * products.k,
            **_product(products).workspace(products, config.gemm),
        }

    def counter_bytes(self, problem: ConvProblem, config: NonfusedConfig) -> int:
        """Return the size in bytes of the counters. Only matrix products with split sums need
        them."""
        products = self._products(problem, config.chunk)
        return _product(products).counter_bytes(products, config.gemm)

    def filter_form(self, problem: ConvProblem, config: NonfusedConfig) -> str:
        """Return the name of the filter's layout. It names F(m, r), the interpolation points and,
        except in fp32, the precision. In fp32, the fused algorithm uses the same layout."""
        form = f"F({self.m},{self.r}) {config.points.name}"
        precision = self.arithmetic(problem)
        return form if precision is Precision.FP32 else f"{form} {precision.value}"

    def prepare_filter(
        self, weight: Filter, problem: ConvProblem, config: NonfusedConfig
    ) -> Filter:
        """Return the transformed filter U = G g Gᵀ. The transform converts K×C×R×S to alpha² × C ×
        K, with channels padded with zeros.

        For tensor cores U is (alpha² K) × C, the layout that TensorConv reads.
        """
        check_filter(weight, problem)
        precision = self.arithmetic(problem)
        if precision is Precision.FP32:
            return filter_transform(weight, self.m, config.points)
        rows = filter_rows(weight, self.m, config.points, FLOAT)
        return to_tf32(rows) if precision is Precision.TF32 else rows

    def launches(
        self, problem: ConvProblem, config: NonfusedConfig, tensors: ConvTensors
    ) -> tuple[Launch, ...]:
        """Return three launches for each chunk of tiles: the data transform, the matrix products
        and the inverse transform.

        The inverse transform takes the bias and the residual if given. The matrix products take
        workspace and counters if their sums are split. Raises ValueError if a tensor does not match
        the problem, or if an index exceeds 32 bits.
        """
        x, y, residual, _, activation = tensors
        check_operands(problem, tensors)
        self._check_reach(problem, config, x, y, residual or y)
        window = window_struct(problem.window)
        launches: list[Launch] = []
        for first, count in self._chunks(problem, config):
            chunk = struct(
                "winograd_nonfused.cu",
                "Tiles",
                first=first,
                count=count,
                along=self._winograd.tiles_along(problem.window),
            )
            products = self._products(problem, count)
            data = launch(
                self._instantiate("winograd_data", problem, config),
                (ceil(count * self._channels(problem) / THREADS), 1, 1),
                (THREADS, 1, 1),
                x="x",
                data="data",
                tiles=chunk,
                channels=problem.c,
                padded=self._channels(problem),
                x_pitch=x.pitch,
                window=window,
            )
            (gemm,) = _product(products).launches(
                products,
                config.gemm,
                ConvTensors(Pixels(products.c, products.c), Pixels(products.k, products.k)),
            )
            inverse = launch(
                self._instantiate("winograd_inverse", problem, config, finish=finish(activation)),
                (ceil(count * padded(problem.k) / VECTOR / THREADS), 1, 1),
                (THREADS, 1, 1),
                products="products",
                **tensors.given,
                y="y",
                tiles=chunk,
                filters=problem.k,
                vectors=padded(problem.k) // VECTOR,
                residual_pitch=residual.pitch if residual else 0,
                y_pitch=y.pitch,
                y_vectors=vectors_in(y, residual or y),
                window=window,
                **epilogue_arguments(activation),
            )
            launches += (data, gemm.renamed({"x": "data", "y": "products"}), inverse)
        return tuple(launches)

    @property
    def _winograd(self) -> WinogradConv:
        """Return the fused algorithm for the same F(m, r). Both algorithms support the same
        windows, and use the same tiles and interpolation points."""
        return WinogradConv(self.m, self.r, self.axes)

    def _chunk(self, problem: ConvProblem, total: int, nbytes: int) -> int:
        """Divide `total` tiles into chunks of about equal size, and return the number of tiles per
        chunk. The buffers of a chunk use at most `nbytes`, but a chunk never has fewer than `_STEP`
        tiles if `total` is larger."""
        products = self._products(problem, _STEP)
        limit = max(1, nbytes // (FLOAT.itemsize * _STEP * (products.c + products.k))) * _STEP
        if total <= limit:
            return total
        return ceil(total / ceil(total / limit) / _STEP) * _STEP

    def _chunks(self, problem: ConvProblem, config: NonfusedConfig) -> list[tuple[int, int]]:
        """Return the number of the first tile of each chunk, and the chunk's number of tiles."""
        total = problem.n * self._winograd.image_tiles(problem)
        return [
            (first, min(config.chunk, total - first)) for first in range(0, total, config.chunk)
        ]

    def _products(self, problem: ConvProblem, count: int) -> ConvProblem:
        """Return the problem that computes the products of `count` tiles. This problem is a grouped
        1×1 convolution on a row of `count` pixels."""
        positions, one, none = self._winograd.positions, (1, 1), (0, 0)
        return ConvProblem(
            n=1,
            c=positions * self._channels(problem),
            k=positions * padded(problem.k),
            window=Window((1, count), one, one, one, none, none, (1, count)),
            groups=positions,
            precision=self.arithmetic(problem),
        )

    def _gemms(self, products: ConvProblem) -> tuple[TileConfig[Any], ...]:
        """Return the configurations of the matrix products that are likely to be fast: most of
        their tiles are full, and they split sums only if there are few blocks."""
        count = products.window.output_volume

        def pays(config: TileConfig[Any]) -> bool:
            blocks = config.split * _product(products).tiles(products, config)
            split = config.split in _SPLITS and blocks <= _ENOUGH_BLOCKS
            return config.tile.bm < max(2 * count, 17) and (config.split == 1 or split)

        return tuple(filter(pays, _product(products).configs(products)))

    def _channels(self, problem: ConvProblem) -> int:
        """Return how many channels the transformed data have, padded to 16 bytes."""
        return padded(problem.c)

    def _instantiate(
        self, kernel: str, problem: ConvProblem, config: NonfusedConfig, **further: str
    ) -> Instantiation:
        return instantiate(
            "winograd_nonfused.cu",
            kernel,
            t=problem.precision.stored.element,
            m=self.m,
            r=self.r,
            points=f"Points::{config.points.name}",
            axes=self.axes,
            threads=THREADS,
            **further,
        )

    def _check_reach(
        self, problem: ConvProblem, config: NonfusedConfig, x: Pixels, *written: Pixels
    ) -> None:
        """Raise ValueError if an index that the transforms compute exceeds 32 bits."""
        window = problem.window
        int32(problem.n * prod(window.input) * x.pitch)
        int32(problem.n * window.output_volume * max(tensor.pitch for tensor in written))
        # Tiles begin before an image's first position along an axis, and end beyond its last.
        margins = zip(window.input, window.output, window.pads_begin, strict=True)
        int32(problem.n * prod(h + p + pad + self._winograd.alpha for h, p, pad in margins))
        # The last block has threads without a tile.
        channels = max(self._channels(problem), padded(problem.k))
        int32((config.chunk * channels + THREADS) * self._winograd.positions)


@cache
def _growth(m: int, r: int, points: Points) -> float:
    """Return the factor by which F(m, r) enlarges rounding errors along one axis."""
    return winograd_growth(winograd_matrices(m, r, points))
