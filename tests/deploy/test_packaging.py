"""The installed files are all of Convoy, which an editable environment would not show."""

import ast
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

from benchmarks.serving.http_client import free_port
from models import __version__
from setup import PARTS, ROOT_NAME, within_root
from tests.deploy.container_files import ROOT, packages, pyproject

PYTHONS = ["3.11", "3.12", "3.13"]
UV = Path(sys.executable).with_name("uv")


def tracked() -> set[str]:
    """Return git's files of the packages, by their paths in the wheel."""
    command = ["git", "ls-files", "-z", *packages()]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout of git")
    return {in_wheel(name) for name in listed.stdout.rstrip("\0").split("\0")}


def in_wheel(name: str) -> str:
    """Return the path of a checkout's file in the wheel."""
    return f"{ROOT_NAME}/{name}" if name.partition("/")[0] in PARTS else name


def test_no_message_names_the_other_distribution_that_is_called_convoy() -> None:
    assert pyproject()["project"]["name"] == "convoy-inference"
    sources = [source for name in packages() for source in (ROOT / name).rglob("*.py")]
    texts = [*sources, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Dockerfile"]
    assert [
        text for text in texts if re.search(r"install\W+convoy\b(?!-inference)", text.read_text())
    ] == []


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel's top-level packages."""
    folder = tmp_path_factory.mktemp("inside")
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


def test_a_wheel_would_hold_what_git_has_under_one_name(inside: Path) -> None:
    assert [each.name for each in inside.iterdir()] == [ROOT_NAME]
    held = {str(each.relative_to(inside)) for each in inside.rglob("*") if each.is_file()}
    assert f"{ROOT_NAME}/models/digits/digits.onnx" in held
    assert held == tracked()


def test_in_a_wheel_only_the_imports_of_parts_differ(inside: Path) -> None:
    for name in tracked():
        file = ROOT / name.removeprefix(f"{ROOT_NAME}/")
        held, source = (inside / name).read_bytes(), (file if file.exists() else ROOT / name)
        assert held.replace(f"from {ROOT_NAME}.".encode(), b"from ") == source.read_bytes(), name


def test_no_string_names_a_module_of_a_part() -> None:
    """Such a name would be different in the wheel."""
    part = f"(?:{'|'.join(PARTS)})"
    named = re.compile(rf"\A{part}(?:\.\w+)+(?::\w+)?\Z|^\s*(?:from|import) {part}\b", re.MULTILINE)
    # In a source, as it is written: the tree of a source is walked only if this matches.
    begins = re.compile(rf"""["'}}]{part}\.|(?:["'}}]|\\n)\s*(?:from|import) {part}\b""")

    def found(source: str) -> list[int]:
        blocks = re.split(r'"""|\'\'\'', source)[1::2]
        if not begins.search(source) and not any(map(named.search, blocks)):
            return []
        return [
            node.lineno
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and named.search(node.value)
        ]

    assert found("from service.cli import main\nmain()") == []
    assert found("run('service.cli.serve:serve')") == [1]
    assert found("x = 1\ny = 'import sys\\nfrom service.engine import main\\n'") == [2]
    assert found('"""Runs this.\n"""\nx = """\nimport sys\nfrom service import a\n"""') == [3]
    sources = [source for name in PARTS for source in (ROOT / name).rglob("*.py")]
    assert {
        str(source.relative_to(ROOT)): lines
        for source in sources
        if (lines := found(source.read_text()))
    } == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from kernels import a", "from convoy_inference.kernels import a"),
        ("from models.graph import (\n    a,\n)", None),
        ("def f():\n    from service.api import a", None),
        ("if x: from loadtest import a; from service import b", None),
        ('"""Text from models."""\nfrom modelsx import a\nfrom . import models', "unchanged"),
    ],
)
def test_imports_of_parts_are_named_from_the_root(source: str, expected: str | None) -> None:
    if expected is None:
        expected = re.sub(rf"from (?={'|'.join(PARTS)})", f"from {ROOT_NAME}.", source)
    assert within_root(source) == (source if expected == "unchanged" else expected)


def test_a_part_that_is_imported_by_its_own_name_is_refused() -> None:
    with pytest.raises(SyntaxError, match=r"line 2: .*from PART import NAME"):
        within_root("import os\nimport kernels.device")


def users_modules(folder: Path) -> None:
    """Write a user's modules, which have the same names as Convoy's packages."""
    for part in PARTS:
        (folder / f"{part}.py").write_text("raise RuntimeError('a module of the user')\n")


