"""Unpacks, on the GPU machine, the folder that `carry` made. Every command calls this module.

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
    """Return the command that runs Python. If packages for this version of Python were carried, the
    command lets Python import them. Libraries do not use TF32 unless `tf32` is set.

    The first call unpacks the carried files. Kernels are unpacked into `cache`.
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
    """If packages were carried and this process does not import from them yet, replace it by a
    Python process that does."""
    command = python(carried)
    added = f"PYTHONPATH={carried / SITE}"
    if added in command and str(carried / SITE) not in sys.path:
        os.execvp(command[0], [*command, *arguments])


def data(carried: Path = CARRIED) -> Path | None:
    """Return the folder of SqueezeNet and the photographs, or None if they are missing."""
    folders = (carried / "data", ROOT.resolve().parent / "shared" / "data")
    return next((folder for folder in folders if all((folder / n).exists() for n in _NAMES)), None)
