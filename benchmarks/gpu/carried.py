"""Unpacks, on the other machine, the folder that `carry` made; every command uses it.

.gpu/COMMIT         the checkout's commit, where there is no git
.gpu/PYTHON         the Python that wheels are for; with any other they are left alone
.gpu/wheels/*.whl   what the service needs and the machine may lack
.gpu/nvrtc.tar.xz   the pinned NVRTC, if it was wanted: with it numbers hold for the pinned one
.gpu/data/          SqueezeNet, photographs, labels
"""

import sys
import tarfile
import zipfile
from pathlib import Path

from benchmarks.rows import CARRIED, ROOT

_NAMES = ("squeezenet1.1-fp16.onnx", "images", "imagenet_labels.txt")


def python(carried: Path = CARRIED) -> list[str]:
    """Return the command that runs Python with the carried packages and with TF32 disabled.

    The carried NVRTC is loaded first, because the first one in a process stays.
    """
    command = ["env", "NVIDIA_TF32_OVERRIDE=0", "PYTHONUNBUFFERED=1"]
    made_for, running = carried / "PYTHON", "{}.{}".format(*sys.version_info)
    if not made_for.is_file() or made_for.read_text().strip() != running:
        return [*command, sys.executable]
    site = carried / "site"
    if wheels := sorted((carried / "wheels").glob("*.whl")):
        if not site.is_dir():
            for wheel in wheels:
                with zipfile.ZipFile(wheel) as packed:
                    packed.extractall(site)
        command.append(f"PYTHONPATH={site}")
    if (carried / "nvrtc.tar.xz").is_file():
        if not (carried / "nvrtc").is_dir():
            with tarfile.open(carried / "nvrtc.tar.xz") as packed:
                packed.extractall(carried / "nvrtc", filter="data")
        (library,) = (carried / "nvrtc").glob("libnvrtc.so.*")
        command.append(f"LD_PRELOAD={library}")
    return [*command, sys.executable]


def data(carried: Path = CARRIED) -> Path | None:
    """Return the folder of SqueezeNet and the photographs, or None if it was not carried."""
    folders = (carried / "data", ROOT.resolve().parent / "shared" / "data")
    return next((folder for folder in folders if all((folder / n).exists() for n in _NAMES)), None)
