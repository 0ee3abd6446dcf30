"""Reads the memory accesses that the simulator recorded for a launch, and computes how many
wavefronts and sectors a GPU would need for them.

A record has the addresses that the lanes of a warp access, and a source line.

Rules of shared memory, which has 32 banks of 4 bytes:

- At most 4 bytes per lane: the number of wavefronts is the largest number of different words in one
  bank (CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x and later).
- 8 bytes per lane: half a warp is served at a time. 16 bytes per lane: a quarter of a warp is
  served at a time. A wavefront returns 128 bytes.
- Loads of 8 and 16 bytes serve twice as many lanes at once if lanes l and l ^ 1, or l and l ^ 2,
  have the same address, for all active l. The source is an engineer of NVIDIA, for compute
  capability 7.x: forums.developer.nvidia.com/t/unexpected-shared-memory-bank-conflict/77228. Later
  architectures are assumed to do the same.
- ldmatrix: one wavefront for each matrix whose 8 rows are in different banks.

An instruction on global memory needs the sectors of 32 bytes that its lanes touch (Programming
Guide, "Global Memory").
"""

import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

LANES = 32
ROW = 128  # bytes of one word from each bank
SECTOR = 32


class Access(IntEnum):
    """Lists the kinds of access. The numbers are the same as in runtime/accesses.h."""

    LOAD = 0
    STORE = 1
    COPY_FROM = 2
    COPY_TO = 3
    MATRIX = 4


Addresses = tuple[int | None, ...]
"""The address of each lane, or None for a lane that does not take part."""


Count = Callable[[Addresses, int, Access], int]


@dataclass(frozen=True, slots=True)
class Instruction:
    """Holds the recorded accesses of one instruction.

    `patterns` has the addresses of all lanes of a warp, and how many times a warp accessed exactly
    these addresses.
    """

    place: str  # "implicit_gemm.cu:88 common.cuh:17": the kernel's line, then those inlined there
    access: Access
    size: int  # bytes per lane
    shared: bool
    patterns: Counter[Addresses]

    @property
    def space(self) -> str:
        """Return the name of the memory that the instruction accesses, "shared" or "global"."""
        return "shared" if self.shared else "global"

    @property
    def executed(self) -> int:
        """Return the number of times that warps executed the instruction."""
        return self.patterns.total()

    @property
    def needed(self) -> float:
        """Return how many wavefronts or sectors one execution of the instruction needs, on
        average."""
        return self._mean(wavefronts) if self.shared else self._mean(sectors)

    @property
    def least(self) -> float:
        """Return the smallest number of wavefronts or sectors that could transfer an execution's
        bytes, averaged over all executions."""
        return self._mean(least_wavefronts) if self.shared else self._mean(least_sectors)

    @property
    def worst(self) -> Addresses:
        """Return the addresses of the execution that needed the most wavefronts or sectors."""
        need = wavefronts if self.shared else sectors
        return max(self.patterns, key=lambda addresses: need(addresses, self.size, self.access))

    def _mean(self, count: Count) -> float:
        total = sum(
            times * count(addresses, self.size, self.access)
            for addresses, times in self.patterns.items()
        )
        return total / self.executed


def wavefronts(addresses: Addresses, size: int, access: Access) -> int:
    """Return the number of wavefronts that an instruction on shared memory needs."""
    if size <= 4:
        return _at_once(addresses, size)
    together = ROW // size  # lanes
    if access is Access.LOAD and (_paired(addresses, 1) or _paired(addresses, 2)):
        together *= 2
    return sum(
        _at_once(addresses[first : first + together], size) for first in range(0, LANES, together)
    )


def least_wavefronts(addresses: Addresses, size: int, access: Access) -> int:
    """Return the fewest wavefronts that could transfer the distinct bytes at `addresses`. A load of
    16 bytes per lane needs at least 2 wavefronts."""
    least = -(-_distinct(addresses) * size // ROW)
    return max(least, size // 8, 1) if access is Access.LOAD else max(least, 1)


def sectors(addresses: Addresses, size: int, _access: Access) -> int:
    """Return the number of sectors that an instruction on global memory needs."""
    touched = (range(a // SECTOR, (a + size - 1) // SECTOR + 1) for a in _present(addresses))
    return len({sector for sectors in touched for sector in sectors})


def least_sectors(addresses: Addresses, size: int, _access: Access) -> int:
    """Return the fewest sectors that could contain the distinct bytes at `addresses`."""
    return -(-_distinct(addresses) * size // SECTOR)


def banks(address: int, size: int) -> range:
    """Return the banks of shared memory that the access of one lane touches."""
    return range(address // 4 % 32, address // 4 % 32 + max(size // 4, 1))


def _present(addresses: Iterable[int | None]) -> list[int]:
    return [address for address in addresses if address is not None]


def _distinct(addresses: Addresses) -> int:
    return len(set(_present(addresses)))


def _at_once(addresses: Sequence[int | None], size: int) -> int:
    """Return the number of wavefronts for addresses that are accessed together. It is the largest
    number of distinct words in one bank."""
    words = {
        word
        for address in _present(addresses)
        for word in range(address // 4, (address + size - 1) // 4 + 1)
    }
    return max(Counter(word % 32 for word in words).values(), default=0)


def _paired(addresses: Addresses, apart: int) -> bool:
    """Return whether the lanes l and l ^ `apart` have equal addresses, for every l. Lanes without
    an address do not count."""
    return all(
        address is None or addresses[lane ^ apart] in (None, address)
        for lane, address in enumerate(addresses)
    )


# The format of a record, as in `recorded` of runtime/accesses.cpp.

_RECORD = struct.Struct("<QQIIII32I")


def instructions(recorded: bytes, library: Path) -> list[Instruction]:
    """Return the memory instructions that a launch of the kernel in `library` executed.

    Several instructions on one source line, with the same kind of access, count as one.
    """
    records = list(_RECORD.iter_unpack(recorded))
    places = _places(library, sorted({record[0] for record in records}))
    found: dict[tuple[str, Access, int, bool], Counter[Addresses]] = {}
    for code, count, access, size, shared, lanes, *at in records:
        addresses = tuple(at[lane] if lanes >> lane & 1 else None for lane in range(LANES))
        key = places[code], Access(access), size, bool(shared)
        found.setdefault(key, Counter())[addresses] += count
    return [Instruction(*key, patterns) for key, patterns in sorted(found.items())]


def _places(library: Path, codes: Sequence[int]) -> dict[int, str]:
    """Return the source line of each code offset in the library. If a line belongs to an inlined
    function, also name the lines that call the function."""
    asked = "\n".join(map(hex, codes))
    answer = subprocess.run(
        ["addr2line", "-a", "-i", "-e", library],
        input=asked,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines: list[list[str]] = []
    for line in answer.splitlines():
        if line.startswith("0x"):
            lines.append([])
        else:
            lines[-1].append(Path(line.split()[0]).name)
    return {
        code: " ".join(dict.fromkeys(place for place in reversed(inlined) if ".cu" in place))
        for code, inlined in zip(codes, lines, strict=True)
    }
