"""What a launch asks of a device: what a cost model needs to know of it, and no more."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """One launch. What is "of a block" is of an ordinary one, none of the last, smaller ones.

    A split launch ends with one block of each tile reading what the others wrote: `tail_bytes`.
    """

    blocks: int
    threads: int  # of a block
    registers: int  # of a thread, as ptxas reports on sm_90a, within ten
    shared_bytes: int  # of a block, static and dynamic
    instructions: float  # of a block, of all its threads: multiply-adds, loads, additions
    bytes: float  # of a block, to and from the second-level cache
    rounds: float  # times in a row that a block waits for that cache, copies ahead taken off
    tail_bytes: int = 0  # of one tile, 0 where nothing is split
    weight_bytes: int = 0  # of the launch, from memory: weights do not stay in the cache
