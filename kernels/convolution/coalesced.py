"""Implements cuConv, a direct convolution in two stages. Reads of global memory are coalesced, and
shared memory holds the weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, prod

from kernels.convolution.rounding import direct_rounding
from kernels.convolution.split_sum import MAX_WORKSPACE_BYTES, conv_sizes
from kernels.convolution.work import NO_INNER_LOOPS, Trips, Work
from kernels.device.device import Instantiation
from kernels.device.launch import (
    THREADS,
    Launch,
    blocks_of_threads,
    instantiate,
    int32,
    launch,
    struct,
    template_arguments,
    window_struct,
)
from kernels.layout.operands import (
    FILTER_FORM,
    ConvTensors,
    Filter,
    check_operands,
    padded,
    taps_by_channels_by_filters,
)
from kernels.layout.pixels import Pixels
from kernels.layout.strided import VECTOR
from kernels.operations.epilogue import epilogue_arguments, finish
from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.problems.refusals import (
    after_prologue,
    dilated,
    grouped,
    not_float,
    projecting,
    strided,
    wrong_axes,
    wrong_kernel,
)
from kernels.problems.window import Window

Taps = tuple[int, int]
"""The rows and columns, R and S, of a filter, or of the part of a filter that a block sums."""

_STRIPS = (1, 2, 3, 4, 6, 8, 12, 16)
_STATIC_BYTES = 128
"""Bytes of static shared memory, for alignment and for the flag that marks a tile's last block."""


@dataclass(frozen=True, slots=True)
class CoalescedTile:
    """Holds the tile sizes of a block and of a lane, named like `conv_coalesced`'s template
    parameters.

    A block computes rows × columns output pixels, and each of its warps computes one of these rows.
    Each lane of a warp computes the row for 4 filters, and sums over some of the channels.
    `filter_lanes` is the number of lanes of a warp that sum over the same channels. Shared memory
    holds `stages` chunks of `chunk` channels each.
    """

    rows: int
    columns: int
    filter_warps: int
    filter_lanes: int
    chunk: int
    stages: int

    @property
    def pixels(self) -> int:
        """Return the number of output pixels that a block computes."""
        return self.rows * self.columns

    @property
    def filters(self) -> int:
        """Return the number of filters that a block computes."""
        return self.filter_warps * self.filter_lanes * VECTOR

    @property
    def threads(self) -> int:
        """Return the number of threads of a block."""
        return 32 * self.rows * self.filter_warps

    @property
    def step(self) -> int:
        """Return how many channels a warp multiplies at a time. Each group of `filter_lanes` lanes
        multiplies 4 channels."""
        return VECTOR * 32 // self.filter_lanes

    def patch(self, taps: Taps) -> int:
        """Return the number of input pixels that a block reads, including padding."""
        return (self.rows + taps[0] - 1) * (self.columns + taps[1] - 1)

    def shared_bytes(self, taps: Taps) -> int:
        """Return the shared memory of a block in bytes. This memory holds chunks of inputs and
        weights, and pixel offsets. The output sums later reuse the memory of the chunks."""
        stage = self.chunk * (prod(taps) * self.filters + self.patch(taps))
        return 4 * (max(self.stages * stage, self.pixels * self.filters) + self.patch(taps))


def _tiles(*rest: tuple[int, int, int, int]) -> tuple[CoalescedTile, ...]:
    """Return tiles of 8 × 7 output pixels. Tiles that are 7 pixels wide fill outputs that are 7, 14
    or 28 pixels wide. They almost fill outputs that are 13 or 27 pixels wide."""
    return tuple(CoalescedTile(8, 7, *sizes) for sizes in rest)


# From the paper's few filters per block to its future work, several blocks' work in one.
TILES: Mapping[Taps, tuple[CoalescedTile, ...]] = {
    (1, 1): _tiles((1, 2, 64, 3), (1, 4, 64, 3), (1, 8, 32, 4), (2, 8, 32, 4)),
    (1, 3): _tiles((1, 4, 32, 3)),
    (3, 3): _tiles((1, 2, 64, 2), (1, 4, 32, 3), (1, 8, 16, 3), (2, 8, 16, 3)),
    (1, 5): _tiles((1, 2, 64, 3), (1, 4, 32, 3)),
    (5, 5): _tiles((1, 4, 32, 2), (1, 8, 16, 2)),
}
"""The tile sizes to choose from, by the size of the part of a filter that a block sums."""


