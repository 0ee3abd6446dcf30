"""Packs the files that a GPU machine without a network needs into one folder, .gpu.

The service's Python packages have the versions of this environment, and are built for the GPU
machine's Python. Packages that the GPU machine already has are left out.
"""

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from benchmarks.gpu.carried import ARCHITECTURE, CUBINS, NVRTC, data
from benchmarks.rows import CARRIED, ROOT, commit

PYTHON = "3.12"
DISTRIBUTION = "convoy-inference"
"""Convoy's name in pyproject.toml."""

PHOTOGRAPHS = 20
MOST_BYTES = 60_000_000
"""The most bytes that can be sent, including the checkout."""

MACHINE = {
    "cupy-cuda13x": "14.2.0",
    "numpy": "2.5.2",
    "nvidia-cuda-nvrtc": NVRTC,
    "nvidia-cuda-runtime": "13.0.*",
    "onnx": "1.23.1",
    "onnxruntime": "1.30.0",
    "torch": "2.11.0",
    "uvloop": "0.*",
}
ON_THE_MACHINE = frozenset(
    {*MACHINE, "cuda-pathfinder", "flatbuffers", "ml-dtypes", "mpmath", "protobuf", "sympy"}
)
"""The packages of the GPU machine that are used: MACHINE, with its versions, and their
dependencies. All other packages are carried."""

TESTS = ("pytest", "hypothesis")
EXTRAS = ("nvidia-cudnn-frontend==1.18.0",)
"""Packages that the benchmarks use on the GPU machine and that are not installed on this
machine."""


def carry(folder: Path = CARRIED, *, release: str = NVRTC) -> list[tuple[str, int]]:
    """Replace the folder's contents by the files for the GPU machine. Return these files with their
    sizes in bytes.

    Kernels are compiled with the given `release` of NVRTC, which must be the GPU machine's release.
    Needs a package index, and the folder that `carried.data` returns. Raises FileNotFoundError if
    SqueezeNet or the photographs are missing, and ValueError if the folder and the checkout
    together are too large.
    """
    source = data(Path("nowhere"))
    if source is None:
        raise FileNotFoundError(
            "../shared/data lacks SqueezeNet or the photographs; copy both to this folder"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "COMMIT").write_text(f"{commit()}\n")
    (folder / "PYTHON").write_text(f"{PYTHON}\n")
    wheels(folder / "wheels", [*pins(DISTRIBUTION, *TESTS), *EXTRAS])
    photographs(source, folder / "data")
    kernels(folder / CUBINS, release)
    files = listing(folder)
    tree = sum((ROOT / name).stat().st_size for name in checkout_files())
    total = tree + sum(size for _, size in files)
    if total > MOST_BYTES:
        raise ValueError(
            f"the folder and the checkout may have at most {MOST_BYTES:,} bytes together; they have"
            f" {total:,}, of which the checkout has {tree:,}"
        )
    return files


def checkout_files() -> list[str]:
    """Return the names of all files of the checkout that git does not ignore. These are sent to the
    GPU machine too."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in names.split("\0") if name and (ROOT / name).is_file()]


def pins(package: str, *more: str) -> list[str]:
    """Return requirements for pip: the dependencies of `package`, the packages `more`, and their
    dependencies. All are pinned to the versions that are installed here. Packages that the GPU
    machine already has are left out."""
    found = {name: version(name) for name in more}
    waiting = [package, *more]
    while waiting:
        for name in _requirements(waiting.pop()):
            if name in ON_THE_MACHINE or name in found:
                continue
            try:
                found[name] = version(name)
            except PackageNotFoundError:  # it is for another platform or version of Python
                continue
            waiting.append(name)
    return [f"{name}=={pinned}" for name, pinned in sorted(found.items())]


def _requirements(package: str) -> Iterator[str]:
    """Yield the normalised names of the dependencies of `package`, except the dependencies of its
    extras."""
    for line in distribution(package).requires or ():
        if "extra ==" not in line:
            yield re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", line)[0]).lower()


def wheels(folder: Path, wanted: Iterable[str]) -> None:
    """Download the wheels of the packages `wanted` for the GPU machine, and build a wheel that
    states Convoy's version."""
    download(folder, wanted)
    name, ours = DISTRIBUTION.replace("-", "_"), version(DISTRIBUTION)
    with zipfile.ZipFile(folder / f"{name}-{ours}-info.whl", "w") as packed:
        packed.writestr(
            f"{name}-{ours}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {ours}\n",
        )


def download(folder: Path, wanted: Iterable[str]) -> None:
    """Download wheels for Linux on x86-64, without their dependencies."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--only-binary", ":all:", "--python-version", PYTHON),
            *("--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64"),
            *("--platform", "any", "--dest", str(folder), *wanted),
        ],
        check=True,
    )


def photographs(source: Path, folder: Path) -> None:
    """Copy SqueezeNet, its labels, and PHOTOGRAPHS photographs that are evenly spaced in the sorted
    list of all photographs."""
    (folder / "images").mkdir(parents=True)
    for name in ("squeezenet1.1-fp16.onnx", "imagenet_labels.txt"):
        shutil.copy(source / name, folder / name)
    shutil.copy(source / "images" / "labels.csv", folder / "images" / "labels.csv")
    images = sorted((source / "images").glob("*.JPEG"))
    for image in images[:: max(1, len(images) // PHOTOGRAPHS)][:PHOTOGRAPHS]:
        shutil.copy(image, folder / "images" / image.name)


def kernels(file: Path, release: str) -> None:
    """Compile every kernel with the given release of NVRTC, and pack the compiled kernels into
    `file`. Raises CalledProcessError."""
    module = "tests.support.benchmarks.carried"
    command = [sys.executable, "-m", module, release, ARCHITECTURE, str(file.resolve())]
    subprocess.run(command, cwd=ROOT, check=True)


def listing(folder: Path) -> list[tuple[str, int]]:
    """Return the size in bytes of every file below the folder, by the file's name."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return [(str(file.relative_to(folder)), file.stat().st_size) for file in files]
