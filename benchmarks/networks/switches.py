"""Disables the engine's techniques one at a time, to measure the gain of each on a GPU."""

from collections.abc import Mapping

from benchmarks.kernels.report import CONVOY
from kernels.device.device import Variant

VARIANTS: Mapping[str, Variant] = {
    "without weights before the wait": Variant.LATE_WEIGHTS,
    "with prefetched weights": Variant.PREFETCH,
}
"""The variant that a switch gives to all kernels."""

SWITCHES = (
    "without dependent launches",  # that begin before the one ahead has ended
    "without branches",  # side by side
    "without one graph",  # the copy of the images inside the graph
    *VARIANTS,
)


UNTUNED = f"{CONVOY} untuned"
"""Convoy's engine with the algorithms that the cost model chooses. Measuring algorithms would take
longer than all other measurements of a network."""


def known(switch: str) -> str:
    """Return the text if it is a switch. Raises ValueError, which lists SWITCHES, for any other
    text.

    With a wrong name, the engine would be compared with itself.
    """
    if switch not in SWITCHES:
        raise ValueError(f"{switch!r} is not a switch; the switches are {', '.join(SWITCHES)}")
    return switch


def switched(switch: str, side: str = CONVOY) -> str:
    """Return the name of Convoy's side without one of SWITCHES. Raises ValueError like `known`."""
    return f"{side} {known(switch)}"


CONVOYS: Mapping[str, tuple[str, str]] = {
    f"{side} {switch}".strip(): (side, switch)
    for side, switches in ((CONVOY, SWITCHES), (UNTUNED, SWITCHES[:1]))
    for switch in ("", *switches)
}
"""Convoy's sides by their names: CONVOY or UNTUNED, and the switch."""
