"""Installs each peer once into a virtual environment of its own."""

import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.catalogue import SAME_AS_CONVOY, Peer

CACHE = Path.home() / ".cache" / "convoy" / "peers"

# Written last, with the versions: what was interrupted is made anew.
DONE = "installed.json"

# Of the packages beneath a server, those that its speed depends on.
_TOLD = ("fastapi", "httptools", "litserve", "bentoml", "ray", "starlette", "uvicorn", "uvloop")


class NotInstalledError(Exception):
    """Says why a peer cannot be installed here."""


@dataclass(frozen=True)
class Environment:
    """Names the folder where a peer is installed, and the versions of its packages."""

    folder: Path
    versions: dict[str, str]

    def program(self, name: str) -> str:
        """Return the path of a program in the environment."""
        return str(self.folder / "bin" / name)


def requirements(peer: Peer) -> tuple[str, ...]:
    """Return everything that is installed for a peer, pinned."""
    return (*peer.requirements, *(f"{name}=={version(name)}" for name in SAME_AS_CONVOY))


def folder_of(peer: Peer, root: Path) -> Path:
    """Return the folder of a peer's environment, which depends on its pins and on Python."""
    key = zlib.crc32(" ".join((sys.version, *requirements(peer))).encode())
    return root / f"{peer.package}-{key:08x}"


def environment(peer: Peer, root: Path, say: Callable[[str], None]) -> Environment:
    """Return the peer's environment below `root`, made if it is missing. Raises
    NotInstalledError."""
    wanted = requirements(peer)
    folder = folder_of(peer, root)
    done = folder / DONE
    if not done.is_file():
        say(f"{peer.name}: installing {', '.join(wanted)} into {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "install", "--quiet", *wanted])
        listed = json.loads(_run([*pip, "list", "--format=json"]))
        found = {package["name"].lower(): package["version"] for package in listed}
        told = {name: found[name] for name in (*_TOLD, *SAME_AS_CONVOY) if name in found}
        done.write_text(json.dumps(told))
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
