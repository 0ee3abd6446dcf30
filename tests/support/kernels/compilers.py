"""Runs programs with a release of NVRTC other than the environment's. Each release has a folder in
the cache.

A process keeps the library of this name that it loaded first. So the release is loaded before
Python starts.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from kernels.device.compilers import COMPARED, Compiler
from tests.support import ROOT

CACHE = ROOT / ".cache" / "compilers"


class NotInstalledError(RuntimeError):
    """Says that a compiler must be downloaded, but that the package registry does not answer."""


def named(name: str) -> Compiler:
    """Return the compared compiler that the tables call `name`, such as "NVRTC 13.0"."""
    return {compiler.name: compiler for compiler in COMPARED}[name]


def library(compiler: Compiler) -> Path:
    """Return the library of a release. It is downloaded once (60 to 90 MB)."""
    folder = CACHE / compiler.release
    if not folder.exists():
        # Several test processes may install the release at the same time. The first copy is kept.
        made = CACHE / f"{compiler.release}.{uuid4().hex}"
        wanted = f"{compiler.package}=={compiler.release}"
        install = ["uv", "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
        command = [sys.executable, "-m", *install, "--target", str(made), wanted]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise NotInstalledError(
                f"{compiler.name} is not in {CACHE}, and the package registry is needed for it:"
                f" {wanted} was not installed\n{run.stderr}"
            )
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():
                raise
            shutil.rmtree(made)
    (found,) = folder.rglob(f"libnvrtc.so.{compiler.version[0]}")
    return found


def run_with(compiler: Compiler, arguments: Sequence[str]) -> str:
    """Run Python with this compiler, and return its output. Raises CalledProcessError."""
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library(compiler)),
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
