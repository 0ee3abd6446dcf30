"""Shows when each launch of a batch runs, as estimated or as measured on a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """Holds the start and end of a launch in µs from the first launch's start."""

    name: str
    start_us: float
    end_us: float
    after: Sequence[int]  # the launches that it waits for, by their indices


@dataclass(frozen=True, slots=True)
class Timeline:
    """Lists the launches of a model on n images.

    Measured bars lie between events, which keep launches from overlapping; `replay_us` is the time
    of the whole graph without events, copies included; None where the bars are modelled.
    """

    name: str
    n: int
    gpu: str
    bars: Sequence[Bar]
    replay_us: float | None = None

    @property
    def us(self) -> float:
        """Return the time from the first launch's start to the last one's end, in µs."""
        return max(bar.end_us for bar in self.bars)

    @property
    def gaps_us(self) -> float:
        """Return for how many µs no launch runs."""
        idle = end = 0.0
        for bar in sorted(self.bars, key=lambda bar: bar.start_us):
            idle += max(0.0, bar.start_us - end)
            end = max(end, bar.end_us)
        return idle
