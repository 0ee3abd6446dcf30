"""Defines properties of a GPU that the cost model needs and that no data sheet states. They are
assumptions until they are measured.

kernels/tuning/micro.py ─ measurements ─ fitted ─ Constants ─ heuristic, models/schedule/time.py
"""

from dataclasses import dataclass

from kernels.device.gpus import H200

CLOCK_HZ = H200.clock_hz
"""The clock whose cycles the cost model counts."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Holds the properties of a GPU that micro.py can measure with small kernels. The defaults are
    assumptions."""

    launch_cycles: float = 1600
    """Cycles from a launch's end to the next launch's start in a captured graph, 0.8 µs."""

    overlapped_cycles: float = 495
    """The same cycles if the later launch has begun early (kernels/src/dependent.cuh), 0.25 µs."""

    fork_cycles: float = 1600
    """The same cycles if the later launch waits for a launch on another stream."""

    cache_bytes_per_cycle: float = 24
    """Bytes per cycle that each multiprocessor reads from the second-level cache while all read,
    6.3 TB/s in total."""

    idle_warps: float = 2
    """With w warps, a multiprocessor issues at w / (w + idle_warps) of its full rate, because fewer
    warps hide less of each other's latency."""


ASSUMED = Constants()


def cycles(us: float) -> float:
    """Convert µs to cycles at CLOCK_HZ."""
    return us * CLOCK_HZ / 1e6


def microseconds(count: float) -> float:
    """Convert cycles at CLOCK_HZ to µs."""
    return 1e6 * count / CLOCK_HZ
