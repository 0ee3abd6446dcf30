"""What the machine code of a kernel says about its speed, without a GPU.

    Cubin ─ disassemble ─ loops ─┬─ the loop that multiplies ─┐
                                 └─ the loop of data warps ───┴─ usual paths ─ StaticProfile

A scheduler issues one instruction of a warp per cycle, so each that multiplies nothing costs a
share of the peak. Counted is the usual path of a loop: the one that copies 16 bytes at a time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernels.device.compile import Cubin
from kernels.device.device import Instantiation
from kernels.device.machine_code import WORD, Instruction, disassemble

SCHEDULERS = 4
"""Of a multiprocessor; warp w is scheduler w % 4's (assumed, for NVIDIA does not say)."""

SHARED_BYTES = {"80": 164 << 10, "90a": 228 << 10}
"""Of a multiprocessor, by architecture: those that can be profiled."""

_REGISTERS, _WARPS, _BLOCKS = 65536, 64, 32  # of a multiprocessor of either
_RESERVED = 1 << 10  # bytes of shared memory that each block takes besides its own

_CLASSES = {
    "FFMA": "FFMA",
    **dict.fromkeys(("HMMA", "IMMA", "HGMMA"), "tensor"),
    **dict.fromkeys(("LDSM", "STS", "LDGSTS", "LDG", "STG"), ""),
    **dict.fromkeys(("FADD", "FMUL", "FSEL", "FMNMX", "FSETP", "MUFU", "F2FP", "HFMA2"), "float"),
    **dict.fromkeys(("MOV", "SEL", "PRMT", "CS2R", "S2R"), "move"),
    **dict.fromkeys(("BRA", "EXIT", "CALL", "RET", "NOP", "BREAK", "YIELD"), "branch"),
    **dict.fromkeys(
        ("BAR", "WARPSYNC", "DEPBAR", "LDGDEPBAR", "BSYNC", "BSSY", "BMOV", "MEMBAR"), "sync"
    ),
}
_MULTIPLIES = ("FFMA", "tensor")
_SLOW_COPY = "LDGSTS.narrow"


def kind(instruction: Instruction) -> str:
    """The class of an instruction: "FFMA", "LDS.128", "integer"."""
    base, opcode = instruction.base, instruction.opcode
    if base == "LDS":
        if instruction.predicate == "@!PT":
            return "LDS.none"  # never executed: ptxas writes them before barriers
        return next((f"LDS.{w}" for w in (128, 64) if f".{w}" in opcode), "LDS.32")
    if base == "LDGSTS":
        return "LDGSTS" if ".128" in opcode else _SLOW_COPY
    if ".MOV" in opcode:
        return "move"
    if base.startswith("U") or base == "R2UR":
        return "uniform"
    return _CLASSES.get(base, "integer") or base


@dataclass(frozen=True, slots=True)
class Loop:
    """Instructions `first` to `last`, which is the branch back."""

    first: int
    last: int

    def holds(self, index: int) -> bool:
        """Whether the instruction is in it."""
        return self.first <= index <= self.last


@dataclass(frozen=True, slots=True)
class StaticProfile:
    """What can be counted. The ceiling is of the peak rate of fp32 multiply-adds."""

    registers: int
    blocks: int  # on a multiprocessor, by registers, warps and shared memory; 0 if none fits
    code_bytes: int
    before_copy: int  # instructions on the way to the first copy or load of 16 bytes
    waits: int  # of these, for results whose time is not fixed
    loop: Counter[str] = field(default_factory=Counter)  # of a turn of a multiplying warp
    data_loop: Counter[str] = field(default_factory=Counter)  # of a turn of a data warp
    ceiling: float | None = (
        None  # of the busiest scheduler; None without FFMA, or where nothing fits
    )

    @property
    def share(self) -> float | None:
        """Of instructions that multiply, among the multiplying warps'."""
        return _multiplications(self.loop) / self.loop.total() if self.loop else None


