"""Plants a defect (a mutation) in a kernel, to check whether the tests notice the defect.

The table lists mutations that were chosen at random. It stays the same when kernels change. To
choose new mutations:

    python -m tests.support.kernels.mutations    # writes the table
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Final

from kernels.device.compile import include_names
from kernels.device.device import SOURCE_ROOT
from tests.support import ROOT
from tests.support.kernels.kernel_case import COPY, KernelCase

EDITS = (
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" >= ", " > "),
    (r" == ", " != "),
    (r" && ", " || "),
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r" \* ", " + "),
    (r" % ", " / "),
    (r"\b1\b", "2"),
    (r"__syncthreads\(\);|__syncwarp\(\);|barrier_of_roles\(\);|__threadfence\(\);", ";"),
    (r"cp_async_wait<.*?>\(\);|cp_async_commit\(\);", ";"),
    (r"cluster_arrive\(\);", "cluster_arrive_relaxed();"),
    (r"TOGETHER > 1 \|\| in_cluster", "in_cluster"),
    (r" \? 1 : 0;", " ? 1 : 1;"),
    (r"float\(([^\s()]+) \+ ([^\s()]+)\)", r"float(\1) + float(\2)"),
    (r"\w+ < exist \? (\S.*?) : 0(\.0f)?;", r"\1;"),
)
"""Edits that introduce a mistake. Each is a pattern and its replacement."""

_BARRIERS = ("__syncthreads();", "__syncwarp();", "barrier_of_roles();")

TABLE: Final = ROOT / "tests" / "kernels" / "mutations.txt"
SEED, COUNT = 15, 30

CHOSEN_BY_HAND: Final = (
    "cluster_sum.cuh: cluster_arrive();  // this block's part is there: cluster_arrive(); becomes "
    "cluster_arrive_relaxed();",
    "tma_gemm.cu: if (TOGETHER > 1 || in_cluster) cluster_wait();: TOGETHER > 1 || in_cluster "
    "becomes in_cluster",
    "tma_gemm.cu: constexpr int PENDING = PRECISION == Precision::FP16 ? 1 : 0;: ? 1 : 0; becomes "
    "? 1 : 1;",
    "requantize.cuh: float value = __fmul_rn(float(sum.at[c] + plus.at[c]), times.at[c]);: "
    "float(sum.at[c] + plus.at[c]) becomes float(sum.at[c]) + float(plus.at[c])",
    "depthwise.cu: plus.at[i] = i < exist ? offset[4 + filter + i] : 0;: i < exist ? offset[4 + "
    "filter + i] : 0; becomes offset[4 + filter + i];",
)
"""Mutations that the table has in addition, because once no test noticed them."""

NOT_SIMULATED = ("ptx.cuh",)
"""Files that the simulator replaces."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """Holds one place in a source, and its replacement."""

    file: str
    begin: int
    end: int
    new: str

    @property
    def description(self) -> str:
        """Return the file, the text of the line and the change. Line numbers are left out, because
        every edit of the file would change them."""
        text = _text(self.file)
        first, last = text.rfind("\n", 0, self.begin) + 1, text.index("\n", self.end)
        line, old = text[first:last].strip(), text[self.begin : self.end].strip()
        return f"{self.file}: {line}: {old} becomes {self.new.strip()}"

    @property
    def drops_a_barrier(self) -> bool:
        """Return whether the mutation removes a barrier."""
        return _text(self.file)[self.begin : self.end] in _BARRIERS

    def planted(self, folder: Path) -> Path:
        """Copy all sources into `folder`, apply the mutation to the copy, and return its path."""
        return mutant(folder, self.file, self.begin, self.end, self.new)


def by_name() -> dict[str, Mutation]:
    """Return all mutations of all files by name. If several places have the same name, a number is
    appended to each name."""
    alike: dict[str, list[Mutation]] = {}
    for pattern, new in EDITS:
        for mutation in _places(pattern, new):
            alike.setdefault(mutation.description, []).append(mutation)
    return {
        name if len(places) == 1 else f"{name} (place {number})": place
        for name, places in alike.items()
        for number, place in enumerate(places, 1)
    }


def choose(count: int, seed: int) -> list[str]:
    """Return the names of `count` random mutations. For each, first the kind of edit is drawn, and
    then one of its places."""
    random = Random(seed)
    names = {mutation: name for name, mutation in by_name().items()}
    places = [list(_places(pattern, new)) for pattern, new in EDITS]
    found: dict[str, None] = {}
    while len(found) < count:
        found[names[random.choice(random.choice(places))]] = None
    return list(found)


def tried() -> list[str]:
    """Return the names of the mutations in the table."""
    return TABLE.read_text(encoding="utf-8").splitlines()


def _places(pattern: str, new: str) -> Iterator[Mutation]:
    for file in sorted(path.name for path in SOURCE_ROOT.glob("*.cu*")):
        if file in NOT_SIMULATED:
            continue
        for line in re.finditer(r".+", _text(file)):
            code = line[0].partition("//")[0]
            if code.lstrip().startswith(("#", "template", "static_assert", "__global__")):
                continue
            for found in re.finditer(pattern, code):
                begin, end = line.start() + found.start(), line.start() + found.end()
                yield Mutation(file, begin, end, found.expand(new))


@cache
def _text(file: str) -> str:
    return (SOURCE_ROOT / file).read_text(encoding="utf-8")


def concerned(mutation: Mutation, cases: Iterable[KernelCase], each: int) -> list[KernelCase]:
    """Return cases that test the mutated file.

    For every kernel that includes the file, about `each` instantiations are selected, spread
    evenly. One instantiation that has a case with 3-D padding is added, because only with this
    padding can a depth be out of bounds.
    """
    affected = [case for case in cases if _includes(case, mutation.file)]
    by_kernel: dict[tuple[str, ...], dict[tuple[str, ...], list[KernelCase]]] = {}
    for case in affected:
        its = by_kernel.setdefault(_kernels(case), {})
        its.setdefault(_expressions(case), []).append(case)
    spread = set()
    for found in by_kernel.values():
        spread.update(list(found)[:: max(1, len(found) // each)])
        spread.update([key for key, its in found.items() if any(map(_pads_in_3d, its))][:1])
    return [case for case in affected if _expressions(case) in spread]


def _pads_in_3d(case: KernelCase) -> bool:
    """Return whether the case's problem pads before and after three axes. The name of the case
    states the padding."""
    return re.search(r" p\d+(,\d+){5}\b", case.name) is not None


def _kernels(case: KernelCase) -> tuple[str, ...]:
    return tuple(launch.instantiation.kernel for launch in case.launches)


def _expressions(case: KernelCase) -> tuple[str, ...]:
    return tuple(launch.instantiation.expression for launch in case.launches)


def _includes(case: KernelCase, file: str) -> bool:
    sources = {launch.instantiation.source for launch in case.launches}
    return any(file in include_names(source) for source in sources)


def copied(folder: Path) -> Path:
    """Copy all sources into `folder`, with the additional files that every case needs. Return the
    root of the copy."""
    root = shutil.copytree(SOURCE_ROOT, folder / "kernels" / "src")
    beside = root / COPY
    beside.parent.mkdir(parents=True)
    shutil.copy(SOURCE_ROOT / COPY, beside)
    return root


def mutant(folder: Path, file: str, begin: int, end: int, new: str) -> Path:
    """Copy all sources into `folder`, and replace the characters from `begin` to `end` of one
    source."""
    root = copied(folder)
    text = (root / file).read_text(encoding="utf-8")
    (root / file).write_text(text[:begin] + new + text[end:], encoding="utf-8")
    return root


def replaced(folder: Path, file: str, old: str, new: str, which: int = 0) -> Path:
    """Copy all sources into `folder`. In the copy, replace only occurrence number `which` of
    `old`."""
    text = (SOURCE_ROOT / file).read_text(encoding="utf-8")
    begin = -1
    for _ in range(which + 1):
        begin = text.index(old, begin + 1)
    return mutant(folder, file, begin, begin + len(old), new)


if __name__ == "__main__":
    names = [*choose(COUNT, SEED), *CHOSEN_BY_HAND]
    TABLE.write_text("\n".join(names) + "\n", encoding="utf-8")
