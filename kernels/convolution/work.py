"""The work of a launch, as a cost model needs it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """One launch. Numbers "of a block" are those of a full block, not of a partial last one.

    At the end of a split launch one block of each tile reads the others' sums: `tail_bytes`.
    """

    blocks: int
    threads: int  # of a block
    registers: int  # of a thread, as ptxas reports on sm_90a, within ten
    shared_bytes: int  # of a block, static and dynamic
    instructions: float  # of all threads of a block: multiply-adds, loads, additions
    bytes: float  # of a block, to and from the second-level cache
    rounds: float  # times that a block waits for that cache, after prefetching
    tail_bytes: int = 0  # of one tile, 0 where nothing is split
    weight_bytes: int = 0  # of the launch, from memory: weights do not stay in the cache
