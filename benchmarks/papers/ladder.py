"""Runs the six kernels of the ladder on the simulator, counts their costs, and writes
docs/ladder.md.

The ladder is a sequence of six steps, from a direct convolution to the fused Winograd kernel. Each
step is a file in docs/ladder, and adds one idea. The number of multiplications follows from the
launches. Bytes and shared-memory cycles (wavefronts) are counted from the addresses that the
simulator records. The time is estimated from these counts and the constants of kernels/tuning.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.result import Cells
from benchmarks.rows import ROOT, fill, markdown
from cusim import build
from cusim.accesses import SECTOR, instructions
from cusim.build import PROFILE, Build
from cusim.device import CusimDevice
from kernels import reference
from kernels.device.device import Dim3, Instantiation
from kernels.device.gpus import H200
from kernels.layout.operands import taps_by_channels_by_filters
from kernels.problems.conv import ConvProblem, same_padded
from kernels.tuning.constants import ASSUMED, microseconds
from kernels.winograd.filter import filter_transform
from kernels.winograd.matrices import Points

Floats = NDArray[np.float32]

LADDER = ROOT / "docs" / "ladder"
PAGE = ROOT / "docs" / "ladder.md"

LAYER = same_padded((14, 14), 3, 64, 64)
"""VGG-E's conv 5 with an eighth of its channels and filters."""

SPLITS = 8
"""The number of parts into which steps 5 and 6 split the channels."""

LATENCY = 600
"""The assumed number of cycles from a load to its result, as in kernels/tuning/heuristic.py."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Describes a launch: its kernel, its operands (names of arrays, and integers), its number of
    multiplications, and how often a block waits for loads (`rounds`)."""

    kernel: str
    grid: Dim3
    threads: int
    operands: tuple[str | int, ...]
    products: int = 0
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """Describes one step of the ladder: a file of kernels, the idea that it adds, and its
    launches."""

    source: str
    idea: str
    launches: tuple[Launch, ...]
    dependent: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """Holds the costs of one of the ladder's kernels. If it needs several launches, their costs are
    added up."""

    products: int
    bytes: int
    wavefronts: int
    blocks: int  # of the launch with the products
    us: float


