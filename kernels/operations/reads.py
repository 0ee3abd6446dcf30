"""Describes the data that a block of an operation reads, for the cost model, which estimates the
operation's time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockReads:
    """Holds the bytes that each block reads from the second-level cache, and how often a block
    waits for such bytes.

    `rounds` counts the waits after prefetching.
    """

    bytes: int = 0
    rounds: float = 0


NO_READS = BlockReads()
"""The reads of operations that read each number once. Their time is the time in which memory
delivers their bytes."""