def test_beside_modules_of_a_user_it_imports_its_own(inside: Path, tmp_path: Path) -> None:
    users_modules(tmp_path)
    listed = subprocess.run(
        [sys.executable, "-m", ROOT_NAME, "models"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(inside)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, listed.stderr
    assert "squeezenet1.1" in listed.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source distribution and the wheel built from it, as `make` does."""
    folder = tmp_path_factory.mktemp("dist")
    result = uv("build", "--quiet", "--out-dir", folder, ROOT)
    assert result.returncode == 0, result.stderr
    return folder


def uv(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run uv; if its package index cannot be reached, the test is skipped."""
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
    assert {name.partition("/")[0] for name in names} == {ROOT_NAME}
    with tarfile.open(source) as opened_source:
        inside = {name.partition("/")[2] for name in opened_source.getnames()}
    assert {in_wheel(name) for name in inside} >= tracked()
    assert {"README.md", "pyproject.toml", "constraints.txt", "setup.py"} <= inside
    assert [name for name in inside if name.startswith(("tests", "cusim", "benchmarks"))] == []


def interpreter(version: str) -> Path:
    """Return a Python of that version on this machine."""
    found = uv("python", "find", version)
    if found.returncode == 0:
        return Path(found.stdout.strip())
    roots = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for path in sorted(roots.glob(f"{version}.*/bin/python")):
        return path
    pytest.skip(f"there is no Python {version} here")


@dataclass(frozen=True)
class Installed:
    """A wheel in a separate environment, used from another folder."""

    environment: Path
    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """Return an environment without this process's variables."""
        return {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "COLUMNS": "200"}

    def install(self, *wanted: str) -> None:
        python = ("--python", self.environment / "bin/python")
        done = uv("pip", "install", "--quiet", *python, "-c", ROOT / "constraints.txt", *wanted)
        assert done.returncode == 0, done.stderr

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
    convoy = Installed(environment, folder)
    convoy.install(f"convoy-inference{extra} @ {wheel.as_uri()}")
    return convoy


@contextmanager
def served(convoy: Installed) -> Iterator[str]:
    """Yield the address of a `convoy serve` that is ready for requests."""
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
    where = convoy.run(
        "python",
        "-c",
        "from convoy_inference.models import BUILT_IN_MODEL as digits; print(digits.parent)",
    )
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


_WHOLE = """
import base64, hashlib, sys
from importlib.metadata import distribution
for name in sys.argv[1:]:
    for file in distribution(name).files:
        if file.hash is not None:
            digest = hashlib.new(file.hash.mode, file.read_binary()).digest()
            assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == file.hash.value, file
import transformers
from kernels import get_kernel
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", ["convoy", "others"])
def test_convoy_and_the_package_called_kernels_leave_each_other_whole(
    first: str, built: Path, tmp_path: Path
) -> None:
    """The package is Hugging Face's `kernels`, from which transformers loads kernels."""
    others = ["kernels==0.17.2", "transformers==5.24.0"]
    (tmp_path / "elsewhere").mkdir()
    installed = Installed(tmp_path / "environment", tmp_path / "elsewhere")
    assert (
        uv("venv", "--quiet", "--python", interpreter("3.12"), installed.environment).returncode
        == 0
    )
    wheel = f"convoy-inference @ {next(built.glob('*.whl')).as_uri()}"
    for wanted in ([wheel], others) if first == "convoy" else (others, [wheel]):
        installed.install(*wanted)
    whole = installed.run("python", "-c", _WHOLE, "kernels", "transformers", "convoy-inference")
    assert whole.returncode == 0, whole.stderr

    sample = ROOT / "models/digits/samples/3_ink_on_paper.jpg"
    users_modules(installed.folder)
    listed = installed.run("python", "-m", ROOT_NAME, "classify", "digits", sample, "--json")
    assert json.loads(listed.stdout)["predictions"][0]["label"] == "3"
    with served(installed) as address:
        answer = httpx.post(f"{address}/v1/classify", content=sample.read_bytes()).json()
    assert answer["results"][0]["predictions"][0]["label"] == "3"

    for module in installed.folder.glob("*.py"):
        module.unlink()
    python = installed.environment / "bin/python"
    done = uv("pip", "uninstall", "--quiet", "--python", python, "convoy-inference")
    assert done.returncode == 0, done.stderr
    whole = installed.run("python", "-c", _WHOLE, "kernels", "transformers")
    assert whole.returncode == 0, whole.stderr
    left = installed.run("python", "-c", "import convoy_inference")
    assert "No module named 'convoy_inference'" in left.stderr


@pytest.mark.slow
def test_with_the_extra_for_a_gpu_kernels_are_compiled_without_one(
    built: Path, tmp_path: Path
) -> None:
    convoy = install("3.12", built, tmp_path, "[cuda13]")
    done = convoy.run("convoy", "compile", "digits", "--arch", "90a", "--max-batch", "1")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ kernels are compiled and cached\n", done.stdout)
