"""Counts the memory traffic of two methods: Lavin & Gray's order of thread blocks, which makes
better use of the cache, and Lan et al.'s tensor layouts.

No kernel is run. The modelled cache holds complete operands of blocks, and evicts the least
recently used operand first. Sectors of 32 bytes are counted from the addresses of a warp's lanes,
as in cusim.accesses.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from benchmarks.kernels.suites import Layer
from benchmarks.papers.result import Cells
from cusim.accesses import LANES, SECTOR, Access, sectors
from kernels.problems.conv import ConvProblem

FLOAT = 4

Touched = tuple[tuple[str, int], int]
"""An operand of a block: its kind and its number, and its bytes."""

TITAN_X_L2 = 3 << 20
"""The second-level cache of Lavin & Gray's GPU, in bytes."""

GROUP = 128
"""The number of filters in a group in section 6. All blocks of a group run before the next group
begins."""

BLOCK = 32
"""The number of tiles of 2×2 outputs per block in the paper, and also the number of filters."""


def dram_bytes(blocks: Iterable[Iterable[Touched]], cache_bytes: int) -> int:
    """Return the bytes that thread blocks load from memory through a cache of `cache_bytes`. The
    blocks run one after another, and each block reads its operands once."""
    held: OrderedDict[tuple[str, int], int] = OrderedDict()
    loaded = free = 0
    free = cache_bytes
    for block in blocks:
        for what, nbytes in block:
            if what in held:
                held.move_to_end(what)
                continue
            loaded += nbytes
            held[what] = nbytes
            free -= nbytes
            while free < 0:
                free += held.popitem(last=False)[1]
    return loaded


