"""Finds instructions in PTX that access registers of an unfinished wgmma. All paths through a
kernel are followed.

    python -m tests.support.kernels.ptx    # the compiler's version, and the accesses by kernel

PTX ISA, 9.7.15: until a program has waited for a wgmma, no other instruction may access the wgmma's
sums or the registers of A. Only another wgmma may add to the same sums. The compiler does not know
this rule. An addition that follows a wait in the source depends only on the sums, so the compiler
could move it before the wait.

The age of a wgmma is 0 until it is committed. Then its age is the number of groups committed since,
including its own group. A wait for all but N groups ends each wgmma that is older than N. Each
register has the smallest age that it may have on any path to an instruction. Where paths meet, the
smaller age counts. Ages do not grow beyond the largest N, so the analysis of loops ends.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kernels.device import nvrtc
from kernels.device.compile import FLAGS
from kernels.device.device import SOURCE_ROOT, Instantiation

ARCHITECTURE: Final = "90a"
"""The only architecture that has wgmma."""

Ages = dict[str, int]
"""The registers that an unfinished wgmma uses, each with the age of the wgmma."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """Holds one instruction, and the indices of the instructions that may follow it."""

    text: str
    opcode: str
    operands: str
    guarded: bool  # by a predicate
    next: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Touch:
    """Holds an instruction that accesses registers of an unfinished wgmma."""

    instruction: str
    registers: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.registers)} in: {self.instruction}"


def made(instantiation: Instantiation, root: Path = SOURCE_ROOT) -> nvrtc.CompilerOutput:
    """Return the compiler's complete output for a kernel on Hopper."""
    headers = {path.name: path.read_text(encoding="utf-8") for path in root.glob("*.cuh")}
    source = (root / instantiation.source).read_text(encoding="utf-8")
    options = (f"--gpu-architecture=sm_{ARCHITECTURE}", *FLAGS, *instantiation.macros)
    return nvrtc.compile_program(
        source, instantiation.source, instantiation.expression, headers, options
    )


def compiled(instantiation: Instantiation, root: Path = SOURCE_ROOT) -> str:
    """Return the PTX of a kernel on Hopper."""
    return made(instantiation, root).ptx


def touches(ptx: str) -> list[Touch]:
    """Return the instructions that access the sums or the A registers of an unfinished wgmma. Also
    return instructions that end the kernel before the wgmma has ended."""
    code = instructions(ptx)
    oldest = 1 + max((_pending(each) for each in code if _is(each, "wait_group")), default=0)
    before: dict[int, Ages] = {0: {}}
    waiting = [0]
    while waiting:
        at = waiting.pop()
        after = _after(code[at], before[at], oldest)
        for target in code[at].next:
            known = before.get(target)
            merged = after if known is None else _least(known, after)
            if merged != known:
                before[target] = merged
                waiting.append(target)
    found = ((each, _touched(each, before.get(at, {}))) for at, each in enumerate(code))
    return [Touch(each.text, registers) for each, registers in found if registers]


def _after(instruction: Instruction, ages: Ages, oldest: int) -> Ages:
    if _is(instruction, "mma_async"):
        return ages | dict.fromkeys((*_sums(instruction), *_factors(instruction)), 0)
    if _is(instruction, "commit_group"):
        return {register: min(age + 1, oldest) for register, age in ages.items()}
    if _is(instruction, "wait_group"):
        pending = _pending(instruction)
        return {register: age for register, age in ages.items() if age <= pending}
    return ages


def _least(one: Ages, other: Ages) -> Ages:
    return {
        register: min(ages[register] for ages in (one, other) if register in ages)
        for register in one.keys() | other.keys()
    }


def _touched(instruction: Instruction, ages: Ages) -> tuple[str, ...]:
    if instruction.opcode in ("ret", "exit"):
        return tuple(sorted(ages))
    registers = set(_registers(instruction.operands))
    if _is(instruction, "mma_async"):
        # It may add to unfinished sums, and read the same factors again.
        registers -= {*_sums(instruction), *_factors(instruction)}
    return tuple(sorted(registers & ages.keys()))


def _is(instruction: Instruction, what: str) -> bool:
    return instruction.opcode.startswith(f"wgmma.{what}.")


def _pending(instruction: Instruction) -> int:
    return int(instruction.operands)


def _registers(operands: str) -> Iterator[str]:
    return (found[0] for found in re.finditer(r"%[a-z]+\d+", operands))


def _sums(instruction: Instruction) -> tuple[str, ...]:
    return tuple(_registers(instruction.operands.partition("}")[0]))