@dataclass(frozen=True, slots=True)
class CoalescedConfig:
    """Sets the tile sizes, the part of a sum that one block computes, and the method that adds
    partial sums.

    An output is a sum over channels and taps. A tap is one position (r, s) of the filter. `strips`
    is the number of parts into which the channels are divided. `taps` is the number of rows and
    columns of taps that one block sums. Each block writes a plane of partial sums. With one tap per
    block and one strip there are R·S planes, as in the paper. If `fused`, the last block of each
    tile adds the planes. Otherwise a second launch adds them, like the paper's second stage.
    """

    tile: CoalescedTile
    taps: Taps
    strips: int = 1
    fused: bool = True

    def __str__(self) -> str:
        tile, (r, s) = self.tile, self.taps
        parts = f"{tile.pixels}x{tile.filters}x{tile.chunk} {r}x{s}/{self.strips}"
        return parts if self.fused else f"{parts}, two stages"


@dataclass(frozen=True, slots=True)
class CoalescedConv:
    """Implements cuConv (Jordà et al. 2021, section 3). A filter row is the C weights of a filter
    at one tap (r, s).

    The first stage keeps filter rows in shared memory. It computes the dot product of every filter
    row with the C channels of every input pixel. This gives R·S planes of P×Q for each image and
    filter. The second stage adds these planes. A 1×1 filter has only one plane, which is the
    output. The paper measures filters of 1×1, 3×3 and 5×5 at stride 1. The speedup is largest for
    small images at N = 1. Section 6 proposes larger blocks. Here a block may therefore sum several
    taps, and compute more filters than in the paper.
    """

    name: str = "coalesced"

    def supports(self, problem: ConvProblem) -> str | None:
        """Return why the algorithm cannot compute this convolution, or None if it can. The
        algorithm supports 2-D convolutions with a kernel of 1×1, 3×3 or 5×5, stride 1, dilation 1
        and one group."""
        return (
            not_float(problem)
            or after_prologue(problem)
            or wrong_axes(problem, 2)
            or wrong_kernel(problem, (1, 1), (3, 3), (5, 5))
            or strided(problem)
            or dilated(problem)
            or grouped(problem)
            or projecting(problem)
        )

    def multiplications(self, problem: ConvProblem) -> int:
        """Return the number of multiplications, N·K·P·Q·C·R·S, including products with padding."""
        return problem.macs

    def arithmetic(self, problem: ConvProblem) -> Precision:  # noqa: ARG002  (the same for all)
        """Return float32, since the kernel uses no tensor cores."""
        return Precision.FP32

    def rounding(self, problem: ConvProblem, config: CoalescedConfig) -> float:  # noqa: ARG002  (the same for all)
        """Return the output's estimated relative rounding error, in units of float32's eps / 2."""
        return direct_rounding(problem)

    def configs(self, problem: ConvProblem) -> tuple[CoalescedConfig, ...]:
        """Return all configurations whose workspace has at most MAX_WORKSPACE_BYTES. Depending on
        the configuration, a block sums all taps, one row of taps, or one tap."""
        r, s = problem.window.kernel
        in_one = [
            CoalescedConfig(tile, taps, strips)
            for taps in dict.fromkeys(((r, s), (1, s), (1, 1)))
            for tile in TILES[taps]
            for strips in _strips(problem, tile)
        ]
        in_two = [replace(config, fused=False) for config in in_one if planes(problem, config) > 1]
        return tuple(
            config
            for config in (*in_one, *in_two)
            if sum(self.workspace(problem, config).values()) <= MAX_WORKSPACE_BYTES
        )

    def work(self, problem: ConvProblem, config: CoalescedConfig) -> tuple[Work, ...]:
        """Return a description of each launch for the cost model. Blocks of the first launch
        prefetch and multiply chunks of channels. The last block of each tile, or a second launch,
        adds the partial sums."""
        tile, taps, split = config.tile, config.taps, planes(problem, config)
        window, filters = _flat(problem, tile).window, min(tile.filters, padded(problem.k))
        chunks = ceil(ceil(problem.c / tile.chunk) / config.strips)
        channels = min(chunks * tile.chunk, padded(problem.c))
        met = prod(  # pixels of the image in a patch
            min(size + taps_along - 1, image)
            for size, taps_along, image in zip(
                (tile.rows, tile.columns), taps, window.input, strict=True
            )
        )
        sum_bytes = 4 * tile.pixels * filters
        first = Work(
            kernel=_instantiation(config),
            blocks=tiles(problem, tile) * split,
            threads=tile.threads,
            shared_bytes=tile.shared_bytes(taps) + _STATIC_BYTES,
            bytes=4 * channels * (prod(taps) * filters + met) + sum_bytes,
            trips=Trips({"FFMA": taps[0] * (tile.chunk // tile.step)}, {}),
            products=chunks * tile.chunk // tile.step * prod(taps) * VECTOR**2 * tile.columns,
            vectors=tile.pixels * tile.filters / VECTOR / tile.threads,
            rounds=chunks / (tile.stages - 1),
            tail_bytes=sum_bytes * split if split > 1 and config.fused else 0,
            weight_bytes=4 * window.kernel_volume * padded(problem.c) * problem.k,
        )
        if split == 1 or config.fused:
            return (first,)
        return (first, _second_work(problem, split))

    def workspace(self, problem: ConvProblem, config: CoalescedConfig) -> Mapping[str, int]:
        """Return the size in bytes of all planes of partial sums. The result is empty if there is
        only one plane, because that plane is the output."""
        split = planes(problem, config)
        return {"planes": 4 * split * _outputs(problem)} if split > 1 else {}

    def counter_bytes(self, problem: ConvProblem, config: CoalescedConfig) -> int:
        """Return the size in bytes of the counters. There is one counter per tile if the last block
        of a tile adds the planes. Otherwise there are none."""
        fused = config.fused and planes(problem, config) > 1
        return 4 * tiles(problem, config.tile) if fused else 0

    def filter_form(self, problem: ConvProblem, config: CoalescedConfig) -> str:  # noqa: ARG002  (one layout serves all)
        """Return the name of the filter's layout, which is the same for all configurations and
        batch sizes. DirectConv and GemmConv use the same layout."""
        return FILTER_FORM.format(groups=problem.groups)

    def prepare_filter(
        self,
        weight: Filter,
        problem: ConvProblem,
        config: CoalescedConfig,  # noqa: ARG002  (one layout serves all)
    ) -> Filter:
        """Return the filter K×C×R×S as 1 × R·S × C × K, with C and K padded with zeros to multiples
        of 4."""
        return taps_by_channels_by_filters(weight, problem)

    def launches(
        self, problem: ConvProblem, config: CoalescedConfig, tensors: ConvTensors
    ) -> tuple[Launch, ...]:
        """Return one launch, or two launches if a separate launch adds the planes. The operands are
        x, weight, y, planes and counters, and bias and residual if given.

        Raises ValueError if a tensor does not match the problem, or if an index exceeds 32 bits.
        """
        x, y, residual, _, activation = tensors
        check_operands(problem, tensors)
        _check_reach(problem, config, x, y, residual or y)
        tile, split = config.tile, planes(problem, config)
        fused, flat = config.fused or split == 1, _flat(problem, tile)
        pixels = problem.n * problem.window.output_volume
        given = {**tensors.given, "y": "y"}
        head = conv_sizes(problem, tile.filters, tensors)
        written = {name: head[name] for name in ("residual_pitch", "y_pitch")}
        sizes = struct(
            "coalesced.cu",
            "Sizes",
            **head,
            x_pixels=problem.n * prod(problem.window.input),
            y_pixels=pixels,
            column_tiles=ceil(flat.window.output[1] / tile.columns),
            row_tiles=ceil(flat.window.output[0] / tile.rows),
            strips=config.strips,
            taps=flat.window.kernel[1] // config.taps[1],
        )
        first = launch(
            _instantiation(config, activation),
            (tiles(problem, tile), split, 1),
            (tile.threads, 1, 1),
            tile.shared_bytes(config.taps),
            x="x",
            weight="weight",
            **(given if fused else dict.fromkeys(given, 0)),
            planes="planes" if split > 1 else 0,
            counters="counters" if split > 1 and fused else 0,
            sizes=sizes,
            window=window_struct(flat.window),
            **epilogue_arguments(activation),
        )
        if fused:
            return (first,)
        second = launch(
            _sum_planes(activation),
            *blocks_of_threads(_outputs(problem) // VECTOR),
            planes="planes",
            **given,
            plane_count=split,
            pixels=pixels,
            filters=problem.k,
            vectors=padded(problem.k) // VECTOR,
            **written,
            y_vectors=head["y_vectors"],
            **epilogue_arguments(activation),
        )
        return (first, second)


def _instantiation(config: CoalescedConfig, activation: Activation | None = None) -> Instantiation:
    r, s = config.taps
    return instantiate(
        "coalesced.cu",
        "conv_coalesced",
        taps_r=r,
        taps_s=s,
        **template_arguments(config.tile),
        finish=finish(activation),
    )


def _sum_planes(activation: Activation | None = None) -> Instantiation:
    return instantiate("coalesced.cu", "sum_planes", finish=finish(activation))


def planes(problem: ConvProblem, config: CoalescedConfig) -> int:
    """Return the number of planes of partial sums. There is one plane for each part of the taps and
    each part of the channels. A plane has one partial sum of every output."""
    return problem.window.kernel_volume // prod(config.taps) * config.strips


def tiles(problem: ConvProblem, tile: CoalescedTile) -> int:
    """Return the number of tiles that cover the output of all images and filters."""
    flat = _flat(problem, tile)
    (p, q), filters = flat.window.output, ceil(problem.k / tile.filters)
    return flat.n * ceil(p / tile.rows) * ceil(q / tile.columns) * filters


def _strips(problem: ConvProblem, tile: CoalescedTile) -> tuple[int, ...]:
    """Return the possible values of `strips` in a configuration, in ascending order. Of several
    values with the same number of chunks per block, only the smallest is returned."""
    chunks = ceil(problem.c / tile.chunk)
    by_chunks = {ceil(chunks / strips): strips for strips in reversed(_STRIPS) if strips <= chunks}
    return tuple(reversed(by_chunks.values()))


def _flat(problem: ConvProblem, tile: CoalescedTile) -> ConvProblem:
    """Return a 1×1 convolution as a problem with a single image, which has the pixels of all images
    and is as wide as the tile. Return any other problem unchanged."""
    if not problem.window.is_pointwise:
        return problem
    size = (ceil(problem.n * problem.window.output_volume / tile.columns), tile.columns)
    one, none = (1, 1), (0, 0)
    return ConvProblem(1, problem.c, problem.k, Window(size, one, one, one, none, none, size))


def _outputs(problem: ConvProblem) -> int:
    """Return the number of elements of a plane: N·P·Q times the padded K."""
    return problem.n * problem.window.output_volume * padded(problem.k)


def _second_work(problem: ConvProblem, split: int) -> Work:
    """Return a description, for the cost model, of the launch that adds the partial sums of all
    splits. Each thread adds the sums of 4 filters of one pixel."""
    return Work(
        kernel=_sum_planes(),
        blocks=ceil(_outputs(problem) / VECTOR / THREADS),
        threads=THREADS,
        shared_bytes=0,
        bytes=THREADS * 16 * (split + 1),
        trips=NO_INNER_LOOPS,
        products=0,
        vectors=0,
        rounds=ceil(split / 4) - 1,
        tail_bytes=0,
        weight_bytes=0,
    )


def _check_reach(
    problem: ConvProblem, config: CoalescedConfig, x: Pixels, *written: Pixels
) -> None:
    """Raise ValueError if an index that the kernel computes exceeds 32 bits."""
    tile = config.tile
    flat = _flat(problem, tile)
    window = flat.window
    margins = (
        size + 2 * max(kernel, pad)
        for size, kernel, pad in zip(
            (tile.rows, tile.columns), window.kernel, window.pads_begin, strict=True
        )
    )
    ends = map(max, window.input, window.output)
    int32(flat.n * prod(end + margin for end, margin in zip(ends, margins, strict=True)))
    int32(problem.n * prod(problem.window.input) * x.pitch)
    int32(problem.n * problem.window.output_volume * max(pixels.pitch for pixels in written))
    int32(planes(problem, config) * _outputs(problem) + THREADS)
    int32(
        window.kernel_volume * (padded(problem.c) + tile.chunk) * (padded(problem.k) + tile.filters)
    )