def static_profile(
    instantiation: Instantiation, arch: str, cubin: Cubin, threads: int, shared_bytes: int
) -> StaticProfile:
    """The profile of a kernel launched with blocks of so many threads and dynamic shared bytes.

    `cubin` is for `arch`, one of SHARED_BYTES. Raises DisassemblerNotFoundError.
    """
    code = disassemble(cubin)
    resources = cubin.resources
    shared = resources.static_shared + shared_bytes
    blocks = resident(resources.registers, threads, shared, SHARED_BYTES[arch])
    first = next((i for i, each in enumerate(code) if _copies(each)), None)
    start = Loop(0, first or 0)
    way = usual_path(code, start) if first else []
    profile = StaticProfile(
        resources.registers, blocks, len(code) * WORD, len(way), sum(code[i].waits for i in way)
    )
    hot = hot_loop(code)
    if hot is None:
        return profile
    trips, data_warps, products = _winograd_trips(instantiation)
    loop = turn(code, hot, trips)
    data = turn(code, _data_loop(code, hot), trips) if data_warps else Counter[str]()
    profile = replace(profile, loop=loop, data_loop=data)
    if not blocks or not loop["FFMA"]:
        return profile
    # A turn of theirs is one chunk, of those that multiply perhaps several.
    chunks = loop["FFMA"] // products if data_warps else 1
    meanwhile = Counter({name: chunks * count for name, count in data.items()})
    warps = [loop] * (threads // 32 - data_warps), [meanwhile] * data_warps
    return replace(profile, ceiling=ceiling(*warps, blocks))


def _winograd_trips(instantiation: Instantiation) -> tuple[Mapping[str, int], int, int]:
    """How often winograd.cu's inner loops run, by what only they have; how many warps copy x; and
    how many products a thread sums in a chunk.

    Those loops end where template arguments say; other kernels' depend on the problem.
    """
    template = {name: each for name, each in instantiation.arguments if isinstance(each, int)}
    if "data_warps" not in template:
        return {}, 0, 0
    bm, bn, bc, tm, tn, data_warps = (
        template[name] for name in ("bm", "bn", "bc", "tm", "tn", "data_warps")
    )
    apart = (bm // tm) * (bn // tn) // (bn // 4)
    trips = {"STS": bm // data_warps * bc // 32, "LDGSTS": bc // apart}
    return trips, data_warps, tm * tn * bc


def resident(registers: int, threads: int, shared_bytes: int, room: int) -> int:
    """Blocks that fit on a multiprocessor with `room` bytes of shared memory.

    Registers are given to whole warps, 8 a thread at a time.
    """
    warps = -(-threads // 32)
    of_warp = -(-registers // 8) * 8 * 32
    by_registers = _REGISTERS // SCHEDULERS // of_warp * SCHEDULERS // warps
    return min(by_registers, room // (shared_bytes + _RESERVED), _WARPS // warps, _BLOCKS)


def ceiling(
    multiply: Sequence[Counter[str]], others: Sequence[Counter[str]], blocks: int = 1
) -> float:
    """The share of the peak that the busiest scheduler leaves, warps being dealt out in turn.

    What `others` multiply is not of the convolution.
    """
    issued = [0] * SCHEDULERS
    for number, each in enumerate([*multiply, *others] * blocks):
        issued[number % SCHEDULERS] += each.total()
    return blocks * sum(each["FFMA"] for each in multiply) / SCHEDULERS / max(issued)


def _multiplications(turn: Mapping[str, int]) -> int:
    return sum(turn.get(each, 0) for each in _MULTIPLIES)


def _copies(instruction: Instruction) -> bool:
    return instruction.base in ("LDGSTS", "LDG") and ".128" in instruction.opcode


# Loops


def loops(code: Sequence[Instruction]) -> list[Loop]:
    """Every branch back, but those over the kernel's end: they return from code out of line."""
    ends = [i for i, each in enumerate(code) if each.base == "EXIT" and not each.predicate]
    found = [
        Loop(each.target, i)
        for i, each in enumerate(code)
        if each.target is not None and each.target < i
    ]
    return [loop for loop in found if not any(map(loop.holds, ends))]


def hot_loop(code: Sequence[Instruction]) -> Loop | None:
    """The loop that multiplies most what it loads, with all around it that neither stores nor
    activates.
    """

    def multiplied(loop: Loop) -> int:
        inside = code[loop.first : loop.last + 1]
        bases = {each.base for each in inside}
        if bases & {"STG", "MUFU"} or not bases & {"LDS", "LDSM", "LDG"}:
            return 0
        return sum(kind(each) in _MULTIPLIES for each in inside)

    found = max(
        loops(code), key=lambda loop: (multiplied(loop), loop.last - loop.first), default=None
    )
    return found if found and multiplied(found) else None


def turn(code: Sequence[Instruction], loop: Loop, trips: Mapping[str, int]) -> Counter[str]:
    """Instructions of a usual turn by class; a loop inside runs once, or as `trips` says.

    `trips` is by an opcode that the loops inside have.
    """
    inner = [each for each in loops(code) if loop.holds(each.first) and each != loop]
    times = [(each, trips[base]) for each in inner for base in trips if base in _bases(code, each)]
    counted: Counter[str] = Counter()
    for i in usual_path(code, loop):
        counted[kind(code[i])] += max((n for each, n in times if each.holds(i)), default=1)
    return counted


def _data_loop(code: Sequence[Instruction], hot: Loop) -> Loop:
    """That of the warps that copy and transform: the widest beside the one that multiplies."""
    beside = [
        loop
        for loop in loops(code)
        if not hot.holds(loop.first)
        and not loop.holds(hot.first)
        and _bases(code, loop) >= {"LDGSTS", "STS"}
        and "STG" not in _bases(code, loop)
    ]
    return max(beside, key=lambda loop: loop.last - loop.first)


def _bases(code: Sequence[Instruction], loop: Loop) -> set[str]:
    return {each.base for each in code[loop.first : loop.last + 1]}


# Paths

_Weight = tuple[int, ...]


def usual_path(code: Sequence[Instruction], loop: Loop) -> list[int]:
    """The instructions of one turn that copies, where it has the choice, 16 bytes at a time.

    Of all ways from the first to the last instruction, loops inside taken once: the one with the
    fewest narrow copies, then the most multiplications, wide copies, accesses to shared memory and
    barriers, then the fewest instructions.
    """
    best: dict[int, tuple[_Weight, int | None]] = {}
    for i in range(loop.last, loop.first - 1, -1):
        own = _weight(code[i])
        if i == loop.last:
            best[i] = (own, None)
            continue
        ways = [(best[j][0], j) for j in _next(code, i) if j in best]
        if ways:
            after, j = max(ways)
            best[i] = (tuple(map(sum, zip(own, after, strict=True))), j)
    path: list[int] = []
    at: int | None = loop.first if loop.first in best else None
    while at is not None:
        path.append(at)
        at = best[at][1]
    return path


def _weight(instruction: Instruction) -> _Weight:
    is_of = kind(instruction)
    return (
        -(is_of == _SLOW_COPY),
        is_of in _MULTIPLIES,
        _copies(instruction),
        is_of.startswith(("LDS.1", "LDS.6", "LDS.3", "STS")),
        instruction.base in ("BAR", "DEPBAR"),
        -1,
    )


def _next(code: Sequence[Instruction], i: int) -> list[int]:
    """Where the warp may go on, but back. BRA.DIV is taken where lanes have parted: never, here."""
    each = code[i]
    ahead = [i + 1]
    if each.target is not None and ".DIV" not in each.opcode:
        conditional = each.predicate or each.operands.startswith(("P", "!P", "UP", "!UP"))
        return (ahead if conditional else []) + [j for j in (each.target,) if j > i]
    return [] if each.base == "EXIT" and not each.predicate else ahead
