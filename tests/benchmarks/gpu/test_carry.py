"""The files that are copied to the machine: the packages, and their use there."""

import io
import subprocess
import sys
import tarfile
import zipfile
from inspect import signature
from pathlib import Path

import pytest

from benchmarks.gpu import carried, carry
from benchmarks.gpu.carry import DISTRIBUTION, ON_THE_MACHINE, pins
from benchmarks.gpu.clocks import clocks_of
from kernels.device.compile import DEFAULT_CACHE, Cubin, Resources
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import Instantiation
from tests.support.benchmarks.carried import main as pack_kernels
from tests.support.kernels.fake_cupy import FakeCupy
from tests.support.kernels.gpu import open_gpu
from tests.support.networks import needs_shared


def test_the_packages_are_what_the_service_needs_less_what_is_there() -> None:
    names = {pin.split("==")[0] for pin in pins(DISTRIBUTION)}
    assert {"fastapi", "pydantic", "pydantic-core", "httptools", "uvicorn", "msgspec"} <= names
    assert not names & ON_THE_MACHINE
    assert not names & {"pytest", "cupy-cuda13x", "torch"}, "extras stay here"
    tests = {pin.split("==")[0] for pin in pins(DISTRIBUTION, *carry.TESTS)}
    assert {"pytest", "pluggy", "iniconfig", "packaging", "hypothesis"} <= tests


@needs_shared
def test_the_folder_has_all_its_parts_and_not_too_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[str] = []

    def download(folder: Path, packages: list[str]) -> None:
        folder.mkdir()
        wanted.extend(packages)

    def kernels(file: Path, release: str) -> None:
        file.write_text(release)

    monkeypatch.setattr(carry, "download", download)
    monkeypatch.setattr(carry, "kernels", kernels)
    files = dict(carry.carry(tmp_path / "out", release="13.1.2"))
    names = {pin.partition("==")[0] for pin in wanted}
    assert {"fastapi", "pytest", "iniconfig", "pluggy", "pillow", "hypothesis"} <= names
    assert {
        "COMMIT",
        "data/squeezenet1.1-fp16.onnx",
        "wheels/convoy_inference-0.1.0-info.whl",
    } <= set(files)
    assert (tmp_path / "out" / carried.CUBINS).read_text() == "13.1.2"
    assert sum(name.endswith(".JPEG") for name in files) == carry.PHOTOGRAPHS
    # The checkout counts: alone it is too much.
    monkeypatch.setattr(carry, "MOST_BYTES", sum(files.values()) + 1000)
    with pytest.raises(ValueError, match=r"bytes together; .* of which the checkout has"):
        carry.carry(tmp_path / "out")


def test_kernels_of_a_compiler_that_nobody_compared_are_not_carried(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no NVRTC 13\.0\.1 was compared; there are .*13\.0\.88"):
        pack_kernels("13.0.1", "90a", str(tmp_path / "cubins.tar.xz"))


def test_without_anything_carried_python_is_this_one_without_tf32(tmp_path: Path) -> None:
    said = subprocess.run(
        [*carried.python(tmp_path), "-c", "import os; print(os.environ['NVIDIA_TF32_OVERRIDE'])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "0\n"


def test_what_was_carried_is_unpacked_once_and_used(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (tmp_path / "PYTHON").write_text("2.7\n")
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "only_carried-1.whl", "w") as packed:
        packed.writestr("only_carried.py", "answer = 42\n")
    with tarfile.open(tmp_path / carried.CUBINS, "w:xz") as archive:
        archive.addfile(tarfile.TarInfo("0123.cubin"), io.BytesIO())
    assert not any(str(tmp_path) in part for part in carried.python(tmp_path, cache))
    assert not cache.exists()
    (tmp_path / "PYTHON").write_text("{}.{}\n".format(*sys.version_info))
    program = "import only_carried, sys; print(only_carried.answer)"
    for _ in range(2):
        command = carried.python(tmp_path, cache)
        run = subprocess.run([*command, "-c", program], capture_output=True, text=True, check=True)
        assert run.stdout == "42\n"
        assert [file.name for file in cache.iterdir()] == ["0123.cubin"]
        (tmp_path / carried.CUBINS).unlink(missing_ok=True)  # it is not asked for again


def test_tests_servers_and_benchmarks_have_their_kernels_in_one_place(
    monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    opened: list[Path] = []
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy())

    def compiled(kernel: Instantiation, arch: str, cache: Path) -> Cubin:
        opened.append(cache)
        return Cubin(b"", "", Resources(1, 0, 0, 0, 0))

    monkeypatch.setattr("kernels.device.cuda_device.compile_kernel", compiled)
    kernel = Instantiation("lrn.cu", "lrn")
    for device in (CudaDevice(), open_gpu(pytestconfig)):
        device.load(kernel)
    assert opened == [DEFAULT_CACHE] * 2
    assert signature(carried.python).parameters["cache"].default == DEFAULT_CACHE


@pytest.mark.parametrize(
    ("answer", "readings"),
    [
        ("1980, 3201, 34, 121.50\n", [1980, 3201, 34, 121.5]),
        ("1980, [N/A], 34, [N/A]\n", [1980, 34]),
        ("", []),
    ],
)
def test_clocks_are_read_from_what_nvidia_smi_says(answer: str, readings: list[float]) -> None:
    assert list(clocks_of(answer).values()) == readings
