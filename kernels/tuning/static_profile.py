"""Computes limits on a kernel's speed from its machine code, without a GPU.

    Cubin ─ disassemble ─ loops ─┬─ the loop that multiplies ─┐
                                 ├─ the loop of data warps ───┼─ usual paths ─ StaticProfile
                                 └─ what is before and after ─┘

A scheduler issues one instruction of a warp per cycle. Each instruction that does not multiply
therefore lowers the rate below the peak. Only the instructions on the usual path through a loop,
the path with the widest copies, are counted.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kernels.convolution.work import Trips
from kernels.device.compile import Cubin
from kernels.device.gpus import ARCHITECTURES
from kernels.device.machine_code import WORD, Instruction, disassemble
from kernels.tuning.control_flow import Loop, Weight, leading_to, loops, outermost, path

SCHEDULERS = 4
"""The schedulers of a multiprocessor. Warp w is assumed to run on scheduler w % 4, which NVIDIA
does not document."""

PROFILED = ("80", "90a")
"""The architectures whose machine code is profiled."""

_REGISTERS, _WARPS, _BLOCKS = 65536, 64, 32  # of a multiprocessor of either
_RESERVED = 1 << 10  # bytes of shared memory that each block takes besides its own

_CLASSES = {
    "FFMA": "FFMA",
    **dict.fromkeys(("HMMA", "IMMA"), "tensor"),
    **dict.fromkeys(("LDSM", "STS", "LDGSTS", "LDG", "LD", "STG", "ST"), ""),
    **dict.fromkeys(("FADD", "FMUL", "FSEL", "FMNMX", "FSETP", "MUFU", "F2FP"), "float"),
    **dict.fromkeys(("HADD2", "HFMA2"), "float"),  # HADD2 also makes floats of halves
    **dict.fromkeys(("MOV", "SEL", "PRMT", "CS2R", "S2R"), "move"),
    **dict.fromkeys(("BRA", "EXIT", "CALL", "RET", "NOP", "BREAK", "YIELD"), "branch"),
    **dict.fromkeys(
        ("BAR", "WARPSYNC", "DEPBAR", "LDGDEPBAR", "BSYNC", "BSSY", "BMOV", "MEMBAR"), "sync"
    ),
    **dict.fromkeys(("WARPGROUP", "FENCE"), "sync"),  # of wgmma
    **dict.fromkeys(("UCGABAR_ARV", "UCGABAR_WAIT"), "sync"),  # of clusters
    "SYNCS": "sync",  # mbarriers
    "UTMALDG": "",
    **dict.fromkeys(("IADD3", "IMAD", "IMNMX", "ISETP", "LEA", "LOP3", "PLOP3", "SHF"), "integer"),
    **dict.fromkeys(("VIADD", "VIADDMNMX", "VIMNMX", "F2I", "I2F", "I2FP", "FCHK"), "integer"),
    **dict.fromkeys(("P2R", "R2P", "S2UR", "LDC", "SHFL", "ELECT"), "integer"),
    **dict.fromkeys(("ATOMG", "CCTL", "ERRBAR", "CGAERRBAR"), "integer"),  # once, at a split's end
    **dict.fromkeys(("ACQBULK", "PREEXIT", "ENDCOLLECTIVE"), "integer"),  # of dependent launches
    **dict.fromkeys(("R2UR", "UIADD3", "UIMAD", "UISETP", "ULDC", "ULEA"), "uniform"),
    **dict.fromkeys(("ULOP3", "UMOV", "UPRMT", "USEL", "USHF", "VOTEU"), "uniform"),
}
"""The class of each opcode that kernels contain. If the class is empty, the opcode itself is the
class."""
_COLUMNS = (16, 32, 64, 112, 128)  # of a wgmma: filters, or, where its rows are those, pixels
_WGMMA = ("HGMMA", "IGMMA")  # of halves and TF32 numbers, and of bytes
_MULTIPLIES = {
    "FFMA": 1,
    "tensor": 4,
    **{f"{base}.{pixels}{n}": n // 2 for base in _WGMMA for n in _COLUMNS for pixels in ("", "R")},
}
"""The cycles of a scheduler for an instruction at an H100's peak rate: for 32 multiply-adds, or for
an mma of 2048 halves (1024 TF32 numbers, 4096 bytes) on a quarter of 989 (494, 1979) TFLOP/s at
1.83 GHz. A warp's part of a wgmma with 32, 64 or 128 columns takes 4, 8 or 16 times as long."""
_BY_TENSOR_CORES = _MULTIPLIES.keys() - {"FFMA"}
MMA = 1.6
"""The cycles of an mma divided by its cycles at the peak rate. mma.sync reaches 62% of an H100's
peak. wgmma is assumed to reach the peak until a GPU is measured. Shared memory is counted
separately."""
_SHARED = ("LDS.1", "LDS.6", "LDS.3", "STS")
_NARROW = "LDGSTS.narrow"
_BULK = "UTMALDG"  # a copy of a whole tile, by one thread

