"""When each launch of a batch runs: by the model of time, or measured on a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """A launch, in µs from the first one's start."""

    name: str
    start_us: float
    end_us: float
    after: Sequence[int]  # the launches that it waits for, by their places


@dataclass(frozen=True, slots=True)
class Timeline:
    """The launches of a model on n images.

    Measured bars lie between events, which keep launches from overlapping; `replay_us` is what the
    whole graph takes without them, copies included. None where all is modelled.
    """

    name: str
    n: int
    gpu: str
    bars: Sequence[Bar]
    replay_us: float | None = None

    @property
    def us(self) -> float:
        """Return the microseconds to the last launch's end."""
        return max(bar.end_us for bar in self.bars)

    @property
    def gaps_us(self) -> float:
        """Return those while no launch runs."""
        idle = end = 0.0
        for bar in sorted(self.bars, key=lambda bar: bar.start_us):
            idle += max(0.0, bar.start_us - end)
            end = max(end, bar.end_us)
        return idle
