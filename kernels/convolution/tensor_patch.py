"""Launches of kernels/src/tensor_patch.cu: direct convolution on tensor cores, in fp16."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from math import ceil, prod

import numpy as np

from kernels.convolution.implicit_gemm import MAX_SPLIT, MAX_WORKSPACE_BYTES, TileConfig
from kernels.convolution.work import Work
from kernels.device.device import Instantiation
from kernels.device.launch import Launch, instantiate, int32, launch, struct, window_struct
from kernels.layout.operands import Filter, check_filter, check_operands, padded, vectors_in
from kernels.layout.pixels import Pixels
from kernels.layout.strided import VECTOR
from kernels.operations.epilogue import epilogue_arguments, finish
from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import HALF
from kernels.problems.refusals import after_prologue, grouped, not_half, projecting, wrong_axes
from kernels.problems.window import Window, by_axis

_HALVES = 8
"""Of a vector of 16 bytes."""

_CHUNK = 64
"""Halves of each filter that a block multiplies at once, and of each pixel that a patch has."""

_MAX_PATCH_BYTES = 72 << 10
"""Of a block's patch, of which shared memory may hold two."""

_MAX_VECTORS = 256
"""Of all taps of a slice: so many offsets are given to a launch."""

_LEAST_TAPS = 4
"""So that a slice of many has a chunk for each stage ahead."""


@dataclass(frozen=True, slots=True)
class PatchTile:
    """The tile of a block and of a warp of `conv_tensor_patch`; its template has the same names.

    A block computes bm output pixels × bn filters, a warp wm × wn of them. Shared memory holds
    `stages` chunks of weights.
    """

    bm: int
    bn: int
    wm: int
    wn: int
    stages: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.bm // self.wm * (self.bn // self.wn) * 32

    @property
    def sums(self) -> int:
        """Floats of a block's sums in memory."""
        return self.bm * (self.bn + 8)

    def __str__(self) -> str:
        return f"{self.bm}x{self.bn}x{_CHUNK}"


PATCH_TILES = tuple(
    PatchTile(*each)
    for each in (
        (256, 64, 64, 32, 4),
        (128, 128, 64, 32, 4),
        (128, 64, 32, 32, 4),
        (128, 32, 32, 32, 6),
        (128, 16, 32, 16, 8),
        (64, 64, 32, 32, 6),
        (64, 32, 32, 16, 8),
        (64, 16, 16, 16, 8),
        (32, 64, 16, 32, 6),
        (32, 32, 16, 16, 8),
    )
)


@dataclass(frozen=True, slots=True)
class Patch:
    """What the region of a tile reads, and how it lies in shared memory.

    A region is the output pixels of a tile, at most so many: rows × columns of one image, or all
    pixels of several. A place holds a slice's channels of one pixel of the input; of images with
    few channels, those of two pixels side by side.
    """

    images: int
    rows: int
    columns: int
    pair: int  # pixels of a place
    read: tuple[int, int]  # rows and columns of pixels, of each image
    apart: tuple[int, int]  # places between what neighbouring outputs read
    phase: tuple[int, int]  # rows and columns of places, of those so far apart
    row_places: int  # from one row to the next
    image_places: int  # from one image to the next

    @property
    def region(self) -> tuple[int, int, int]:
        """Images, rows and columns of output pixels."""
        return self.images, self.rows, self.columns

    def place(self, row: int, column: int) -> int:
        """Of one that it reads of the first image; columns are counted in places."""
        (down, row_phase), (right, column_phase) = map(divmod, (row, column), self.apart)
        line = row_phase * self.phase[0] + down
        return line * self.row_places + column_phase * self.phase[1] + right

    @property
    def places(self) -> int:
        """Of all images."""
        return self.images * self.image_places


