"""Which algorithm and configuration to run a convolution with, where none has been measured.

A cost model, not a simulation: it must rank configurations of one problem, and need not be right
about how long they take. The numbers are those of an H100 or H200, in clock cycles of one
multiprocessor; what differs little from GPU to GPU is the same for all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol, assert_never

from kernels.algorithms import ConvChoice, choices
from kernels.conv_depthwise import THREADS, DepthwiseConfig
from kernels.conv_problem import ConvProblem
from kernels.implicit_gemm import Tile, TileConfig, inner_size, tiles
from kernels.strided import VECTOR

_FMAS = 128
"""Multiply-adds a clock."""
_L2_BYTES = 24
"""From the second-level cache, a clock, while all multiprocessors read."""
_L2_LATENCY = 700
_START = 1000
"""From a block's start to its first chunk in shared memory."""
_MEET = 1500
"""From the first partial sum written to the last block's reading them."""
_SHARED_BYTES = 227 << 10
_REGISTERS = 65536
_MAX_WARPS = 64
_MAX_BLOCKS = 32


class DeviceFacts(Protocol):
    """What the choice depends on of a device: any `Device` tells, and `Facts` do without one."""

    @property
    def multiprocessors(self) -> int:
        """How many blocks run at once, where each fills a multiprocessor."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A device that need not be there."""

    multiprocessors: int


H200 = Facts(multiprocessors=132)


def heuristic(device: DeviceFacts) -> Callable[[ConvProblem], ConvChoice]:
    """Chooses for every problem among all there is; it keeps nothing of the device but facts."""
    facts = Facts(device.multiprocessors)
    return lambda problem: choose(problem, choices(problem), facts)


def choose(
    problem: ConvProblem, candidates: Sequence[ConvChoice], device: DeviceFacts
) -> ConvChoice:
    """The candidate with the least estimated cost, the first of several: a pure function."""
    return min(candidates, key=lambda choice: estimated_cycles(problem, choice, device))


def estimated_cycles(problem: ConvProblem, choice: ConvChoice, device: DeviceFacts) -> float:
    """Cycles from the launch to the end, roughly; good for comparing choices of one problem."""
    config: TileConfig | DepthwiseConfig = choice.config
    match config:
        case TileConfig():
            looked_up = 1.0 if choice.algorithm.name == "gemm" else 1.05  # where windows fall
            return looked_up * _tile_cycles(problem, config, device.multiprocessors)
        case DepthwiseConfig():
            return _depthwise_cycles(problem, config, device.multiprocessors)
        case _:
            assert_never(config)


def resident_blocks(tile: Tile) -> int:
    """Blocks of `conv_direct` that fit one multiprocessor of an H100."""
    registers = tile.tm * tile.tn + 80  # as ptxas reports, within ten
    return min(
        _SHARED_BYTES // (tile.shared_bytes + 1024),
        _REGISTERS // (registers * tile.threads),
        _MAX_WARPS * 32 // tile.threads,
        _MAX_BLOCKS,
    )


def _tile_cycles(problem: ConvProblem, config: TileConfig, multiprocessors: int) -> float:
    tile = config.tile
    blocks = ceil(tiles(problem, tile) * config.split / multiprocessors)  # of the busiest one
    waves = ceil(blocks / resident_blocks(tile))
    chunks = ceil(ceil(inner_size(problem) / tile.bk) / config.split)

    # A thread's products for 4 of the inner dimension, beside loading their factors.
    products, loads = 4 * tile.tm * tile.tn, tile.tm + tile.tn
    warps = min(blocks, resident_blocks(tile)) * tile.threads / 32
    issued = products / (products + 2 * loads) * warps / (warps + 2)
    products_of_chunk = tile.bm * tile.bn * tile.bk / (_FMAS * issued)
    copies_of_chunk = 4 * tile.bk * (tile.bm + tile.bn) / _L2_BYTES

    throughput = blocks * chunks * max(products_of_chunk, copies_of_chunk)
    latency = waves * chunks * _L2_LATENCY / (tile.stages - 1)
    total = waves * _START + max(throughput, latency)
    if config.split > 1:
        total += _MEET + 4 * tile.bm * tile.bn * config.split / _L2_BYTES
    return total


def _depthwise_cycles(problem: ConvProblem, config: DepthwiseConfig, multiprocessors: int) -> float:
    window = problem.window
    p, q = window.output
    threads = problem.n * p * ceil(q / config.run) * ceil(problem.k / VECTOR)
    blocks = ceil(threads / THREADS / multiprocessors)  # of the busiest one
    rows, width = window.kernel[0], config.s or window.kernel[1]
    loads = rows * ((config.run - 1) * config.stride + width)  # of a thread, 16 bytes each
    return rows * _L2_LATENCY + blocks * THREADS * loads * 16 / _L2_BYTES
