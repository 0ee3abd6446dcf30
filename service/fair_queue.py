"""Divides a queue fairly among its clients, with start-time fair queueing.

    client ── its line ─┐
    client ── its line ─┴─ the line with the least service is next

A line is the list of one client's waiting entries. The caller sorts each line. A line's service is
the total cost of its served entries, divided by the client's weight. The virtual clock is the
service of the line that was served last (Goyal, Vin and Cheng 1996, section 2). The service of a
new line starts at the clock's value. So a client gains nothing by pausing, and a client that was
just served waits for the other clients.

When a new line is served for the first time, the clock also advances by the cost of the served
entries, divided by the total weight of the waiting lines. Otherwise, many clients that send one
request each could keep another client waiting forever.

- While two clients both have waiting entries, the services of their lines differ by at most
  c₁/w₁ + c₂/w₂, where c is the largest cost of a client's entry and w is the client's weight.
- A new line waits for at most one entry of each other client.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import count
from math import ceil, inf
from typing import Generic, NamedTuple, TypeVar

E = TypeVar("E")

# Lines that no longer wait are deleted once the number of lines has doubled since the last
# deletion. This is the least number for a deletion.
_FEW_LINES = 16


class Right(Enum):
    """The rights that the API key file can give a client, in addition to sending requests to
    models."""

    REPOSITORY = "repository"
    SHARED_MEMORY = "shared-memory"


class Client(NamedTuple):
    """Identifies a client by its API key, or by its address if it has no key."""

    name: str = ""
    weight: float = 1.0  # its share relative to other clients
    highest_priority: int = 1
    rights: frozenset[Right] = frozenset(Right)


ANYONE = Client()


class Line(Generic[E]):
    """Holds the waiting entries of one client."""

    __slots__ = ("client", "entries", "fresh", "key", "level", "service", "since", "size")

    def __init__(self, client: Client, service: float) -> None:
        self.client = client
        self.entries: list[E] = []  # the next first
        self.size = 0.0  # the cost of all entries; set by the owner
        self.service = service  # divided by weight, on the clock of all lines
        self.level = 0  # the level of the first entry
        self.since = 0.0  # when it last had a turn, in the owner's seconds
        self.fresh = True  # it has had no turn since it formed
        self.key: tuple[float, bool, int] | None = None  # its place in its level, while it has one


_Place = tuple[float, bool, int, Line[E]]  # of equal service, those that just formed go first


class FairQueue(Generic[E]):
    """A queue with one line of entries per client. Lines also have levels. A line's level is the
    priority of its first entry, which the caller passes to `place`."""

    def __init__(self, due: Callable[[Line[E]], float] = lambda line: line.level) -> None:
        """Create an empty queue. If lines of several levels wait, the line with the lowest
        `due(line)` is served first. By default, `due` returns the line's level."""
        self._due = due
        self._lines: dict[str, Line[E]] = {}
        self._levels: dict[int, list[_Place[E]]] = {}  # each by service
        self._clock = 0.0
        self._weight = 0.0  # of the lines that wait
        self._numbers = count()
        self._most_lines = _FEW_LINES

    def __bool__(self) -> bool:
        return bool(self._levels)

    def size(self, client: Client) -> float:
        """Return the cost of a client's waiting entries, or 0 if the client has no line."""
        line = self._lines.get(client.name)
        return line.size if line else 0.0

    def lines(self) -> Iterator[Line[E]]:
        """Yield the lines that have waiting entries, in any order."""
        for level in self._levels.values():
            for *_, line in level:
                yield line

    def line(self, client: Client) -> Line[E]:
        """Return a client's line. Create it if the client has none. The caller adds entries to the
        line and then calls `place`."""
        line = self._lines.get(client.name)
        if line is None:
            if len(self._lines) >= self._most_lines:
                self._forget()
            line = self._lines[client.name] = Line(client, self._clock)
        return line

    def ahead(self, client: Client, own: float) -> Iterator[tuple[Line[E], float]]:
        """Estimate which entries of other clients are served before a new entry of `client`. Yield
        the line of each such client, and the cost of these entries. `own` is the cost of the
        entries of `client` that already wait.

        The estimated cost may exceed the cost of all entries in the line.
        """
        known = self._lines.get(client.name)
        begins = max(known.service, self._clock) if known else self._clock
        for line in self.lines():
            share = (begins + own / client.weight - line.service) * line.client.weight
            if line is not known and share > 0:
                yield line, share

    def place(self, line: Line[E], level: int = 0) -> None:
        """Update a line's position in the queue after its entries have changed. Remove the line if
        it has no entries. `level` is the priority of its first entry."""
        waited = line.key is not None
        if line.key is not None:
            places = self._levels[line.level]
            del places[bisect_left(places, line.key)]
            if not places:
                del self._levels[line.level]
            line.key = None
        if line.entries:
            if not waited:
                line.service, line.fresh = max(line.service, self._clock), True
                self._weight += line.client.weight
            line.level = level
            line.key = (line.service, not line.fresh, next(self._numbers))
            insort(self._levels.setdefault(level, []), (*line.key, line))
        elif waited:
            self._weight -= line.client.weight
            if not self._levels:  # no line waits: all begin anew
                self._lines.clear()
                self._clock = self._weight = 0.0

    def next(self) -> tuple[Line[E], float]:
        """Return the line to serve next, and the cost of the entries to serve from it before `next`
        is called again.

        If only one line waits, the cost is infinite. If the lines have different levels, the cost
        is 1. Otherwise, the cost is at least 1, and large enough to raise the line's service to the
        service of the line after it.
        """
        if len(self._levels) == 1:
            (places,) = self._levels.values()
            line = places[0][-1]
            if len(places) == 1:
                return line, inf
            return line, max(1.0, ceil((places[1][0] - line.service) * line.client.weight))
        return min((places[0][-1] for places in self._levels.values()), key=self._due), 1.0

    def served(self, line: Line[E], cost: float, entries: int = 1) -> None:
        """Add the cost of served entries to the line's service. The caller must then call `place`.

        `entries` is the number of served entries, which have equal costs. The virtual clock
        advances at least to the line's service before its last served entry. So if a new line
        starts now, this line is at most one entry ahead of it.
        """
        passed = cost / (self._weight + 1.0) if line.fresh else 0.0
        last = cost / entries
        begun = line.service + (cost - last) / line.client.weight
        self._clock, line.fresh = max(self._clock + passed, begun), False
        line.service += cost / line.client.weight

    def copy(self) -> "FairQueue[E]":
        """Return a copy of the queue. A caller can empty the copy to see the order of the
        entries."""
        other: FairQueue[E] = FairQueue(self._due)
        other._clock, other._weight, other._numbers = self._clock, self._weight, self._numbers
        for line in self.lines():
            twin = other._lines[line.client.name] = Line(line.client, line.service)
            twin.entries, twin.size = [*line.entries], line.size
            twin.level, twin.since, twin.key = line.level, line.since, line.key
            twin.fresh = line.fresh
        for level, places in self._levels.items():
            other._levels[level] = [
                (*place[:-1], other._lines[place[-1].client.name]) for place in places
            ]
        return other

    def _forget(self) -> None:
        """Delete the lines that have no entries and whose service is not above the clock. If their
        clients come back, new lines get the same service."""
        lines = self._lines.values()
        kept = [line for line in lines if line.key is not None or line.service > self._clock]
        self._lines = {line.client.name: line for line in kept}
        self._most_lines = max(_FEW_LINES, 2 * len(kept))
