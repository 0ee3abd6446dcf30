"""The rules of the layout, read off the syntax trees: who imports whom, and what lives where."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("kernels", "models", "service")
FOLDERS = (*PACKAGES, "benchmarks", "tests")
FILES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
MAX_LINES = 400

# What each package may import of the three: whole names, or the package and all that is in it.
ALLOWED = {
    "kernels": {"kernels"},
    "models": {"models", "kernels"},
    "service": {"service"},  # and names from `models` itself, never from a module inside it
}


def package_of(file: Path) -> str:
    """The first folder below the root."""
    return file.relative_to(ROOT).parts[0]


def module_of(file: Path) -> str:
    """The dotted name to import a file by."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported anywhere in a file; relative imports come with their dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def at_top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """What runs when a module is imported: everything outside functions."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def parse(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def breaches_of_the_one_way_rule(package: str, tree: ast.AST) -> list[str]:
    """Imports that a file in `package` must not have."""
    found = []
    for name in imports(tree):
        first = name.partition(".")[0]
        if name.startswith("."):
            found.append(f"{name} is relative")
        elif first in FOLDERS and first not in ALLOWED[package]:
            if package == "service" and name == "models":
                continue
            found.append(name)
    return found


def environment_readers(tree: ast.AST) -> list[str]:
    """Uses of the process environment."""
    names = {"environ", "environb", "getenv", "getenvb", "putenv"}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in names:
            found.append(f"line {node.lineno}: .{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            found += [f"line {node.lineno}: {a.name}" for a in node.names if a.name in names]
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    breaches = {
        str(file.relative_to(ROOT)): found
        for file in FILES
        if package_of(file) == package
        and (found := breaches_of_the_one_way_rule(package, parse(file)))
    }
    assert not breaches


@pytest.mark.parametrize(
    ("package", "line", "allowed"),
    [
        ("kernels", "import kernels.problems.window", True),
        ("kernels", "from models import Engine", False),
        ("kernels", "import service.api.app", False),
        ("models", "from kernels.problems.window import Window", True),
        ("models", "from service.errors import ServiceError", False),
        ("service", "from models import Engine", True),
        ("service", "from models.engines.engine import Engine", False),
        ("service", "import models.engines.engine", False),
        ("service", "from kernels.problems.window import Window", False),
        ("service", "def f():\n    from kernels import window", False),
        ("service", "from . import app", False),
        ("service", "from benchmarks.serving.overhead import main", False),
    ],
)
def test_the_one_way_rule_itself(package: str, line: str, allowed: bool) -> None:
    assert (breaches_of_the_one_way_rule(package, ast.parse(line)) == []) is allowed


def test_only_the_settings_read_the_environment() -> None:
    readers = {
        str(file.relative_to(ROOT)): found
        for file in FILES
        if package_of(file) in PACKAGES and (found := environment_readers(parse(file)))
    }
    # The engine sets one variable, ONNX Runtime's switch against telemetry, and reads none.
    assert sorted(readers) == ["models/engines/onnxruntime_engine.py", "service/settings.py"]
    assert len(readers["models/engines/onnxruntime_engine.py"]) == 1


def test_cupy_is_never_imported_when_a_module_is() -> None:
    eager = [
        str(file.relative_to(ROOT))
        for file in FILES
        for node in at_top_level(parse(file))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(name.partition(".")[0] == "cupy" for name in imports(node))
    ]
    assert not eager


def test_everything_imports_without_a_gpu_and_kernels_and_models_without_the_server() -> None:
    modules = [module_of(file) for file in FILES if package_of(file) in PACKAGES]
    # Training needs PyTorch, and nothing that serves imports it.
    modules = [name for name in modules if name != "models.digits.train"]
    script = """
import importlib, sys
sys.modules["cupy"] = None  # as where it is not installed
modules = sys.argv[1].split()
for name in modules:
    if not name.startswith("service"):
        importlib.import_module(name)
heavy = {"fastapi", "pydantic", "uvicorn", "starlette", "typer"} & set(sys.modules)
assert not heavy, heavy
for name in modules:
    importlib.import_module(name)
"""
    command = [sys.executable, "-c", script, " ".join(modules)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_files_are_short() -> None:
    long = {
        str(file.relative_to(ROOT)): lines
        for file in FILES
        if (lines := len(file.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert not long


def test_no_cuda_hides_in_python() -> None:
    """But in the reader of declarations, and in the writer of a header, which nothing imports."""
    reader, writer = "kernels/device/signature.py", "kernels/winograd/codegen.py"
    marks = ("__global__", "__device__", "__shared__")
    hiding = [
        str(file.relative_to(ROOT))
        for file in FILES
        if package_of(file) in PACKAGES
        and any(mark in file.read_text(encoding="utf-8") for mark in marks)
    ]
    assert hiding == [reader, writer]
    naming = [
        str(file.relative_to(ROOT))
        for file in FILES
        if package_of(file) != "tests" and "winograd.codegen" in file.read_text(encoding="utf-8")
    ]
    assert naming == [writer]
