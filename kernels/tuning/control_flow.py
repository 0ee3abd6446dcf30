"""Finds the loops of machine code, and the path that a warp usually takes through them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernels.device.machine_code import Instruction

Weight = tuple[int, ...]
"""An instruction's weight. Sums of weights are compared by the first number, and if these are
equal, by the next."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop in machine code: the instructions with the indices `first` to `last`. The last
    instruction branches back to the first."""

    first: int
    last: int

    def holds(self, index: int) -> bool:
        """Return whether instruction `index` is in the loop."""
        return self.first <= index <= self.last


def loops(code: Sequence[Instruction]) -> list[Loop]:
    """Return the loops of the code. A loop ends with a branch back to an instruction that dominates
    the branch.

    A backward branch across an unconditional EXIT is no loop. The compiler moves rare code behind
    the kernel's end, and such a branch only leads back from there.
    """
    ends = [
        i
        for i, instruction in enumerate(code)
        if instruction.base == "EXIT" and not instruction.predicate
    ]
    found = [
        Loop(instruction.target, i)
        for i, instruction in enumerate(code)
        if instruction.target is not None and instruction.target < i
    ]
    inside = [loop for loop in found if not any(map(loop.holds, ends))]
    return [loop for loop in inside if loop.last not in _reached(code, without=loop.first)]


def outermost(found: Sequence[Loop]) -> list[Loop]:
    """Return the loops that do not lie inside another loop of `found`."""

    def within(loop: Loop, other: Loop) -> bool:
        return loop != other and other.holds(loop.first) and other.holds(loop.last)

    return [loop for loop in found if not any(within(loop, other) for other in found)]


def _reached(code: Sequence[Instruction], without: int) -> set[int]:
    """Return the instructions that a warp can reach from the kernel's start without executing the
    instruction `without`."""
    reached, ahead = {without}, [0]
    while ahead:
        i = ahead.pop()
        if i not in reached and i < len(code):
            reached.add(i)
            target = code[i].target
            ahead += [*_next(code, i), *([] if target is None else [target])]
    return reached


def path(
    code: Sequence[Instruction],
    loop: Loop,
    weight: Callable[[int], Weight],
    *,
    leaving: bool = False,
) -> list[int]:
    """Return the path with the largest weight from a loop's first to its last instruction. Each
    inner loop on the path runs once.

    The weight of a path is the sum of the weights of its instructions. `weight` returns the weight
    of the instruction with a given index. If `leaving`, a path may also end at any EXIT.
    """
    best: dict[int, tuple[Weight, int | None]] = {}
    for i in range(loop.last, loop.first - 1, -1):
        own = weight(i)
        ways: list[tuple[Weight, int | None]] = []
        if i == loop.last or (leaving and code[i].base == "EXIT"):
            ways = [((0,) * len(own), None)]
        if i < loop.last:
            ways += [(best[j][0], j) for j in _next(code, i) if j in best]
        if ways:
            after, j = max(ways, key=lambda way: way[0])
            best[i] = (tuple(map(sum, zip(own, after, strict=True))), j)
    taken: list[int] = []
    at: int | None = loop.first if loop.first in best else None
    while at is not None:
        taken.append(at)
        at = best[at][1]
    return taken


def leading_to(
    code: Sequence[Instruction], loop: Loop, wanted: Callable[[Instruction], bool]
) -> set[int]:
    """Return the wanted instructions of a loop, and all instructions from which a warp can reach a
    wanted instruction in the same iteration."""
    found: set[int] = set()
    for i in range(loop.last, loop.first - 1, -1):
        if wanted(code[i]) or not found.isdisjoint(_next(code, i)):
            found.add(i)
    return found


def _next(code: Sequence[Instruction], i: int) -> list[int]:
    """Return the later instructions that a warp may execute directly after instruction i. The lanes
    of a warp are assumed not to diverge, so that BRA.DIV does not branch."""
    instruction = code[i]
    ahead = [i + 1]
    if instruction.target is not None and ".DIV" not in instruction.opcode:
        conditional = instruction.predicate or instruction.operands.startswith(
            ("P", "!P", "UP", "!UP")
        )
        return (ahead if conditional else []) + [j for j in (instruction.target,) if j > i]
    return [] if instruction.base == "EXIT" and not instruction.predicate else ahead
