"""Describes the work of a launch. From this description, the cost model estimates the launch's
time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kernels.device.device import Instantiation


class Trips(NamedTuple):
    """Holds the trip counts of a kernel's inner loops, which cannot be read from machine code.

    Each loop is named by an opcode that occurs in no other loop. A loop that is not listed runs
    once.
    """

    loop: Mapping[str, int]  # in an iteration of the outer loop
    finish: Mapping[str, int]
    data_warps: int = 0
    products: int = 0  # of a thread in a chunk


NO_INNER_LOOPS = Trips({}, {})


@dataclass(frozen=True, slots=True)
class Work:
    """Describes the part of a launch's work that depends on the problem. The other part depends on
    the machine code, and is described by the kernel's static profile.

    Numbers "of a block" describe a full block, although the last block may be partial. At the end
    of a launch with split sums, one block of each tile reads `tail_bytes` of partial sums, which
    the tile's other blocks wrote. In a cluster, each block reads `tail_bytes` from the shared
    memory of the other blocks.
    """

    kernel: Instantiation
    blocks: int
    threads: int  # of a block
    shared_bytes: int  # of a block, static and dynamic
    bytes: float  # of a block, to and from the second-level cache
    trips: Trips = field(hash=False)
    products: float  # FFMA or mma instructions of each warp that multiplies
    vectors: float  # of 4 outputs or 8 bytes, that a thread finishes one after another
    rounds: float  # times that a block waits for that cache, after prefetching
    tail_bytes: int  # of one tile, or of a block of a cluster; 0 where nothing is split
    weight_bytes: int  # of the launch
    cluster: int = 1  # blocks that run at the same time, on one cluster of multiprocessors
    # Whether a tile's partial sums are added there, if it has any.
    tail_in_cluster: bool = field(default=False, kw_only=True)