def _patch(window: Window, pair: int, images: int, rows: int, columns: int) -> Patch:
    """Of a region. The 8 neighbouring outputs of a matrix read places that differ modulo 8."""
    stride, extent = window.strides, window.extent
    high, wide = (
        (length - 1) * by + of for length, by, of in zip((rows, columns), stride, extent, strict=True)
    )
    wide = padded(wide, pair)
    apart = stride[0], stride[1] // pair
    phase = ceil(high / apart[0]), ceil(wide // pair / apart[1])
    row_places = _congruent(apart[1] * phase[1], columns)
    image_places = _congruent(apart[0] * phase[0] * row_places, rows * columns)
    return Patch(
        images, rows, columns, pair, (high, wide), apart, phase, row_places, image_places
    )


def _congruent(least: int, outputs: int) -> int:
    """At least so many places, as many as the outputs modulo 8; if those are whole matrices, any."""
    return least if outputs % 8 == 0 else least + (outputs - least) % 8


@dataclass(frozen=True, slots=True)
class Slices:
    """How a filter's weights, and a pixel's channels, are divided.

    The channels are divided in slices of whole vectors. Of each slice there are a vector for each
    tap, or pair of taps, and 8 channels, or 4 of either tap; they are filled up to whole chunks.
    """

    count: int
    tap_vectors: int
    row_taps: int  # S, or the pairs
    vectors: int  # of all taps

    @property
    def chunks(self) -> int:
        """Of a slice."""
        return ceil(self.vectors * _HALVES / _CHUNK)

    @property
    def used_vectors(self) -> int:
        """Of a place: one has zeros where chunks are not whole."""
        return self.tap_vectors + (self.vectors * _HALVES % _CHUNK != 0)

    @property
    def place_bytes(self) -> int:
        """An odd number of vectors."""
        return 16 * (self.used_vectors | 1)


def paired(problem: ConvProblem) -> bool:
    """Whether a vector has 4 channels of two pixels side by side: then strides are whole vectors."""
    window = problem.window
    few = padded(problem.c) % _HALVES != 0 and problem.c <= VECTOR
    return few and window.strides[1] % 2 == 0 and window.dilations[1] == 1


def _offsets(window: Window, patch: Patch, slices: Slices) -> list[int]:
    """Of each vector of a slice, as the kernel's table has them.

    The bytes from where a window begins to the vector, or to the zeros. An mma has two vectors, of
    which the half warps take one each; a chunk has 4 times two. The lowest bits, of both, are set
    where a pair's second pixel is not the window's.
    """

    def offset(vector: int) -> int:
        tap, of_tap = divmod(vector, slices.tap_vectors)
        if vector >= slices.vectors:
            return slices.tap_vectors * 16
        (r, s), (down, right) = divmod(tap, slices.row_taps), window.dilations
        return patch.place(r * down, s * right) * slices.place_bytes + of_tap * 16

    def beyond(vector: int) -> bool:
        last = vector % slices.row_taps == slices.row_taps - 1
        return patch.pair == 2 and window.kernel[1] % 2 == 1 and last

    steps = range(0, slices.chunks * _HALVES, 2)
    masks = [beyond(step) + 2 * beyond(step + 1) for step in steps]
    halves = [
        [offset(step + half) + mask for step, mask in zip(steps, masks, strict=True)]
        for half in (0, 1)
    ]
    table = np.array(halves).reshape(2, slices.chunks, 4).swapaxes(0, 1).ravel()
    return [*map(int, table), *[0] * (_MAX_VECTORS - len(table))]


def slices_of(problem: ConvProblem) -> Slices:
    """As equal as possible, of at most 64 channels."""
    (r, s), pair = problem.window.kernel, paired(problem)
    row_taps = ceil(s / 2) if pair else s
    most = min(_CHUNK, _MAX_VECTORS // (r * row_taps) * _HALVES)  # channels of a slice
    count = ceil(problem.c / most)
    tap_vectors = 1 if pair else ceil(problem.c / count / _HALVES)
    return Slices(count, tap_vectors, row_taps, r * row_taps * tap_vectors)


@cache
def patch_of(window: Window, n: int, pair: int, place_bytes: int, bm: int) -> Patch:
    """Of at most bm outputs of n images, in regions that few cover the images.

    Of equally many regions, those that read fewest pixels.
    """
    p, q = window.output

    def fits(patch: Patch) -> bool:
        return patch.places * place_bytes <= _MAX_PATCH_BYTES

    def cost(patch: Patch) -> tuple[int, int]:
        count = ceil(p / patch.rows) * ceil(q / patch.columns)
        return count, count * prod(patch.read)

    shapes = (
        _patch(window, pair, 1, high, wide)
        for high in range(1, min(p, bm) + 1)
        for wide in range(1, min(q, bm // high) + 1)
    )
    best = min(filter(fits, shapes), key=cost)
    several = (
        _patch(window, pair, images, p, q) for images in range(min(n, bm // (p * q)), 1, -1)
    )
    return next(filter(fits, several), best)


@dataclass(frozen=True, slots=True)
class PatchConv:
    """Direct convolution by mma.sync in fp16, of a patch of the input in shared memory.

    TensorConv reads an input pixel from the second-level cache for every tap, this for every block.
    """

    name: str = "tensor patch"

    def supports(self, problem: ConvProblem) -> str | None:
        """None where 2-D of 4 taps or more, one group, in fp16, and patches fit shared memory."""
        return (
            not_half(problem)
            or after_prologue(problem)
            or wrong_axes(problem, 2)
            or grouped(problem)
            or projecting(problem)
            or _unfit_window(problem)
        )

    def multiplications(self, problem: ConvProblem) -> int:
        """N K P Q C R S, padding included."""
        return problem.macs

    def configs(self, problem: ConvProblem) -> tuple[TileConfig[PatchTile], ...]:
        """Every tile with every split that leaves each block a slice and the workspace in bounds."""
        slices = slices_of(problem)
        return tuple(
            config
            for tile in PATCH_TILES
            if slices.count == 1 or slices.chunks >= tile.stages - 1
            for config in (
                TileConfig(tile, split) for split in range(1, min(MAX_SPLIT, slices.count) + 1)
            )
            if sum(self.workspace(problem, config).values()) <= MAX_WORKSPACE_BYTES
        )

    def work(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> tuple[Work]:
        """Every block copies its patches and multiplies its chunks; a tile's last block adds up."""
        tile, split, slices = config.tile, config.split > 1, slices_of(problem)
        patch, of_block = self._patch(problem, tile), ceil(slices.count / config.split)
        chunks = of_block * slices.chunks
        met = patch.images * prod(map(min, patch.read, problem.window.input))
        channels = of_block * slices.tap_vectors * _HALVES // patch.pair
        return (
            Work(
                kernel=self.instantiation(problem, tile),
                blocks=self._blocks(problem, tile) * config.split,
                threads=tile.threads,
                shared_bytes=self._dynamic_bytes(problem, config) + _STATIC_BYTES,
                bytes=2 * (met * channels + tile.bn * _CHUNK * chunks)
                + (4 if split else 2) * tile.bm * tile.bn,
                products=tile.wm // 16 * (tile.wn // 8) * (_CHUNK // 16) * chunks,
                vectors=tile.bm * tile.bn / VECTOR / tile.threads,
                rounds=chunks / (tile.stages - 1),
                tail_bytes=4 * tile.bm * tile.bn * config.split if split else 0,
                weight_bytes=2 * problem.k * slices.count * slices.chunks * _CHUNK,
            ),
        )

    def instantiation(
        self, problem: ConvProblem, tile: PatchTile, activation: Activation | None = None
    ) -> Instantiation:
        """The kernel for a tile."""
        return instantiate(
            "tensor_patch.cu",
            "conv_tensor_patch",
            unit=_HALVES // 2 if paired(problem) else _HALVES,
            **asdict(tile),
            finish=finish(activation),
        )

    def workspace(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> Mapping[str, int]:
        """Every block's partial sums; nothing where nothing is split."""
        if config.split == 1:
            return {}
        blocks = self._blocks(problem, config.tile) * config.split
        return {"workspace": 4 * blocks * config.tile.sums}

    def counter_bytes(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> int:
        """A counter for each tile, zero before and after the launch; 0 where nothing is split."""
        return 0 if config.split == 1 else 4 * self._blocks(problem, config.tile)

    def filter_form(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> str:  # noqa: ARG002  (one layout serves all tiles)
        """The same for all configurations and all N."""
        taps = "pairs of taps" if paired(problem) else "taps"
        return f"filters x slices x {taps} x channels, {problem.precision.value}"

    def prepare_filter(
        self,
        weight: Filter,
        problem: ConvProblem,
        config: TileConfig[PatchTile],  # noqa: ARG002  (one layout serves all tiles)
    ) -> Filter:
        """K×C×R×S → K × slices × (R·S taps or pairs × channels), filled up with zeros."""
        check_filter(weight, problem)
        k, c, r, s = weight.shape
        slices, pair = slices_of(problem), 2 if paired(problem) else 1
        channels = slices.tap_vectors * _HALVES // pair
        rows = np.zeros((k, slices.count * channels, r, slices.row_taps * pair), HALF)
        rows[:, :c, :, :s] = weight
        rows = rows.reshape(k, slices.count, channels, -1).swapaxes(2, 3)
        rows = rows.reshape(k, slices.count, -1)
        return np.pad(rows, ((0, 0), (0, 0), (0, -rows.shape[2] % _CHUNK)))

    def launches(
        self,
        problem: ConvProblem,
        config: TileConfig[PatchTile],
        x: Pixels,
        y: Pixels,
        residual: Pixels | None = None,
        bias: bool = False,
        activation: Activation | None = None,
    ) -> tuple[Launch]:
        """One, on x, weight, y; bias and residual if there are; workspace and counters if split.

        Raises ValueError where pixels do not fit the problem, and beyond 32-bit indices.
        """
        check_operands(problem, x, y, residual)
        tile, split, slices = config.tile, config.split > 1, slices_of(problem)
        patch = self._patch(problem, tile)
        self._check_reach(problem, patch, x, y, residual or y)
        sizes = struct(
            "tensor_patch.cu",
            "Sizes",
            images=problem.n,
            channels=problem.c,
            filters=problem.k,
            x_pitch=x.pitch,
            residual_pitch=0 if residual is None else residual.pitch,
            y_pitch=y.pitch,
            x_vectors=vectors_in(x, of=_HALVES // patch.pair),
            y_vectors=vectors_in(y, residual or y),
            regions=self._regions(problem, tile),
            region=patch.region,
            read=patch.read,
            apart=patch.apart,
            phase=patch.phase,
            row_places=patch.row_places,
            image_places=patch.image_places,
            place_bytes=slices.place_bytes,
            patches=self._patches(problem, config),
            patch_bytes=patch.places * slices.place_bytes,
            tables=self._tables(problem, config),
            tap_vectors=slices.tap_vectors,
            copied_vectors=slices.used_vectors,
            slices=slices.count,
            slice_chunks=slices.chunks,
            filter_tiles=ceil(problem.k / tile.bn),
            splits=config.split,
            offsets=_offsets(problem.window, patch, slices),
        )
        return (
            launch(
                self.instantiation(problem, tile, activation),
                (self._blocks(problem, tile), config.split, 1),
                (tile.threads, 1, 1),
                self._dynamic_bytes(problem, config),
                x="x",
                weight="weight",
                bias="bias" if bias else 0,
                residual="residual" if residual else 0,
                y="y",
                workspace="workspace" if split else 0,
                counters="counters" if split else 0,
                sizes=sizes,
                window=window_struct(problem.window),
                **epilogue_arguments(activation),
            ),
        )

    def _patch(self, problem: ConvProblem, tile: PatchTile) -> Patch:
        pair = 2 if paired(problem) else 1
        place_bytes = slices_of(problem).place_bytes
        return patch_of(problem.window, problem.n, pair, place_bytes, tile.bm)

    def _regions(self, problem: ConvProblem, tile: PatchTile) -> tuple[int, ...]:
        """How many regions cover the images, and the outputs of one along either axis."""
        sizes = (problem.n, *problem.window.output)
        return tuple(map(_quotient_up, sizes, self._patch(problem, tile).region))

    def _blocks(self, problem: ConvProblem, tile: PatchTile) -> int:
        """Blocks for the output of all images, where the channels are not split."""
        return prod(self._regions(problem, tile)) * ceil(problem.k / tile.bn)

    def _patches(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> int:
        """In shared memory: two, where a block has several slices."""
        return min(2, ceil(slices_of(problem).count / config.split))

    def _tables(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> int:
        """Where they begin in shared memory: after the weights and patches, and all sums."""
        tile, slices = config.tile, slices_of(problem)
        patch_bytes = self._patch(problem, tile).places * slices.place_bytes
        weights = 2 * (_CHUNK + _HALVES) * tile.stages * tile.bn  # rows an odd number of vectors apart
        return max(weights + self._patches(problem, config) * patch_bytes, 4 * tile.sums)

    def _dynamic_bytes(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> int:
        """Of a block: the offsets of vectors, the places of pixels, and the outputs' pixels."""
        patch = self._patch(problem, config.tile)
        tables = 4 * _HALVES * slices_of(problem).chunks + 8 * patch.images * prod(patch.read)
        return self._tables(problem, config) + tables + 8 * config.tile.bm

    def _check_reach(
        self, problem: ConvProblem, patch: Patch, x: Pixels, *written: Pixels
    ) -> None:
        """Raise ValueError unless every index that the kernel forms is one of 32 bits."""
        window = problem.window
        int32(problem.n * prod(window.input) * x.pitch)
        int32(problem.n * window.output_volume * max(each.pitch for each in written))
        for length, region, stride, extent in zip(
            window.output, patch.region[1:], window.strides, window.extent, strict=True
        ):
            int32((length + region) * stride + extent)


_STATIC_BYTES = 128
"""Static shared memory: the flag of a tile's last block, and alignment."""


def _quotient_up(dividend: int, divisor: int) -> int:
    return ceil(dividend / divisor)


def _unfit_window(problem: ConvProblem) -> str | None:
    """Its taps are so few that each input pixel is read about once, or too many for a patch."""
    window = problem.window
    if not _LEAST_TAPS <= window.kernel_volume <= _MAX_VECTORS:
        return f"kernel {by_axis(window.kernel)}; it runs {_LEAST_TAPS} to {_MAX_VECTORS} taps"
    pair = 2 if paired(problem) else 1
    nbytes = _patch(window, pair, 1, 1, 1).places * slices_of(problem).place_bytes
    if problem.c <= VECTOR and pair == 1:
        return f"{problem.c} channels at stride {by_axis(window.strides)}; it runs even strides"
    if nbytes > _MAX_PATCH_BYTES:
        return f"a window of {nbytes} bytes; shared memory has {_MAX_PATCH_BYTES} for it"
    return None
