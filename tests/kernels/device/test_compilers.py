"""The compilers that users can have: installation, documentation and warnings agree."""

import logging
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kernels.device import nvrtc
from kernels.device.compilers import COMPARED, Compiler, doubt
from kernels.device.cuda_device import CudaDevice
from kernels.device.launch import instantiate
from tests.support import ROOT
from tests.support.kernels import compilers
from tests.support.kernels.fake_cupy import FakeCupy
from tests.support.kernels.resources import PINNED

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
)


_RANGE = " to ".join("{}.{}".format(*COMPARED[at].version) for at in (0, -1))


def test_the_table_is_in_order_without_a_gap() -> None:
    versions = [compiler.version for compiler in COMPARED]
    assert versions == sorted(set(versions))
    for before, after in pairwise(versions):
        assert after in ((before[0], before[1] + 1), (13, 0))


@pytest.mark.parametrize(("extra", "major"), [("cuda12", 12), ("cuda13", 13), ("dev", 13)])
def test_an_extra_installs_every_compared_compiler_and_no_other(extra: str, major: int) -> None:
    lines = map(Requirement, PROJECT["optional-dependencies"][extra])
    (toolkit,) = (line for line in lines if line.name == "cuda-toolkit")
    allowed = {minor for minor in range(100) if toolkit.specifier.contains(f"{major}.{minor}.1")}
    versions = (compiler.version for compiler in COMPARED)
    assert allowed == {minor for of, minor in versions if of == major}
    assert not toolkit.specifier.contains(f"{major - 1}.9.1")
    assert not toolkit.specifier.contains(f"{major + 1}.0.0")


@pytest.mark.slow
@pytest.mark.parametrize("resolution", ["highest", "lowest-direct"])
@pytest.mark.parametrize("extra", ["cuda12", "cuda13"])
def test_an_install_without_constraints_gets_a_compared_compiler(
    extra: str, resolution: str
) -> None:
    """Installs from the package registry."""
    resolve = ["uv", "pip", "compile", "--quiet", "--resolution", resolution, "pyproject.toml"]
    run = subprocess.run(
        [sys.executable, "-m", *resolve, "--extra", extra],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"the package registry did not answer: {run.stderr}"
    ((package, release),) = re.findall(r"^(nvidia-cuda-nvrtc\S*)==(\S+)", run.stdout, re.MULTILINE)
    got = Compiler(package, release)
    assert got.version in {each.version for each in COMPARED if each.package == package}


def test_the_pinned_compilers_are_compared() -> None:
    pinned = {Compiler(name, PINS[name]) for name in PINS if "nvrtc" in name}
    assert len(pinned) == 2
    assert pinned <= set(COMPARED)
    assert PINNED in {compiler.name for compiler in pinned}


def test_the_page_of_packages_lists_the_compilers() -> None:
    page = (ROOT / "docs/packages.md").read_text(encoding="utf-8")
    row = re.compile(r"^\| `(nvidia-cuda-nvrtc\S*)` \| (.+?) \| (.+?) \|$", re.MULTILINE)
    assert row.findall(page) == [
        (
            package,
            ", ".join(each.release for each in COMPARED if each.package == package),
            PINS[package],
        )
        for package in dict.fromkeys(each.package for each in COMPARED)
    ]
    assert f"CUDA {_RANGE}" in page
    assert f"CUDA {_RANGE}" in (ROOT / "docs/kernels.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("version", [(12, 7), (13, 6), (14, 0)])
def test_another_compiler_is_doubted_by_name_with_the_range(version: tuple[int, int]) -> None:
    said = doubt(version)
    assert said is not None
    assert said.startswith("NVRTC {}.{} ".format(*version))
    assert f"NVRTC {_RANGE}" in said


def test_where_no_registry_answers_a_compiler_says_that_it_needs_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compilers, "CACHE", tmp_path / "compilers")
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    wanted = compilers.named("NVRTC 13.0")
    with pytest.raises(compilers.NotInstalledError, match=r"NVRTC 13\.0 .*package registry"):
        compilers.library(wanted)


def test_no_compared_compiler_is_doubted() -> None:
    assert [doubt(compiler.version) for compiler in COMPARED] == [None] * len(COMPARED)


@pytest.mark.parametrize("known", [True, False])
def test_an_engines_first_kernel_warns_once_of_a_compiler_that_was_not_compared(
    known: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy())
    others = tuple(each for each in COMPARED if each.version != nvrtc.version())
    monkeypatch.setattr("kernels.device.compilers.COMPARED", COMPARED if known else others)
    loaded = "NVRTC {}.{}".format(*nvrtc.version())
    nvrtc._load.cache_clear()
    caplog.set_level(logging.WARNING)
    device = CudaDevice(cache=tmp_path)
    for storage in ("float", "Half"):
        device.load(instantiate("lrn.cu", "lrn", t=storage))
    warned = [record.getMessage() for record in caplog.records if record.name == nvrtc.__name__]
    assert len(warned) == (0 if known else 1)
    assert all(loaded in line and "cuda13" in line for line in warned)