def steps(problem: ConvProblem = LAYER) -> tuple[Step, ...]:
    """Return the six steps of the ladder for a convolution. C must be a multiple of 64, and K a
    multiple of 32."""
    size, c, k = problem.window.input[0], problem.c, problem.k
    places, tiles = size * size, ceil(size / 2) ** 2
    by_tiles = 16 * tiles * c * k
    layer = (size, c, k)
    fused_grid = (ceil(tiles / 16), k // 32, 1)
    split_grid = (*fused_grid[:2], SPLITS)
    chunks = c // 8
    count = places * k

    def split(kernel: str, add: str) -> tuple[Launch, ...]:
        return (
            Launch(kernel, split_grid, 256, ("x", "u", "parts", *layer, tiles), by_tiles,
                   chunks // SPLITS),
            Launch(add, (ceil(count / 128), 1, 1), 128, ("parts", "y", count, SPLITS)),
        )  # fmt: skip

    return (
        Step("1_direct.cu", "the sum by its definition",
             (Launch("direct", (ceil(places / 4), k // 32, 1), 128, ("x", "weight", "y", *layer),
                     9 * places * c * k, 9 * chunks),)),
        Step("2_tiled.cu", "data that 32 pixels and 32 filters share is read once",
             (Launch("tiled", (ceil(places / 32), k // 32, 1), 64, ("x", "weight", "y", *layer),
                     9 * places * c * k, 9 * chunks),)),
        Step("3_apart.cu", "16 products instead of 36, in separate stages",
             (Launch("data_of", (ceil(tiles * c / 128), 1, 1), 128, ("x", "v", size, c, tiles)),
              Launch("products", (ceil(tiles / 32), k // 32, 16), 64, ("v", "u", "m", tiles, c, k),
                     by_tiles, chunks),
              Launch("inverse_of", (ceil(tiles * k / 128), 1, 1), 128,
                     ("m", "y", size, k, tiles)))),
        Step("4_fused.cu", "all stages in one launch",
             (Launch("fused", fused_grid, 256, ("x", "u", "y", *layer, tiles), by_tiles, chunks),)),
        Step("5_split.cu", "channels split, for more blocks", split("split", "add_parts")),
        Step("6_dependent.cu", "overlapping launches", split("split_early", "add_parts_early"),
             dependent=True),
    )  # fmt: skip


def operands(problem: ConvProblem, seed: int = 0) -> tuple[dict[str, Floats], Floats]:
    """Return the arrays that the steps read and write, by name. Also return the expected y, H·W·K,
    computed by NumPy."""
    rng = np.random.default_rng(seed)
    size, c, k = problem.window.input[0], problem.c, problem.k
    x = rng.uniform(-1, 1, (1, c, size, size))
    weight = rng.uniform(-1, 1, problem.filter_shape)
    truth = np.moveaxis(reference.conv(x, weight, problem)[0], 0, -1)
    tiles = ceil(size / 2) ** 2
    filters = weight.astype(np.float32)
    empty = {"y": size * size * k, "parts": SPLITS * size * size * k, "v": 16 * tiles * c,
             "m": 16 * tiles * k}  # fmt: skip
    return {
        "x": np.ascontiguousarray(np.moveaxis(x[0], 0, -1), np.float32),
        "weight": np.asarray(taps_by_channels_by_filters(filters, problem)),
        "u": filter_transform(filters, 2, Points.INTEGER),
        **{name: np.full(floats, np.nan, np.float32) for name, floats in empty.items()},
    }, np.asarray(truth, np.float32)


@contextmanager
def opened(kind: Build) -> Iterator[CusimDevice]:
    """Yield a simulated device that runs the ladder's kernels, and close it at the end of the
    `with` block."""
    device = CusimDevice(kind, source_root=LADDER)
    try:
        yield device
    finally:
        device.close()


def run(
    device: CusimDevice,
    step: Step,
    arrays: Mapping[str, Floats],
    seen: Callable[[Launch, Instantiation], None] = lambda *_: None,
) -> Floats:
    """Launch a step's kernels, call `seen` after each launch, and return y as a flat array."""
    stream = device.stream()
    buffers = {
        name: device.allocate(array.nbytes, constant=name in ("weight", "u"))
        for name, array in arrays.items()
    }
    for name, array in arrays.items():
        device.upload(buffers[name].address, array, stream)
    stream.synchronize()
    for launch in step.launches:
        instantiation = Instantiation(step.source, launch.kernel, ())
        passed = [
            buffers[each].address if isinstance(each, str) else np.int32(each)
            for each in launch.operands
        ]
        kernel = device.load(instantiation)
        block = (launch.threads, 1, 1)
        device.launch(kernel, launch.grid, block, 0, passed, stream, dependent=step.dependent)
        stream.synchronize()
        seen(launch, instantiation)
    y = np.empty_like(arrays["y"])
    device.download(y, buffers["y"].address, stream)
    stream.synchronize()
    for buffer in buffers.values():
        buffer.free()
    return y


def count(device: CusimDevice, step: Step, arrays: Mapping[str, Floats]) -> Counts:
    """Run the launches of a step on a simulated device that records accesses to memory, and return
    the step's costs."""
    products = nbytes = wavefronts = 0
    cycles = 0.0

    def seen(launch: Launch, instantiation: Instantiation) -> None:
        nonlocal products, nbytes, wavefronts, cycles
        library = build.kernel(PROFILE, instantiation, LADDER)
        found = instructions(device.recorded, library)
        moved = SECTOR * sum(
            round(each.executed * each.needed) for each in found if not each.shared
        )
        waves = sum(round(each.executed * each.needed) for each in found if each.shared)
        products, nbytes, wavefronts = (
            products + launch.products,
            nbytes + moved,
            wavefronts + waves,
        )
        gap = ASSUMED.overlapped_cycles if step.dependent else ASSUMED.launch_cycles
        cycles += gap + LATENCY + busiest(launch, moved, waves)

    run(device, step, arrays, seen)
    blocks = max(np.prod(launch.grid) for launch in step.launches if launch.products)
    return Counts(products, nbytes, wavefronts, int(blocks), microseconds(cycles))


def busiest(launch: Launch, nbytes: int, wavefronts: int) -> float:
    """Return the estimated cycles of the H200 multiprocessor that has the most blocks.

    The result is the longest of four times: the time of the blocks' products (each of at most 4
    warps computes 32 per cycle), the time of their bytes from the second-level cache, the time of
    their shared-memory wavefronts, and the time for which a block waits for loads.
    """
    blocks = int(np.prod(launch.grid))
    most = ceil(blocks / H200.multiprocessors)
    share = most / blocks
    lanes = 32 * min(4, most * launch.threads // 32)
    return max(
        share * launch.products / lanes,
        share * nbytes / ASSUMED.cache_bytes_per_cycle,
        share * wavefronts,
        launch.rounds * LATENCY,
    )


def counted(problem: ConvProblem = LAYER) -> dict[str, Counts]:
    """Run all steps on the simulator, and return the costs of each step, by the name of its
    file."""
    arrays, _ = operands(problem)
    with opened(PROFILE) as device:
        return {step.source: count(device, step, arrays) for step in steps(problem)}


def table(found: Mapping[str, Counts]) -> Cells:
    """Return a table of the costs, with a row for each step."""
    rows: list[Sequence[str]] = [
        ("step", "idea", "products, 10⁶", "MB", "wavefronts", "blocks", "µs (modelled)")
    ]
    for step in steps():
        of = found[step.source]
        rows.append(
            (f"[{step.source}](ladder/{step.source})", step.idea, f"{of.products / 1e6:.2f}",
             f"{of.bytes / 1e6:.2f}", f"{of.wavefronts:,}", str(of.blocks), f"{of.us:.1f}")
        )  # fmt: skip
    return rows


BEGIN, END = "<!-- benchmarks.papers ladder -->", "<!-- end of the ladder -->"
"""The marks between which the page has its table."""


def page(text: str, found: Mapping[str, Counts]) -> str:
    """Return `text`, the text of docs/ladder.md, with a new table of the costs `found`."""
    head, rule, *lines = markdown(*table(found)).splitlines()
    shown = "\n".join([head, rule.replace("| ---: |", "| --- |", 1), *lines])
    return fill(text, BEGIN, END, shown)
