"""Unpacks the folder .gpu on a GPU machine without a network. `python -m benchmarks.gpu carry`
packs this folder on another machine. Every command calls this module.

.gpu/COMMIT            the checkout's commit, since there is no git
.gpu/PYTHON            the wheels' version of Python; other versions do not use the wheels
.gpu/wheels/*.whl      packages of service and tests that the machine may lack
.gpu/cubins.tar.xz     all compiled kernels, for the cache that all processes share
.gpu/data/             SqueezeNet, photographs, labels
"""

import os
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.rows import CARRIED, ROOT
from kernels.device.compile import DEFAULT_CACHE

ARCHITECTURE = "90a"
"""The GPU for which kernels are carried: an H100 or H200."""

NVRTC = "13.0.88"
"""The release of NVRTC on the GPU machine, which comes with PyTorch 2.11 for CUDA 13.0."""

CUBINS, SITE = "cubins.tar.xz", "site"

_NAMES = ("squeezenet1.1-fp16.onnx", "images", "imagenet_labels.txt")


def python(
    carried: Path = CARRIED, cache: Path = DEFAULT_CACHE, *, tf32: bool = False
) -> list[str]:
    """Return the command that starts Python. If the folder `carried` has packages for this version
    of Python, the command lets Python import them. Unless `tf32` is set, the command also disables
    TF32 in NVIDIA's libraries.

    The first call unpacks the packages, and unpacks the compiled kernels into `cache`.
    """
    command = ["env", "PYTHONUNBUFFERED=1", *([] if tf32 else ["NVIDIA_TF32_OVERRIDE=0"])]
    made_for, running = carried / "PYTHON", "{}.{}".format(*sys.version_info)
    if not made_for.is_file() or made_for.read_text().strip() != running:
        return [*command, sys.executable]
    site, done = carried / SITE, carried / "UNPACKED"
    if not done.exists():
        for wheel in sorted((carried / "wheels").glob("*.whl")):
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(site)
        if (carried / CUBINS).is_file():
            with tarfile.open(carried / CUBINS) as packed:
                packed.extractall(cache.expanduser(), filter="data")
        done.touch()
    return [*command, f"PYTHONPATH={site}", sys.executable]


def enter(arguments: Sequence[str], carried: Path = CARRIED) -> None:
    """Replace this process by a Python process that runs `arguments` and can import the packages in
    the folder `carried`. Do nothing if they are for another version of Python, or can already be
    imported."""
    command = python(carried)
    added = f"PYTHONPATH={carried / SITE}"
    if added in command and str(carried / SITE) not in sys.path:
        os.execvp(command[0], [*command, *arguments])


def data(carried: Path = CARRIED) -> Path | None:
    """Return the folder that contains SqueezeNet and the photographs, or None if there is no such
    folder."""
    folders = (carried / "data", ROOT.resolve().parent / "shared" / "data")
    return next((folder for folder in folders if all((folder / n).exists() for n in _NAMES)), None)
