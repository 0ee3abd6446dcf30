"""What travels: which packages, and how the machine uses them."""

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from benchmarks.gpu import carried, carry
from benchmarks.gpu.carry import DISTRIBUTION, ON_THE_MACHINE, pins
from benchmarks.gpu.clocks import clocks_of
from tests.support.networks import needs_shared


def test_the_packages_are_what_the_service_needs_less_what_is_there() -> None:
    names = {pin.split("==")[0] for pin in pins(DISTRIBUTION)}
    assert {"fastapi", "pydantic", "pydantic-core", "httptools", "uvicorn", "msgspec"} <= names
    assert not names & ON_THE_MACHINE
    assert not names & {"pytest", "cupy-cuda13x", "torch"}, "extras stay here"


@needs_shared
def test_the_folder_has_all_its_parts_and_not_too_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[str] = []

    def download(folder: Path, packages: list[str]) -> None:
        folder.mkdir()
        wanted.extend(packages)

    monkeypatch.setattr(carry, "download", download)
    files = dict(carry.carry(tmp_path / "out"))
    assert "nvidia-cudnn-frontend==1.18.0" in wanted
    assert {
        "COMMIT",
        "data/squeezenet1.1-fp16.onnx",
        "wheels/convoy_inference-0.1.0-info.whl",
    } <= set(files)
    assert sum(name.endswith(".JPEG") for name in files) == carry.PHOTOGRAPHS
    monkeypatch.setattr(carry, "MOST_BYTES", 1_000_000)
    with pytest.raises(ValueError, match="too many to travel"):
        carry.carry(tmp_path / "out")


def test_without_anything_carried_python_is_this_one_without_tf32(tmp_path: Path) -> None:
    said = subprocess.run(
        [*carried.python(tmp_path), "-c", "import os; print(os.environ['NVIDIA_TF32_OVERRIDE'])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "0\n"


def test_what_was_carried_is_unpacked_once_and_used(tmp_path: Path) -> None:
    (tmp_path / "PYTHON").write_text("2.7\n")
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "only_carried-1.whl", "w") as packed:
        packed.writestr("only_carried.py", "answer = 42\n")
    with tarfile.open(tmp_path / "nvrtc.tar.xz", "w:xz") as archive:
        entry = tarfile.TarInfo("libnvrtc.so.13")
        archive.addfile(entry, io.BytesIO())
    assert not any(str(tmp_path) in part for part in carried.python(tmp_path))
    (tmp_path / "PYTHON").write_text("{}.{}\n".format(*sys.version_info))
    program = "import only_carried, sys; print(only_carried.answer)"
    for _ in range(2):
        command = carried.python(tmp_path)
        assert f"LD_PRELOAD={tmp_path}/nvrtc/libnvrtc.so.13" in command
        loaded = [part for part in command if not part.startswith("LD_PRELOAD")]
        run = subprocess.run([*loaded, "-c", program], capture_output=True, text=True, check=True)
        assert run.stdout == "42\n"


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