def blocks_of(problem: ConvProblem, group: int) -> Iterator[tuple[Touched, Touched]]:
    """Yield the operands that each block of F(2×2, 3×3) reads, in the order of the blocks.

    A block reads the pixels of 32 tiles, with overlaps only once, and 32 filters of 3×3, both for
    all channels. Filters are divided into groups of `group` filters, and one group is completed
    after another. Within a group, the outer loop covers the tiles, and the inner loop covers the
    filters of the group. With 32 filters per group, the inner loop has only one iteration.
    """
    tiles = problem.n * prod(ceil(size / 2) for size in problem.window.output)
    pixels = FLOAT * 4 * BLOCK * problem.c
    filters = FLOAT * 9 * BLOCK * problem.c
    for begin in range(0, problem.k, group):
        of_group = range(begin // BLOCK, min(begin + group, problem.k) // BLOCK)
        for tile, number in product(range(ceil(tiles / BLOCK)), of_group):
            yield (("filters", number), filters), (("pixels", tile), pixels)


def blocking(problem: ConvProblem, cache_bytes: int) -> dict[str, int]:
    """Return the bytes that a convolution reads from memory through a cache of `cache_bytes`, for
    each order of its thread blocks."""
    orders = {"filters inside": problem.k, "groups of 128": GROUP, "tiles inside": BLOCK}
    return {
        name: dram_bytes(blocks_of(problem, group), cache_bytes) for name, group in orders.items()
    }


def network_blocking(layers: Sequence[Layer], n: int) -> dict[str, int]:
    """Return the bytes that all layers of a network read from memory, for each order of the blocks.
    A layer that occurs several times is counted each time."""
    found = [(layer.count, blocking(layer.problem.with_batch(n), TITAN_X_L2)) for layer in layers]
    return {order: sum(count * of[order] for count, of in found) for order in found[0][1]}


def table_blocking(layers: Sequence[Layer]) -> Cells:
    """Return the MB read from memory for each order of the blocks. There is a row for each layer
    with N = 8, and a row for all layers together with N = 1 and with N = 8.

    The cache has the 3 MB of the Titan X. The filters of conv 4 and 5 do not fit into it.
    """
    orders = ("filters inside", "tiles inside", "groups of 128")
    rows: list[Sequence[str]] = [("layer", "N", *orders)]
    every = [
        (layer.name, 8, blocking(layer.problem.with_batch(8), TITAN_X_L2)) for layer in layers[3:]
    ]
    every += [("all", n, network_blocking(layers, n)) for n in (1, 8)]
    for name, n, found in every:
        rows.append((name, str(n), *(f"{found[order] / 1e6:,.1f}" for order in orders)))
    return rows


# The rest of this module counts for Lan et al. 2017, section 4: cuBLAS's product and the kernels
# around it, by layout.

N = 32
"""The number of images in a batch in the paper. It is also the number of threads in a block, since
each thread has one image."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Counts a kernel's accesses to global memory: the load and store instructions of all warps,
    and the sectors that they access."""

    name: str
    instructions: int
    sectors: int


def _needed(apart: int) -> int:
    """Return the number of sectors that a warp's load accesses if neighbouring lanes load floats
    that are `apart` floats apart."""
    return sectors(tuple(FLOAT * apart * lane for lane in range(LANES)), FLOAT, Access.LOAD)


def stages(problem: ConvProblem, layout: str) -> list[Stage]:
    """Return the memory accesses of each kernel of F(2×2×2, 3×3×3) in one of LAYOUTS. The kernels
    are the transforms, the matrix product, and copies that reshape tensors. Each lane of a warp
    handles one image.

    In "NCDHW", the images lie far apart in memory, so each lane of a warp accesses a different
    sector. In "CDHWN", the images lie side by side where tiles are transformed. In both layouts,
    copies reshape the transformed tiles to matrices, and the products to tiles. In "no reshape",
    the transforms access the matrices directly, so no copies are needed. The product reads and
    writes its matrices once.
    """
    positions, outputs = 64, 8
    tiles = prod(ceil(size / 2) for size in problem.window.output)
    images, filters, c, k = ceil(problem.n / LANES), problem.k, problem.c, problem.k
    far, near = _needed(positions), _needed(1)
    transform = far if layout == "NCDHW" else near
    of_data, of_y, of_u = images * c * tiles, images * k * tiles, ceil(filters / LANES) * c

    def stage(name: str, *counts: tuple[int, int]) -> Stage:
        return Stage(name, sum(n for n, _ in counts), sum(n * each for n, each in counts))

    product_floats = positions * problem.n * tiles * (c + k) + positions * c * k
    found = [
        stage("imageTransform", (2 * positions * of_data, transform)),
        stage("filterTransform", ((27 + positions) * of_u, transform)),
        Stage("sgemm", product_floats // LANES, product_floats * FLOAT // SECTOR),
        stage("inverseTransform", ((positions + outputs) * of_y, transform)),
    ]
    if layout != "no reshape":  # a copy reads tiles and writes a matrix, or the reverse
        found += [
            stage(name, (positions * n, far), (positions * n, near))
            for name, n in (
                ("reshapeTransformedImage", of_data),
                ("reshapeTransformedFilter", of_u),
                ("reshapeOutput", of_y),
            )
        ]
    return found


LAYOUTS = ("NCDHW", "CDHWN", "no reshape")
"""The paper's baseline, its first optimisation, and both optimisations."""


def sectors_of(problem: ConvProblem, layout: str) -> int:
    """Return the number of memory sectors that all kernels of F(2×2×2, 3×3×3) together access, for
    32 images."""
    return sum(stage.sectors for stage in stages(problem.with_batch(N), layout))


def table_layouts(layers: Mapping[str, ConvProblem]) -> Cells:
    """Return how many MB the kernels of each layer access in each layout. Also return the first
    layout's MB divided by the MB of each other layout."""
    rows: list[Sequence[str]] = [
        ("layer", *(f"{layout}, MB" for layout in LAYOUTS), "CDHWN, times fewer", "no reshape")
    ]
    for name, problem in layers.items():
        found = [SECTOR * sectors_of(problem, layout) / 1e6 for layout in LAYOUTS]
        times = [f"{found[0] / other:.1f}" for other in found[1:]]
        rows.append((name, *(f"{number:,.0f}" for number in found), *times))
    return rows


def table_shares(problem: ConvProblem) -> Cells:
    """Return the percentage of all accessed sectors that each kernel accesses, for each layout, as
    in figure 4 of the paper."""
    found = [stages(problem.with_batch(N), layout) for layout in LAYOUTS]
    names = [stage.name for stage in found[0]]
    rows: list[Sequence[str]] = [("kernel", *LAYOUTS)]
    for name in names:
        cells = []
        for every in found:
            total = sum(stage.sectors for stage in every)
            own = sum(stage.sectors for stage in every if stage.name == name)
            cells.append(f"{own / total:.2%}" if own else "")
        rows.append((name, *cells))
    return rows
