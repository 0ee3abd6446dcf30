"""Installs the servers and exporters that Convoy is compared with. Each is installed once, into a
separate environment."""

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

# uv installs in seconds; pip takes minutes.
UV = str(Path(sys.executable).with_name("uv"))

# The file with the versions, written last. An environment without it is incomplete and is created
# again.
DONE = "installed.json"


class NotInstalledError(Exception):
    """Raised when packages cannot be installed. Contains the installer's reason."""


@dataclass(frozen=True)
class Environment:
    """A Python environment: its folder, and the version of each installed package by the package's
    lower-case name."""

    folder: Path
    versions: dict[str, str]

    def program(self, name: str) -> str:
        """Return the path of the executable `name` in this environment."""
        return str(self.folder / "bin" / name)

    def packages(self) -> list[Distribution]:
        """Return the packages that are installed in the environment."""
        return list(
            distributions(path=[str(path) for path in self.folder.glob("lib/*/site-packages")])
        )


def folder_of(name: str, wanted: Sequence[str], root: Path) -> Path:
    """Return the folder for an environment. The folder's name contains a digest of the pinned
    packages and Python's version."""
    key = zlib.crc32(" ".join((sys.version, *wanted)).encode())
    return root / f"{name}-{key:08x}"


def environment(
    name: str, wanted: Sequence[str], root: Path, say: Callable[[str], None]
) -> Environment:
    """Return an environment in which the `wanted` packages are installed at their pinned versions.
    Create it in a folder below `root` if it does not exist. Raises NotInstalledError."""
    folder = folder_of(name, wanted, root)
    done = folder / DONE
    if not done.is_file():
        say(f"{name}: installing {', '.join(wanted)} into {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        _run([UV, "venv", "--quiet", "--python", sys.executable, str(folder)])
        where = ["--python", str(folder / "bin" / "python")]
        # Bytecode is compiled now. Some servers write no bytecode, and would compile at each start.
        _run([UV, "pip", "install", "--quiet", "--compile-bytecode", *where, *wanted])
        listed = json.loads(_run([UV, "pip", "list", "--quiet", "--format=json", *where]))
        found = {package["name"].lower(): package["version"] for package in listed}
        done.write_text(json.dumps(found))
    return Environment(folder, json.loads(done.read_text()))


def size_mb(installed: Iterable[Distribution]) -> float:
    """Return the size of the packages' files in megabytes, without the installer's own files."""
    files = [
        os.path.join(str(each.locate_file("")), file)  # quicker than `file.locate()`
        for each in installed
        if each.name.lower() not in {"pip", "setuptools"}
        for file in each.files or ()
    ]
    return sum(os.path.getsize(file) for file in files if os.path.isfile(file)) / 1e6


def needed_by(name: str) -> list[Distribution]:
    """Return the name of an installed package and the names of all its dependencies. Dependencies
    of extras are left out."""
    found: dict[str, Distribution] = {}
    left = [name]
    while left:
        package = distribution(left.pop())
        if package.name in found:
            continue
        found[package.name] = package
        needs = map(Requirement, package.requires or ())
        left += [
            need.name for need in needs if not need.marker or need.marker.evaluate({"extra": ""})
        ]
    return list(found.values())


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotInstalledError(str(error)) from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise NotInstalledError(lines[-1])
    return done.stdout
