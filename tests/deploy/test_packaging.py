"""What is installed is all of Convoy, which an editable environment would not show."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from setuptools import Distribution

from benchmarks.serving.http_client import free_port
from models import __version__
from tests.deploy.container_files import ROOT, packages, pyproject

PYTHONS = ["3.11", "3.12", "3.13"]
UV = Path(sys.executable).with_name("uv")


def tracked() -> set[str]:
    """What git has of the packages."""
    command = ["git", "ls-files", "-z", *packages()]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout of git")
    return set(listed.stdout.rstrip("\0").split("\0"))


def test_no_message_names_the_other_distribution_that_is_called_convoy() -> None:
    assert pyproject()["project"]["name"] == "convoy-inference"
    sources = [source for name in packages() for source in (ROOT / name).rglob("*.py")]
    texts = [*sources, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Dockerfile"]
    assert [
        text for text in texts if re.search(r"install\W+convoy\b(?!-inference)", text.read_text())
    ] == []


def test_a_wheel_would_hold_what_git_has_of_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    distribution = Distribution({"script_name": "setup.py"})
    distribution.parse_config_files(["pyproject.toml"])
    build = distribution.get_command_obj("build_py")
    build.ensure_finalized()
    held = {
        os.path.relpath(file, build.build_lib) for file in build.get_outputs(include_bytecode=False)
    }
    assert "models/digits/digits.onnx" in held
    assert held == tracked()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that was built of it, as by `make`."""
    folder = tmp_path_factory.mktemp("dist")
    result = uv("build", "--quiet", "--out-dir", folder, ROOT)
    assert result.returncode == 0, result.stderr
    return folder


def uv(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run uv; without a network to its index the test is skipped."""
    environ = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_LINK_MODE": "copy"}
    command = [UV, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    if result.returncode and "dns error" in result.stderr:
        pytest.skip("there is no network to the index of packages")
    return result


@pytest.mark.slow
def test_the_wheel_is_built_of_the_source_distribution_and_holds_all(built: Path) -> None:
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert wheel.name == f"convoy_inference-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert names == tracked()
    with tarfile.open(source) as opened_source:
        inside = {name.partition("/")[2] for name in opened_source.getnames()}
    assert tracked() | {"README.md", "pyproject.toml", "constraints.txt"} <= inside
    assert [name for name in inside if name.startswith(("tests", "cusim", "benchmarks"))] == []


def interpreter(version: str) -> Path:
    """A Python of that version on this machine."""
    found = uv("python", "find", version)
    if found.returncode == 0:
        return Path(found.stdout.strip())
    roots = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for path in sorted(roots.glob(f"{version}.*/bin/python")):
        return path
    pytest.skip(f"there is no Python {version} here")


@dataclass(frozen=True)
class Installed:
    """A wheel in an environment of its own, used from another folder."""

    environment: Path
    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """Nothing of this process."""
        return {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "COLUMNS": "200"}

    def run(self, program: str, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        command = [str(self.environment / "bin" / program), *map(str, words)]
        return subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False
        )


def install(version: str, built: Path, place: Path, extra: str = "") -> Installed:
    """Install the wheel into an empty environment of a Python."""
    environment, folder = place / "environment", place / "elsewhere"
    folder.mkdir()
    assert uv("venv", "--quiet", "--python", interpreter(version), environment).returncode == 0
    (wheel,) = built.glob("*.whl")
    wanted = f"convoy-inference{extra} @ {wheel.as_uri()}"
    to = ("--python", environment / "bin/python", "--constraint", ROOT / "constraints.txt")
    done = uv("pip", "install", "--quiet", *to, wanted)
    assert done.returncode == 0, done.stderr
    return Installed(environment, folder)


@contextmanager
def served(convoy: Installed) -> Iterator[str]:
    """`convoy serve`, ready for requests; its address."""
    port = free_port()
    program = str(convoy.environment / "bin/convoy")
    command = [program, "serve", "--device", "cpu", "--port", str(port)]
    where: Any = {"cwd": convoy.folder, "env": convoy.environ}
    with subprocess.Popen(command, **where, stderr=subprocess.PIPE) as running:
        address = f"http://127.0.0.1:{port}"
        try:
            while not is_ready(address):
                assert running.poll() is None, running.stderr and running.stderr.read()
            yield address
        finally:
            running.terminate()
            running.communicate()
    assert running.returncode == 0


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/v2/health/ready", timeout=5).is_success
    except httpx.TransportError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_a_wheel_in_an_empty_environment_serves_the_digits(
    version: str, built: Path, tmp_path: Path
) -> None:
    convoy = install(version, built, tmp_path)
    assert convoy.run("convoy", "--version").stdout == f"convoy {__version__}\n"
    where = convoy.run("python", "-c", "import models; print(models.BUILT_IN_MODEL.parent)")
    samples = sorted((Path(where.stdout.strip()) / "samples").iterdir())
    assert samples[0].is_relative_to(convoy.environment)

    with served(convoy) as address:
        for sample in samples:
            answer = httpx.post(f"{address}/v1/classify", content=sample.read_bytes()).json()
            (result,) = answer["results"]
            assert result["predictions"][0]["label"] == sample.name[0]
        page = httpx.get(f"{address}/")
        assert page.is_success
        files = re.findall(r'(?:src|href)="(?!data:|https?:|#)([^"]+)"', page.text)
        assert files
        assert [file for file in files if not httpx.get(f"{address}/{file}").is_success] == []
        (model,) = httpx.get(f"{address}/v1/models").json()["models"]
        assert model["labels"] == [str(digit) for digit in range(10)]

    listed = convoy.run("convoy", "classify", "digits", samples[0], "--json")
    assert json.loads(listed.stdout)["predictions"][0]["label"] == samples[0].name[0]
    assert "squeezenet1.1" in convoy.run("convoy", "models").stdout
    # NVRTC, which compiles kernels, is of the extras cuda12 and cuda13.
    refused = convoy.run("convoy", "compile", "digits", "--arch", "90a")
    assert refused.returncode == 1
    assert "uvx --from 'convoy-inference[cuda13]'" in refused.stderr


@pytest.mark.slow
def test_with_the_extra_for_a_gpu_kernels_are_compiled_without_one(
    built: Path, tmp_path: Path
) -> None:
    convoy = install("3.12", built, tmp_path, "[cuda13]")
    done = convoy.run("convoy", "compile", "digits", "--arch", "90a", "--max-batch", "1")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ kernels are compiled and cached\n", done.stdout)
