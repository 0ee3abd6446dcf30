"""Reads and writes benchmark results as JSON lines. Each line (a row) also names the commit, the
device and the package versions."""

import argparse
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kernels.device.device import Device

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CARRIED = ROOT / ".gpu"
"""The folder that `python -m benchmarks.gpu carry` made for a checkout on a GPU machine."""

Row = Mapping[str, Any]

PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "torch", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend")


def now() -> str:
    """Return the current time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str:
    """Return the hash of the checked-out commit. A plus sign follows it if tracked files, except
    result files, have uncommitted changes. In a copy without git, read the hash from a file that
    `python -m benchmarks.gpu carry` wrote."""
    carried = CARRIED / "COMMIT"
    if carried.is_file() and not (ROOT / ".git").exists():
        return carried.read_text().strip()
    if shutil.which("git") is None:
        return "unknown"
    described = _git("describe", "--always", "--abbrev=12", "--exclude=*")
    others = (".", ":!benchmarks/results")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *others)
    return f"{described}{'+' if changed else ''}" if described else "unknown"


def _git(*arguments: str) -> str:
    """Return the output of a git command, or an empty string if the command fails."""
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of the given packages. Packages that are not installed are
    left out."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"python": platform.python_version(), **found}


def where(device: Device, at: str) -> dict[str, object]:
    """Return the facts on which measured numbers depend: the code, the device and the versions."""
    return {
        "kind": "measurement",
        "commit": at,
        "device": device.name,
        "driver": nvidia_driver() or device.driver,
        "compiler": device.compiler,
        "peak_flops": device.peak_flops,
        **versions(*PACKAGES),
    }


def nvidia_driver() -> str | None:
    """Return the driver's version from nvidia-smi, or None if nvidia-smi is missing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    return next(iter(answer.stdout.split()), None)


def read(file: Path) -> list[Row]:
    """Return the rows of a file, or no rows if the file does not exist. A truncated last line is
    skipped."""
    if not file.is_file():
        return []
    content = file.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(file, whole)  # so that appended rows begin a new line
    lines = content[:whole].decode().splitlines()
    return [json.loads(line) for line in lines]


def fill(text: str, begin: str, end: str, content: str) -> str:
    """Return `text` with the part between two marker lines replaced. Raises ValueError if a marker
    is missing."""
    if begin not in text or end not in text:
        raise ValueError(f"the document must contain the marks {begin} and {end}")
    return f"{text[: text.index(begin)]}{begin}\n{content}\n{text[text.index(end) :]}"


def markdown(headings: Sequence[str], *rows: Sequence[str]) -> str:
    """Return a table in Markdown. Its first column is aligned left, and all other columns right."""
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rule, *rows))


def add_record(parser: argparse.ArgumentParser, file: Path) -> None:
    """Add the option --record, which appends measurements to a file, by default to `file`."""
    about = f"append the rows to FILE ({file.relative_to(ROOT)})"
    parser.add_argument("--record", nargs="?", const=file, type=Path, metavar="FILE", help=about)


def append(file: Path, rows: Iterable[Row]) -> None:
    """Append rows to the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as opened:
        opened.writelines(json.dumps(row) + "\n" for row in rows)