def _factors(instruction: Instruction) -> tuple[str, ...]:
    """Return the registers that contain A. If A is in shared memory, there are none."""
    behind = instruction.operands.partition("}")[2].lstrip(", ")
    return tuple(_registers(behind.partition("}")[0])) if behind.startswith("{") else ()


# Reading


@dataclass(frozen=True, slots=True)
class _Scope:
    number: int
    outer: "_Scope | None"


def instructions(ptx: str) -> list[Instruction]:
    """Return the instructions of the only function. Each has the indices of its possible
    successors. Raises ValueError for unsupported instructions: calls, branch tables, guarded
    wgmma."""
    statements: list[tuple[str, _Scope]] = []
    labels: dict[tuple[int, str], int] = {}
    scope, scopes = _Scope(0, None), 1
    for text in _statements(ptx):
        if text == "{":
            scope, scopes = _Scope(scopes, scope), scopes + 1
        elif text == "}":
            if scope.outer is None:
                raise ValueError("PTX has a brace too many")
            scope = scope.outer
        elif text.endswith(":"):
            labels[scope.number, text[:-1]] = len(statements)
        elif not text.startswith("."):
            statements.append((text, scope))
    return [
        _instruction(text, at, len(statements), scope, labels)
        for at, (text, scope) in enumerate(statements)
    ]


_TOKEN = re.compile(r"\s*(?:([{}])|([\w$]+:(?!:))|([^;]+);)")


def _statements(ptx: str) -> Iterator[str]:
    """Yield the parts of the function's body: braces, labels with their colon, and statements
    without their semicolon."""
    lines = [line.partition("//")[0] for line in ptx.splitlines()]
    if len(bodies := [i for i, line in enumerate(lines) if line.rstrip() == "{"]) != 1:
        raise ValueError(f"PTX of {len(bodies)} functions instead of one")
    end = next(i for i in range(bodies[0], len(lines)) if lines[i].rstrip() == "}")
    body = "\n".join(
        line for line in lines[bodies[0] + 1 : end] if not line.lstrip().startswith(".loc")
    )
    at = 0
    while body[at:].strip():
        token = _TOKEN.match(body, at)
        if token is None:
            raise ValueError(f"not understood in PTX: {body[at : at + 80]!r}")
        yield " ".join((token[1] or token[2] or token[3]).split())
        at = token.end()


def _instruction(
    text: str, at: int, count: int, scope: _Scope, labels: Mapping[tuple[int, str], int]
) -> Instruction:
    guard, opcode, operands = _PARTS.fullmatch(text).groups()  # type: ignore[union-attr]
    guarded, behind = guard is not None, (at + 1,) if at + 1 < count else ()
    if opcode.startswith(("call", "brx")) or (guarded and opcode.startswith("wgmma")):
        raise ValueError(f"not understood in PTX: {text}")
    if opcode.startswith("bra"):
        target = _target(operands, scope, labels)
        behind = (target, *behind) if guarded else (target,)
    elif opcode in ("ret", "exit", "trap"):
        behind = behind if guarded else ()
    return Instruction(text, opcode, operands, guarded, behind)


_PARTS = re.compile(r"(@!?[%\w]+ )?([\w.:]+) ?(.*)", re.DOTALL)


def _target(label: str, scope: _Scope | None, labels: Mapping[tuple[int, str], int]) -> int:
    while scope is not None:
        if (found := labels.get((scope.number, label))) is not None:
            return found
        scope = scope.outer
    raise ValueError(f"PTX has no label {label}")


# All kernels


def with_products(instantiations: Iterable[Instantiation]) -> list[Instantiation]:
    """Return the instantiations that use wgmma."""
    return [
        each
        for each in instantiations
        if each.source == "tma_gemm.cu" or dict(each.arguments).get("warpgroups") is True
    ]


def touches_of_all(instantiations: Iterable[Instantiation]) -> dict[str, list[str]]:
    """Return each kernel's accesses to registers that an unfinished wgmma uses. Raises ValueError
    if a kernel has no wgmma."""

    def found(instantiation: Instantiation) -> list[str]:
        ptx = compiled(instantiation)
        if "wgmma.mma_async" not in ptx:
            raise ValueError(f"{instantiation.expression} has no wgmma")
        return list(map(str, touches(ptx)))

    wanted = list(instantiations)
    with ThreadPoolExecutor() as pool:
        results = pool.map(found, wanted)
        return {each.expression: lines for each, lines in zip(wanted, results, strict=True)}


if __name__ == "__main__":
    from tests.support.cases import INSTANTIATIONS

    print(json.dumps([nvrtc.version(), touches_of_all(with_products(INSTANTIATIONS))]))
