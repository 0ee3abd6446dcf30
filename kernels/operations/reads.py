"""Describes how many bytes a thread block of an operation reads, and how often it waits for them.
The cost model estimates the operation's time from these numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockReads:
    """Holds how many bytes each thread block of a launch reads from the second-level cache, and how
    many times it waits for them (`rounds`).

    `rounds` does not count waits that prefetching avoids.
    """

    bytes: int = 0
    rounds: float = 0


NO_READS = BlockReads()
"""For operations that read each number only once. Their time depends only on the bandwidth of
memory."""
