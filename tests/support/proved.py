"""Which tests of kernels `make test` spares: most of those that passed with the same sources.

To simulate and compile every kernel takes a third of the suite's time, and gives the same result
until a kernel, the simulator, a case or a compiler changes. `make prove` runs all of it, and then
writes the digest of all that the result depends on to tests/proved.txt. While that digest holds,
`make test` runs every test without cases, and one in eight of the cases of the others, for what a
digest cannot know: this machine. Where it does not hold, and in `make test-all`, all run.

    python -m tests.support.proved    # writes the digest; `make prove` does, where all passed
"""

import hashlib
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kernels.device.compile import compiler
from tests.support import ROOT

PROVED = ROOT / "tests" / "proved.txt"

TESTS = ("tests/kernels", "tests/cusim")
SOURCES = (
    *TESTS,
    "kernels",
    "cusim",
    "benchmarks/kernels",
    "benchmarks/plots.py",
    "benchmarks/rows.py",
    "tests/support/__init__.py",
    "tests/support/cases",
    "tests/support/kernels",
    "tests/support/proved.py",
    "tests/support/tolerance.py",
)
"""What the results of these tests depend on, but for those that `reads_more` names."""

ONE_IN = 8

_IMPORT = re.compile(r"^\s*(?:from|import) ((?:benchmarks|loadtest|models|service|tests)\b[\w.]*)")


def files() -> Iterator[Path]:
    """Yield the files of SOURCES, in order."""
    for source in map(ROOT.joinpath, SOURCES):
        for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def digest() -> str:
    """Return the digest of the sources and of the compilers and the arithmetic that they meet."""
    whole = hashlib.sha256()
    gpp = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=False).stdout
    whole.update(f"{compiler()}\n{gpp}\n{np.__version__}\n".encode())
    for path in files():
        whole.update(f"{path.relative_to(ROOT)}\n".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def holds() -> bool:
    """Tell whether all tests passed with what is here now."""
    return PROVED.exists() and PROVED.read_text(encoding="utf-8").strip() == digest()


@cache
def reads_more(file: Path) -> bool:
    """Tell whether a module imports one of the project's that is none of SOURCES."""
    places = {source.removesuffix(".py").replace("/", ".") for source in SOURCES}
    for line in file.read_text(encoding="utf-8").splitlines():
        if found := _IMPORT.match(line):
            module = found[1]
            if module != "tests.support" and not any(
                f"{module}.".startswith(f"{place}.") for place in places
            ):
                return True
    return False


def spared(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the cases that need not run again while `holds`: all but one in eight of each test."""
    seen: Counter[tuple[Path, str]] = Counter()
    left = []
    for item in items:
        where = item.path.relative_to(ROOT).as_posix()
        if not where.startswith(TESTS) or reads_more(item.path):
            continue
        test = (item.path, getattr(item, "originalname", item.name))
        if seen[test] % ONE_IN:
            left.append(item)
        seen[test] += 1
    return left


if __name__ == "__main__":
    PROVED.write_text(f"{digest()}\n", encoding="utf-8")
