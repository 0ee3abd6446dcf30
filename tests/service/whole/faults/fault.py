"""Defines a fault: how it is injected, and the outcomes of the requests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.service.whole.faults.rig import Rig

Counted = Mapping[str, int]
"""The counts of requests to models, by status, that the server must report.

ANY stands for a request that may end in several ways.
"""

ANY = "any"

Inject = Callable[[Rig], Counted]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that can be injected."""

    name: str
    seen: str  # the effect that the client sees
    inject: Inject
    options: tuple[str, ...] = ()  # of a separate server; faults without options share one server
    ends: bool = False  # whether the fault ends the server


Faults = dict[str, Fault]


def collector(
    faults: Faults,
) -> Callable[..., Callable[[Inject], Inject]]:
    """Return a decorator that adds a fault."""

    def fault(
        name: str, seen: str, *options: str, ends: bool = False
    ) -> Callable[[Inject], Inject]:
        def add(inject: Inject) -> Inject:
            assert name not in faults
            faults[name] = Fault(name, seen, inject, options, ends)
            return inject

        return add

    return fault
