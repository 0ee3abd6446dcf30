"""Installs what is compared, a server or an exporter, once into an environment of its own."""

import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Written last, with the versions: what was interrupted is made anew.
DONE = "installed.json"


class NotInstalledError(Exception):
    """Says why packages cannot be installed here."""


@dataclass(frozen=True)
class Environment:
    """Names the folder where packages are installed, and their versions by lower-case name."""

    folder: Path
    versions: dict[str, str]

    def program(self, name: str) -> str:
        """Return the path of a program in the environment."""
        return str(self.folder / "bin" / name)


def folder_of(name: str, wanted: Sequence[str], root: Path) -> Path:
    """Return the folder of an environment, which depends on its pins and on Python."""
    key = zlib.crc32(" ".join((sys.version, *wanted)).encode())
    return root / f"{name}-{key:08x}"


def environment(
    name: str, wanted: Sequence[str], root: Path, say: Callable[[str], None]
) -> Environment:
    """Return the environment of the `wanted` pins below `root`, made if it is missing.

    Raises NotInstalledError.
    """
    folder = folder_of(name, wanted, root)
    done = folder / DONE
    if not done.is_file():
        say(f"{name}: installing {', '.join(wanted)} into {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "install", "--quiet", *wanted])
        listed = json.loads(_run([*pip, "list", "--format=json"]))
        found = {package["name"].lower(): package["version"] for package in listed}
        done.write_text(json.dumps(found))
    return Environment(folder, json.loads(done.read_text()))


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotInstalledError(str(error)) from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise NotInstalledError(lines[-1])
    return done.stdout
