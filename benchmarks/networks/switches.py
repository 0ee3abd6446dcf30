"""Disables the engine's techniques one at a time, to measure on a GPU what each gains."""

from collections.abc import Mapping

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


def known(switch: str) -> str:
    """Return a switch. Raises ValueError, which lists SWITCHES, for any other text.

    A switch of a wrong name would compare the engine with itself.
    """
    if switch not in SWITCHES:
        raise ValueError(f"no switch is called {switch!r}; there are {', '.join(SWITCHES)}")
    return switch


def switched(switch: str) -> str:
    """Return the name for Convoy's side without one of SWITCHES. Raises ValueError as `known`
    does."""
    return f"convoy {known(switch)}"
