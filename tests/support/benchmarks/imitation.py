"""Imitates the GPU machine, but without a GPU. It has the machine's packages and the carried files.

folder/convoy/        the checkout's files, without git, and .gpu as `carry` fills it
folder/environment/   Python with the packages of `carry.MACHINE` except PyTorch (2 GB)
folder/programs/      replace the profilers: each only runs the command that it should profile
folder/home/
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.carry import MACHINE, ON_THE_MACHINE, checkout_files
from benchmarks.rows import ROOT

_PROFILER = """#!/bin/sh
# Runs what it should profile: the command from its `env` on.
while [ "$1" != env ]; do shift; done
exec "$@"
"""


@dataclass(frozen=True)
class Imitation:
    """Runs commands like the GPU machine does."""

    folder: Path

    @property
    def python(self) -> Path:
        """Return the imitated machine's Python."""
        return self.folder / "environment" / "bin" / "python3"

    @property
    def environ(self) -> Mapping[str, str]:
        """Return the environment variables of the imitated machine. They do not depend on this
        process."""
        programs = (self.folder / "programs", self.python.parent, "/usr/bin", "/bin")
        return {"PATH": ":".join(map(str, programs)), "HOME": str(self.folder / "home")}

    def run(self, command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command line in the checkout. The variable $OUT names the folder for results."""
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder / "convoy",
            env={**self.environ, "OUT": str(self.folder / "out")},
            capture_output=True,
            text=True,
            check=False,
        )


def imitate(folder: Path, interpreter: Path, uv: Path) -> Imitation:
    """Build the imitation. This downloads packages and compiles all kernels."""
    made = Imitation(folder)
    for name in checkout_files():
        target = folder / "convoy" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target, follow_symlinks=False)
    for name in ("home", "out", "programs"):
        (folder / name).mkdir()
    for name in ("compute-sanitizer", "ncu"):
        program = folder / "programs" / name
        program.write_text(_PROFILER)
        program.chmod(0o755)
    packages = [f"{name}=={version}" for name, version in MACHINE.items() if name != "torch"]
    packages += ON_THE_MACHINE - MACHINE.keys()  # some of which only PyTorch brings
    environment = folder / "environment"
    for words in (
        (uv, "venv", "--quiet", "--python", interpreter, environment),
        (uv, "pip", "install", "--quiet", "--python", made.python, *packages),
        (sys.executable, "-m", "benchmarks.gpu", "carry", "--out", folder / "convoy" / ".gpu"),
    ):
        subprocess.run(list(map(str, words)), cwd=ROOT, check=True)
    return made