_WAVEFRONTS = {
    "LDS.64": 2,
    "LDS.32": 1,
    "LDSM": 4,
    "STS": 1,
    "STS.64": 2,
    "LDGSTS": 4,
    **{f"{base}.{n}": 4 + n // 16 for base in _WGMMA for n in _COLUMNS},
    **{f"{base}.R{n}": n // 16 for base in _WGMMA for n in _COLUMNS},
}
"""The cycles of shared memory, with 128 bytes each, for a warp's access without conflicts. For a
load of 16 bytes, the cycles depend on how many lanes load the same address. Narrow copies are rare.
A wgmma reads 32 bytes of each of 64 rows and of each column, and each of 4 warps has a quarter of
these cycles. With "R", the rows are in registers. It is assumed that each instruction reads rows
and columns once, which NVIDIA does not document."""


def kind(instruction: Instruction) -> str:
    """Return the class of an instruction, such as "FFMA", "LDS.128" or "integer".

    Raises LookupError for an opcode without a class, because a person must decide what the opcode
    costs.
    """
    base, opcode = instruction.base, instruction.opcode
    if base == "LDS":
        if instruction.predicate == "@!PT":
            return "LDS.none"  # never executed: ptxas writes them before barriers
        return next((f"LDS.{w}" for w in (128, 64) if f".{w}" in opcode), "LDS.32")
    if base == "STS" and ".64" in opcode:
        return "STS.64"
    if base == "LDGSTS":
        return "LDGSTS" if _wide(instruction) else _NARROW
    if base in _WGMMA:
        pixels = "R" if re.match(r"R\d+,R\d+,", instruction.operands) else ""
        return f"{base}.{pixels}{re.findall(r'x([0-9]+)x', opcode)[0]}"
    if ".MOV" in opcode:
        return "move"
    if base not in _CLASSES:
        raise LookupError(f"opcode {opcode} has no class in {__name__}; add it to a class")
    return _CLASSES[base] or base


@dataclass(frozen=True, slots=True)
class Stretch:
    """Counts the instructions of a part of the code, and the cycles in which a warp waits there."""

    instructions: int = 0
    stalls: int = 0  # cycles that the scheduler waits, in sum, before a warp's next instruction
    waits: int = 0  # instructions that wait for results whose time is not fixed


@dataclass(frozen=True, slots=True)
class StaticProfile:
    """Counts a kernel's instructions by part of the code.

    A thread executes these parts in order. `start` ends at the thread's first copy, and `fill` ends
    at the loop that multiplies. `loop` is one iteration of this loop. `finish` is the code after
    the loop. `vector` is the code that writes 4 outputs, and is repeated for all outputs of the
    thread. Without a loop that multiplies, `finish` follows `start`.
    """

    registers: int
    blocks: int  # on a multiprocessor, by registers, warps and shared memory; 0 if none fits
    warps: int  # of a block
    code_bytes: int
    start: Stretch = Stretch()
    fill: Stretch = Stretch()
    loop: Mapping[str, int] = field(default_factory=dict)  # of an iteration of a multiplying warp
    data_loop: Mapping[str, int] = field(default_factory=dict)  # of an iteration of a data warp
    data_warps: int = 0  # of a block
    finish: Stretch = Stretch()
    vector: Stretch = Stretch()
    load_wavefronts: float = 2  # of a load of 16 bytes: half a warp at once, or as simulated

    @property
    def products(self) -> int:
        """Return how many mma instructions a warp executes in one iteration of the loop. If there
        are none, return the number of FFMA instructions."""
        return self.loop.get(self._multiplies, 0)

    @property
    def _multiplies(self) -> str:
        return _multiplies(self.loop)

    @property
    def tensor_cycles(self) -> float:
        """Return the number of cycles in which one iteration of a warp occupies a tensor core."""
        return sum(
            _MULTIPLIES[name] * count * (MMA if name == "tensor" else 1)
            for name, count in self.loop.items()
            if name in _BY_TENSOR_CORES
        )

    @property
    def share(self) -> float | None:
        """Return the fraction of the loop's instructions that multiply, in the warps that multiply.
        Return None if no loop multiplies."""
        return self.products / sum(self.loop.values()) if self.loop else None

    @property
    def ceiling(self) -> float | None:
        """Return the fraction of the peak rate that the busiest scheduler can reach, or None if no
        block fits.

        Multiplications of warps that transform data do not count, because they are not products of
        the convolution.
        """
        return self._of_peak(self.busiest(self.blocks))

    @property
    def shared_ceiling(self) -> float | None:
        """Return the fraction of the peak rate that can be reached at the speed of shared memory,
        or None if the kernel does not access shared memory."""
        return self._of_peak(self.blocks * self.wavefronts)

    def busiest(self, blocks: int) -> int:
        """Return the number of instructions that the busiest scheduler issues in an iteration.
        Warps are assigned to schedulers round-robin."""
        issued = [0] * SCHEDULERS
        turns = [self.loop] * (self.warps - self.data_warps) + [self.data_loop] * self.data_warps
        for number, counts in enumerate(turns * blocks):
            issued[number % SCHEDULERS] += sum(counts.values())
        return max(issued)

    @property
    def wavefronts(self) -> float:
        """Return the number of shared-memory cycles in one iteration of a block."""
        cycles_of = {**_WAVEFRONTS, "LDS.128": self.load_wavefronts}
        multiplying, data = (
            sum(counts.get(name, 0) * cycles for name, cycles in cycles_of.items())
            for counts in (self.loop, self.data_loop)
        )
        written = self._copied_rows if _BULK in self.data_loop else 0
        return (self.warps - self.data_warps) * multiplying + self.data_warps * data + written

    @property
    def _copied_rows(self) -> int:
        """Return the number of rows of 128 bytes in a chunk: 16 rows per warp, plus the columns of
        wgmma."""
        columns = int(self._multiplies.partition(".")[2].lstrip("R"))
        return 16 * (self.warps - self.data_warps) + columns

    @property
    def wavefronts_a_product(self) -> float | None:
        """Return the number of shared-memory cycles per FFMA or mma instruction of a block. Return
        None if no loop multiplies."""
        multiplying = self.products * (self.warps - self.data_warps)
        return self.wavefronts / multiplying if multiplying else None

    def _of_peak(self, cycles: float) -> float | None:
        """Return a fraction of the peak rate: the cycles that an iteration's products take at the
        peak rate, divided by `cycles`. Return None if there are no products or no cycles."""
        of_warp = self.products * _MULTIPLIES[self._multiplies]
        at_peak = self.blocks * (self.warps - self.data_warps) * of_warp / SCHEDULERS
        return at_peak / cycles if at_peak and cycles else None


def _multiplies(loop: Mapping[str, int]) -> str:
    """Return the class of the instructions that compute a loop's products: a class of tensor-core
    instructions if the loop has any, and otherwise "FFMA"."""
    return next((name for name in loop if name in _BY_TENSOR_CORES), "FFMA")


def static_profile(
    cubin: Cubin, arch: str, threads: int, shared_bytes: int, trips: Trips
) -> StaticProfile:
    """Return the profile of a kernel launched with `threads` threads and `shared_bytes` of dynamic
    shared memory per block.

    `arch` is the cubin's architecture, one of PROFILED. Raises DisassemblerNotFoundError.
    """
    shared = cubin.resources.static_shared + shared_bytes
    blocks = resident(cubin.resources.registers, threads, shared, arch)
    return profile_of_code(disassemble(cubin), cubin.resources.registers, blocks, threads, trips)


def profile_of_code(
    code: Sequence[Instruction],
    registers: int,
    blocks: int,
    threads: int,
    trips: Trips,
) -> StaticProfile:
    """Return the profile of a kernel from its instructions. `blocks` blocks of `threads` threads
    are resident on a multiprocessor."""
    tiles = (i for i, instruction in enumerate(code) if instruction.base == _BULK)
    copies = (i for i, instruction in enumerate(code) if _copies(instruction))
    first = next(tiles, next(copies, 0))
    end = max(i for i, instruction in enumerate(code) if instruction.base == "EXIT")
    hot = hot_loop(code)
    loop, data, begin = Counter[str](), Counter[str](), first
    fill: list[int] = []
    if hot is not None:
        loop, begin = iteration(code, hot, trips.loop), hot.last + 1
        through = hot.first
        if trips.data_warps:
            # An iteration of theirs is one chunk, of those that multiply perhaps several.
            chunks = loop[_multiplies(loop)] // trips.products
            of_data = _data_loop(code, hot)
            of_chunk = iteration(code, of_data, trips.loop)
            data = Counter({name: chunks * count for name, count in of_chunk.items()})
            if _BULK in data:
                through = of_data.last  # for the first chunk that it copies the others wait
        if first < through:
            fill = path(code, Loop(first, through), lambda i: _weight_of_fill(code[i]))[:-1]
    rest = Loop(begin, end)
    split = leading_to(code, rest, _sums_parts)

    def finishing(i: int) -> Weight:
        return _weight_of_finish(code[i], i in split)

    ending = path(code, rest, finishing, leaving=True)
    writing = [loop for loop in loops(code) if any(map(loop.holds, ending)) and _writes(code, loop)]
    # A loop that is left in its middle goes on behind that, in all iterations but the last.
    in_loop = [i for loop in outermost(writing) for i in path(code, loop, finishing)]
    stores = max(1, sum(_stores(code[i]) for i in in_loop))
    again = _repeated(code, Loop(begin, end), trips.finish)
    ahead = [i for i in ending if not any(loop.holds(i) for loop in writing)]
    once = [i for i in ahead for _ in range(again(i))]
    return StaticProfile(
        registers,
        blocks,
        threads // 32,
        len(code) * WORD,
        _stretch(code, _usual(code, Loop(0, first)) if first else []),
        _stretch(code, fill),
        loop,
        data,
        trips.data_warps,
        _stretch(code, once),
        _stretch(code, in_loop, stores),
    )


def _usual(code: Sequence[Instruction], through: Loop) -> list[int]:
    """Return the path that a warp usually takes through a loop."""
    return path(code, through, lambda i: weight(code[i]))


def _stretch(code: Sequence[Instruction], taken: Sequence[int], times: int = 1) -> Stretch:
    return Stretch(
        round(len(taken) / times),
        round(sum(code[i].stall for i in taken) / times),
        round(sum(code[i].waits for i in taken) / times),
    )


def resident(registers: int, threads: int, shared_bytes: int, architecture: str) -> int:
    """Return how many blocks fit on a multiprocessor of one of the PROFILED architectures.

    Each warp gets registers for 32 threads, in steps of 8 registers per thread.
    """
    warps = -(-threads // 32)
    of_warp = -(-registers // 8) * 8 * 32
    by_registers = _REGISTERS // SCHEDULERS // of_warp * SCHEDULERS // warps
    room = ARCHITECTURES[architecture].shared_kb << 10
    return min(by_registers, room // (shared_bytes + _RESERVED), _WARPS // warps, _BLOCKS)


def _wide(instruction: Instruction) -> bool:
    """Return whether the instruction accesses 4 elements (floats or halves) at once."""
    return ".128" in instruction.opcode or ".64" in instruction.opcode


def _copies(instruction: Instruction) -> bool:
    return instruction.base in ("LDGSTS", "LDG") and _wide(instruction)


def _narrow(instruction: Instruction) -> bool:
    """Return whether the instruction copies fewer than 4 elements. An LDGSTS with a predicate does
    not count."""
    slow = instruction.base in ("LDGSTS", "LDG") and not _wide(instruction)
    return slow and not (instruction.base == "LDGSTS" and instruction.predicate)


def _stores(instruction: Instruction) -> bool:
    return instruction.base == "STG" and _wide(instruction)


def _sums_parts(instruction: Instruction) -> bool:
    """Return whether kernels have this instruction only where they add partial sums of several
    blocks.

    These instructions are the counter's atomic operation and fence, a load that bypasses the L1
    cache, and the arrival at a cluster's barrier.
    """
    past_l1 = instruction.base == "LDG" and ".STRONG.GPU" in instruction.opcode
    return past_l1 or instruction.base in ("ATOMG", "MEMBAR", "UCGABAR_ARV")


def _writes(code: Sequence[Instruction], loop: Loop) -> bool:
    return any(map(_stores, code[loop.first : loop.last + 1]))


# Loops


def hot_loop(code: Sequence[Instruction]) -> Loop | None:
    """Return the loop with the most multiplications, or None if no loop multiplies. If several
    loops have the same number of multiplications, return the longest.

    The loop must load its operands, or wait for them at an mbarrier. It must not store to global
    memory or compute activations. Raises LookupError if tensor cores multiply in the code, but in
    no such loop.
    """

    def multiplied(loop: Loop) -> int:
        inside = code[loop.first : loop.last + 1]
        bases = {instruction.base for instruction in inside}
        if bases & {"STG", "MUFU"} or not bases & {"LDS", "LDSM", "LDG", "SYNCS"}:
            return 0
        return sum(kind(instruction) in _MULTIPLIES for instruction in inside)

    found = max(
        loops(code), key=lambda loop: (multiplied(loop), loop.last - loop.first), default=None
    )
    if found and multiplied(found):
        return found
    inside = (code[loop.first : loop.last + 1] for loop in loops(code))
    if any(kind(instruction) in _BY_TENSOR_CORES for part in inside for instruction in part):
        raise LookupError(
            f"{__name__} does not know the opcodes that load the operands of the tensor cores;"
            " add these opcodes to hot_loop"
        )
    return None


def iteration(code: Sequence[Instruction], loop: Loop, trips: Mapping[str, int]) -> Counter[str]:
    """Return the number of instructions of each class in one usual iteration of a loop.

    `trips` maps an instruction in an inner loop to the number of iterations of that loop.
    """
    times = _repeated(code, loop, trips)
    counted: Counter[str] = Counter()
    for i in _usual(code, loop):
        counted[kind(code[i])] += times(i)
    return counted


def _repeated(
    code: Sequence[Instruction], around: Loop, trips: Mapping[str, int]
) -> Callable[[int], int]:
    """Return a function that maps the index of an instruction to the number of times that it runs
    in one iteration of the loop `around`. `trips` has the trip counts of inner loops."""
    inner = [loop for loop in loops(code) if around.holds(loop.first) and loop != around]
    times = [(loop, n) for loop in inner for name, n in trips.items() if name in _names(code, loop)]
    return lambda i: max((n for loop, n in times if loop.holds(i)), default=1)


def _data_loop(code: Sequence[Instruction], hot: Loop) -> Loop:
    """Return the loop of the data warps, which copy or transform data for the warps that multiply.
    Of the loops that copy and lie outside the hot loop, this is the longest."""
    beside = [
        loop
        for loop in loops(code)
        if not hot.holds(loop.first)
        and not loop.holds(hot.first)
        and (_bases(code, loop) >= {"LDGSTS", "STS"} or _BULK in _bases(code, loop))
        and "STG" not in _bases(code, loop)
    ]
    return max(beside, key=lambda loop: loop.last - loop.first)


def _names(code: Sequence[Instruction], loop: Loop) -> set[str]:
    """Return the opcodes of a loop's instructions, without modifiers. As an exception, a store of 8
    bytes to shared memory is "STS.64"."""
    inside = code[loop.first : loop.last + 1]
    return {
        "STS.64" if kind(instruction) == "STS.64" else instruction.base for instruction in inside
    }


def _bases(code: Sequence[Instruction], loop: Loop) -> set[str]:
    return {instruction.base for instruction in code[loop.first : loop.last + 1]}


# What makes a path the usual one


def weight(instruction: Instruction) -> Weight:
    """Return an instruction's weight, a tuple. A warp usually takes the path with the largest sum
    of weights.

    At the start of a kernel, all threads wait for the barriers that the block's first thread
    initialises. The weights therefore prefer the path of this first thread.
    """
    narrow, multiplies, copies, shared, waits, length = _weight_of_fill(instruction)
    bulk, mbarrier = instruction.base == _BULK, instruction.base == "SYNCS"
    return narrow, multiplies, copies + bulk, shared, waits + mbarrier, length


def _weight_of_fill(instruction: Instruction) -> Weight:
    """Return an instruction's weight on the path to the loop that multiplies. Unlike `weight`, this
    function gives no extra weight to copies of whole tiles and waits at an mbarrier."""
    is_of, base = kind(instruction), instruction.base
    return (
        -_narrow(instruction),
        is_of in _MULTIPLIES,
        _copies(instruction),
        is_of.startswith(_SHARED),
        base in ("BAR", "DEPBAR"),
        -1,
    )


def _weight_of_finish(instruction: Instruction, split: bool) -> Weight:
    """Return an instruction's weight on the path from the loop to the kernel's end. If `split`, the
    instruction belongs to the code that adds partial sums.

    The weights prefer a path that stores whole vectors, and that contains neither activations nor
    the code for partial sums.
    """
    is_of, base = kind(instruction), instruction.base
    return (
        -(base == "STG" and not _wide(instruction)),
        _stores(instruction) and not split,
        -split,
        is_of.startswith(_SHARED),
        -1,
    )
