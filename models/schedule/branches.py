"""Decides which steps of a plan (kernel launches) may run in parallel, and on how many CUDA
streams.

    accesses ─ dependencies ─┬─ all_before ─ windows: when each step may run, for the arena
                             └─ streams: one stream per step ─ dependents: which may begin early

A step depends on an earlier step if one of them writes bytes that the other reads or writes. Steps
that write disjoint channels of each pixel, such as the inputs of a Concat, are independent.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

After = tuple[frozenset[int], ...]
"""For each step, the earlier steps on which it directly depends."""


@dataclass(frozen=True, slots=True)
class Part:
    """Selects some bytes of a buffer: in every `pitch` bytes, the bytes from `begin` to `end`.

    If `pitch` is 0, the whole buffer is selected.
    """

    root: str
    begin: int = 0
    end: int = 0
    pitch: int = 0

    def meets(self, other: "Part") -> bool:
        """Return whether the two selections may have bytes in common."""
        if self.root != other.root:
            return False
        alike = self.pitch == other.pitch != 0
        return not alike or (self.begin < other.end and other.begin < self.end)


@dataclass(frozen=True, slots=True)
class Access:
    """Lists the memory that a step reads and writes."""

    reads: frozenset[Part]
    writes: frozenset[Part]


def in_order(count: int) -> After:
    """Return the predecessors of each step, for `count` steps that run one after another."""
    return tuple(frozenset({step - 1} if step else ()) for step in range(count))


def dependencies(accesses: Sequence[Access]) -> After:
    """Return the steps that each step must wait for. A step that another of these steps must wait
    for is left out.

    The first step precedes all other steps, because the streams fork after it. The last step
    follows all other steps.
    """
    touched: dict[str, list[tuple[int, Part, bool]]] = {}
    before: list[set[int]] = []
    for step, access in enumerate(accesses):
        parts = [(part, False) for part in access.reads] + [(part, True) for part in access.writes]
        before.append(
            {
                other
                for part, writes in parts
                for other, theirs, wrote in touched.get(part.root, ())
                if (writes or wrote) and part.meets(theirs)
            }
        )
        for part, writes in parts:
            touched.setdefault(part.root, []).append((step, part, writes))
    for after in before[1:]:
        if not after:
            after.add(0)
    if before:
        before[-1] |= set(range(len(before) - 1)) - set().union(*before)
    return _reduced(before)


def _reduced(before: Sequence[Collection[int]]) -> After:
    """Remove the redundant predecessors of each step. A predecessor is redundant if another
    predecessor of the step has to wait for it."""
    ancestors: list[int] = []  # bit sets of steps
    result = []
    for after in before:
        covered, direct = 0, set()
        for other in sorted(after, reverse=True):
            if not covered >> other & 1:
                direct.add(other)
            covered |= ancestors[other] | 1 << other
        ancestors.append(covered)
        result.append(frozenset(direct))
    return tuple(result)


def all_before(after: After) -> list[int]:
    """Return, for each step, a bit set of all steps that must end before it begins."""
    ancestors = [0] * len(after)
    for step, awaited in enumerate(after):
        for other in awaited:
            ancestors[step] |= ancestors[other] | 1 << other
    return ancestors


def windows(before: Sequence[int]) -> list[tuple[int, int]]:
    """For each step, return the first and the last position that it can have in any allowed order.

    `before` is the result of `all_before`. If the ranges of two steps do not overlap, the step with
    the earlier range always ends before the other step begins.
    """
    behind = [sum(steps >> step & 1 for steps in before) for step in range(len(before))]
    last = len(before) - 1
    return [(steps.bit_count(), last - n) for steps, n in zip(before, behind, strict=True)]


def streams(after: After) -> list[int]:
    """Assign each step to a CUDA stream. The first and last steps are on stream 0.

    A step shares a stream with earlier steps only if it must follow the last of them anyway.
    Otherwise, it gets a new stream. Therefore sharing a stream adds no waiting time.
    """
    last: list[int] = []  # the last step of each stream
    chosen = []
    for step, (waits, before) in enumerate(zip(after, all_before(after), strict=True)):
        free = [stream for stream, other in enumerate(last) if before >> other & 1]
        direct = [stream for stream in free if last[stream] in waits]
        waits_for_all = step == len(after) - 1
        stream = 0 if waits_for_all else (direct or free or [len(last)])[0]
        if stream == len(last):
            last.append(step)
        last[stream] = step
        chosen.append(stream)
    return chosen


def dependents(after: After) -> list[bool]:
    """For each step, return whether it depends only on the previous step on its stream.

    The launch of such a step may begin before the previous launch has ended
    (kernels/src/dependent.cuh).
    """
    last: dict[int, int] = {}
    result = []
    for step, stream in enumerate(streams(after)):
        result.append(stream in last and after[step] == {last[stream]})
        last[stream] = step
    return result
