"""Names the engine's techniques that a benchmark can switch on or off, one at a time, to measure
their gain on a GPU."""

from collections.abc import Mapping

from benchmarks.kernels.report import CONVOY
from kernels.device.device import Variant

VARIANTS: Mapping[str, Variant] = {
    "without weights before the wait": Variant.LATE_WEIGHTS,
    "with prefetched weights": Variant.PREFETCH,
}
"""The variant that a switch gives to all kernels."""

SWITCHES = (
    "without dependent launches",  # launches that begin before the preceding launch has ended
    "without branches",  # branches that run in parallel
    "without one graph",  # the graph includes the copy of the images
    *VARIANTS,
)


UNTUNED = f"{CONVOY} untuned"
"""Convoy's engine with the algorithms that the cost model chooses. Tuning would take longer than
all other measurements of a network."""


def known(switch: str) -> str:
    """Return `switch` if it is one of SWITCHES. Otherwise raises ValueError, whose message lists
    SWITCHES.

    This check prevents a benchmark with a misspelt switch from measuring the unchanged engine.
    """
    if switch not in SWITCHES:
        raise ValueError(f"{switch!r} is not a switch; the switches are {', '.join(SWITCHES)}")
    return switch


def switched(switch: str, side: str = CONVOY) -> str:
    """Return the name under which Convoy is measured with one of SWITCHES applied. Raises
    ValueError if there is no such switch."""
    return f"{side} {known(switch)}"


CONVOYS: Mapping[str, tuple[str, str]] = {
    f"{side} {switch}".strip(): (side, switch)
    for side, switches in ((CONVOY, SWITCHES), (UNTUNED, SWITCHES[:1]))
    for switch in ("", *switches)
}
"""For each of Convoy's sides, by its name: CONVOY or UNTUNED, and the switch."""
