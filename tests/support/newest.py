"""Runs the suite with the newest release of every package, and reports new releases and failures.

    python -m tests.support.newest [PYTEST'S ARGUMENTS]

The upper bounds in pyproject.toml are ignored, because this program tests whether they can be
raised. They state the versions that are known to work. The program also names packages whose newest
release another package forbids.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from benchmarks.environments import UV
from tests.support import ROOT

# The image's locks hold the versions that are pinned, so their test cannot hold here.
PINS = "tests/deploy/test_locks.py"
SUITE = ("-m", "not slow", "--spare-proved", "-n", "auto", f"--deselect={PINS}")


def unbounded(requirements: Sequence[str]) -> list[str]:
    """Return the requirements that have an upper bound. The bound is removed from each."""
    found = []
    for requirement in map(Requirement, requirements):
        lower = [str(each) for each in requirement.specifier if each.operator in {">=", ">"}]
        if len(lower) < len(requirement.specifier):
            requirement.specifier = SpecifierSet(",".join(lower))
            found.append(str(requirement))
    return found


def pinned(constraints: str) -> dict[str, str]:
    """Return the versions that a file of constraints pins, by package."""
    lines = (line.partition("==") for line in constraints.splitlines() if "==" in line)
    return {canonicalize_name(name): version.strip() for name, _, version in lines}


def newer(pins: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """Return a line for each package whose installed version differs from the pinned version."""
    return [
        f"{name} {pins[name]} -> {version}"
        for name, version in sorted(installed.items())
        if pins.get(name, version) != version
    ]


def main(arguments: Sequence[str]) -> int:
    """Install, report, and run the suite. Return the suite's exit status."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pins = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="convoy-newest-") as name:
        folder = Path(name)
        overrides = folder / "overrides.txt"
        overrides.write_text("\n".join(unbounded(needs)))
        python = folder / "venv" / "bin" / "python"
        _uv("venv", "--quiet", "--python", sys.executable, str(folder / "venv"))
        pip = ("pip", "install", "--quiet", "--python", str(python), "--upgrade")
        _uv(*pip, "--override", str(overrides), "--editable", f"{ROOT}[dev]")
        listing = ("pip", "list", "--python", str(python), "--format", "json")
        listed = json.loads(_uv(*listing))
        installed = {str(canonicalize_name(each["name"])): each["version"] for each in listed}
        print("not as pinned:", *newer(pins, installed), sep="\n  ", flush=True)
        held = json.loads(_uv(*listing, "--outdated"))
        told = [f"{each['name']} {each['version']} of {each['latest_version']}" for each in held]
        print("held back by another package:", *(told or ["nothing"]), sep="\n  ", flush=True)
        suite = [str(python), "-m", "pytest", *(arguments or SUITE)]
        return subprocess.run(suite, cwd=ROOT, check=False).returncode


def _uv(*arguments: str) -> str:
    """Run uv, and return its standard output. Error messages of uv go to standard error."""
    command = [UV, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
