"""Packs all that a machine with a GPU but without a network needs into one folder.

The service's Python packages are those of this environment, pinned, for the machine's Python; what
the machine has already stays here.
"""

import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from benchmarks.gpu.carried import data
from benchmarks.rows import CARRIED, commit

PYTHON = "3.12"
DISTRIBUTION = "convoy-inference"
"""Convoy's own name in pyproject.toml."""

PHOTOGRAPHS = 20
MOST_BYTES = 40_000_000
"""The most bytes to carry without NVRTC, which alone has about as many."""

ON_THE_MACHINE = frozenset(
    {"numpy", "onnx", "onnxruntime", "pillow", "uvloop", "protobuf", "ml-dtypes", "sympy", "mpmath"}
)
EXTRAS = ("nvidia-cudnn-frontend==1.18.0", f"hypothesis=={version('hypothesis')}")
"""The extras of the benchmarks and the tests."""


def carry(folder: Path = CARRIED, *, nvrtc: bool = False) -> list[tuple[str, int]]:
    """Replace the folder's contents, and return its files with their bytes.

    Needs `data` and a package index. Raises FileNotFoundError without SqueezeNet and photographs,
    ValueError where the folder becomes too large.
    """
    source = data(Path("nowhere"))
    if source is None:
        raise FileNotFoundError("SqueezeNet and photographs are not at ../shared/data")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "COMMIT").write_text(f"{commit()}\n")
    (folder / "PYTHON").write_text(f"{PYTHON}\n")
    wheels(folder / "wheels", [*pins(DISTRIBUTION), *EXTRAS])
    photographs(source, folder / "data")
    files = listing(folder)
    total = sum(size for _, size in files)
    if total > MOST_BYTES:
        raise ValueError(f"{total:,} bytes are too many to travel; at most {MOST_BYTES:,}")
    if nvrtc:
        compiler(folder / "nvrtc.tar.xz")
        files = listing(folder)
    return files


def pins(package: str) -> list[str]:
    """Return the packages that `package` needs, pinned to this machine's versions, without those
    that the other machine has."""
    found: dict[str, str] = {}
    waiting = [package]
    while waiting:
        for name in _requirements(waiting.pop()):
            if name in ON_THE_MACHINE or name in found:
                continue
            try:
                found[name] = version(name)
            except PackageNotFoundError:  # for another platform or Python
                continue
            waiting.append(name)
    return [f"{name}=={pinned}" for name, pinned in sorted(found.items())]


def _requirements(package: str) -> Iterator[str]:
    """Yield the normalised names of the packages that `package` requires without extras."""
    for line in distribution(package).requires or ():
        if "extra ==" not in line:
            yield re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", line)[0]).lower()


def wheels(folder: Path, wanted: Iterable[str]) -> None:
    """Download wheels for the other machine, and make one that states Convoy's version."""
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
    """Copy SqueezeNet, the labels, and PHOTOGRAPHS photographs that are chosen at even
    intervals."""
    (folder / "images").mkdir(parents=True)
    for name in ("squeezenet1.1-fp16.onnx", "imagenet_labels.txt"):
        shutil.copy(source / name, folder / name)
    shutil.copy(source / "images" / "labels.csv", folder / "images" / "labels.csv")
    images = sorted((source / "images").glob("*.JPEG"))
    for image in images[:: max(1, len(images) // PHOTOGRAPHS)][:PHOTOGRAPHS]:
        shutil.copy(image, folder / "images" / image.name)


def compiler(file: Path) -> None:
    """Pack the two libraries of the NVRTC version that is pinned here."""
    with tempfile.TemporaryDirectory() as temporary:
        download(Path(temporary), [f"nvidia-cuda-nvrtc=={version('nvidia-cuda-nvrtc')}"])
        (wheel,) = Path(temporary).glob("*.whl")
        filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 3}]
        with (
            zipfile.ZipFile(wheel) as source,
            lzma.open(file, "wb", filters=filters) as compressed,
            tarfile.open(fileobj=compressed, mode="w|") as packed,
        ):
            for member in source.infolist():
                name = Path(member.filename).name
                if re.match(r"libnvrtc(-builtins)?\.so", name):
                    entry = tarfile.TarInfo(name)
                    entry.size = member.file_size
                    with source.open(member) as content:
                        packed.addfile(entry, content)


def listing(folder: Path) -> list[tuple[str, int]]:
    """Return the bytes of every file below the folder by the file's name."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return [(str(file.relative_to(folder)), file.stat().st_size) for file in files]
