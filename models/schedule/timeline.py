"""Defines a timeline of the kernel launches of a batch, with estimated or measured times."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """Holds the start and end of a launch in µs, relative to the start of the first launch."""

    name: str
    start_us: float
    end_us: float
    after: Sequence[int]  # the indices of the launches for which it waits


@dataclass(frozen=True, slots=True)
class Timeline:
    """Lists the kernel launches of a model for n images, with the start and end of each launch.

    Measured times are times between CUDA events. The events prevent launches from overlapping.
    `replay_us` is the time of the whole CUDA graph without events, including copies, or None if the
    times are estimates.
    """

    name: str
    n: int
    gpu: str
    bars: Sequence[Bar]
    replay_us: float | None = None

    @property
    def us(self) -> float:
        """Return the time from the start of the first launch to the end of the last one, in µs."""
        return max(bar.end_us for bar in self.bars)

    @property
    def gaps_us(self) -> float:
        """Return the total time in which no launch runs, in µs."""
        idle = end = 0.0
        for bar in sorted(self.bars, key=lambda bar: bar.start_us):
            idle += max(0.0, bar.start_us - end)
            end = max(end, bar.end_us)
        return idle
