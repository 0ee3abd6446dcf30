"""The rules of the layout, checked with syntax trees: the direction of imports, and the place of
each file."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("kernels", "models", "service", "loadtest")
FOLDERS = (*PACKAGES, "cusim", "benchmarks", "tests")
FILES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))

# What each package may import of the others; tests may import all, and nothing imports tests.
# `service` also imports names from `models` itself, never from a module inside it.
ALLOWED = {
    "kernels": {"kernels"},
    "cusim": {"cusim", "kernels"},
    "benchmarks": {"benchmarks", "cusim", "kernels", "loadtest", "models", "service"},
    "models": {"models", "kernels"},
    "loadtest": {"loadtest"},  # and names from `models` itself
    "service": {"service", "loadtest"},
}

# The rooms of each package, lowest first: a room imports only rooms before it. Rooms that share a
# line do not import each other.
ORDER = {
    "kernels": [
        "installation problems",
        "device reference",
        "layout",
        "winograd operations image",
        "convolution",
        "tuning",
    ],
    "models": [
        "errors first_bytes graph arena imagenet scores session served varints",
        "quantized_filters",
        "preprocessing open_gpu cost precision onnx_loader rewrite schedule layers",
        "readers torchvision inner as_given",
        "maps",
        "keys",
        "description",
        "classifier",
        "lowering",
        "plan",
        "tuning",
        "engines reports",
        "quantization",
        "digits",
    ],
    "service": [
        "errors fair_queue folders machine progress",
        "settings",
        "batching",
        "engine",
        "images telemetry",
        "hosting",
        "edge",
        "http",
        "api",
        "grpc ray",
        "cli",
    ],
    "benchmarks": [
        "rows plots environments",
        "simulation kernels families",
        "networks",
        "serving",
        "gpu exporters",
        "peers",
        "papers",
    ],
}

# What the process environment is read and written by.
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv"}

# Folders of `tests` whose files need no module of their name; `__init__.py` says why.
FREE_TESTS = {"cusim", "deploy", "fuzz", "support", "whole"}


def package_of(file: Path) -> str:
    """Return the first folder below the root."""
    return file.relative_to(ROOT).parts[0]


def module_of(file: Path) -> str:
    """Return the dotted name with which a file is imported."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield every module that a file imports anywhere; relative imports keep their dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def at_top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported: everything outside functions."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield every statement, including those of functions and classes; a walk of all nodes takes
    three times as long."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, name, ())
        yield node


def parse(file: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@cache
def outline_of(file: Path) -> tuple[ast.Module, list[tuple[str, str]]]:
    """Return a file's imports, wherever they are, as a tree that needs little memory, and the name
    and the docstring of each of its functions and classes. Parsing is done once for both."""
    nodes: list[ast.stmt] = []
    docstrings = []
    for node in statements(parse(file)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            nodes.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            docstrings.append((node.name, ast.get_docstring(node) or ""))
    return ast.Module(nodes, []), docstrings


def imports_of(file: Path) -> ast.Module:
    """Return a tree of a file's imports."""
    return outline_of(file)[0]


def naming(words: Collection[str]) -> Iterator[Path]:
    """Return the files that contain one of these words, which is faster than parsing all files."""
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        if any(word in text for word in words):
            yield file


def breaches_of_the_one_way_rule(package: str, tree: ast.AST) -> list[str]:
    """Yield imports that a file in `package` must not have."""
    found = []
    for name in imports(tree):
        first = name.partition(".")[0]
        if name.startswith("."):
            found.append(f"{name} is relative")
        elif first in FOLDERS and first not in ALLOWED[package]:
            if package in ("service", "loadtest") and name == "models":
                continue
            found.append(name)
    return found


def environment_readers(tree: ast.AST) -> list[str]:
    """Yield uses of the process environment."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT:
            found.append(f"line {node.lineno}: .{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            found += [f"line {node.lineno}: {a.name}" for a in node.names if a.name in ENVIRONMENT]
    return found


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_go_one_way(package: str) -> None:
    breaches = {
        str(file.relative_to(ROOT)): found
        for file in FILES
        if package_of(file) == package
        and (found := breaches_of_the_one_way_rule(package, imports_of(file)))
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
        ("models", "from cusim.device import CusimDevice", False),
        ("benchmarks", "from cusim.device import CusimDevice", True),
        ("benchmarks", "def f():\n    from tests.support.cases import CASES", False),
    ],
)
def test_the_one_way_rule_itself(package: str, line: str, allowed: bool) -> None:
    assert (breaches_of_the_one_way_rule(package, ast.parse(line)) == []) is allowed


def test_only_the_settings_read_the_environment() -> None:
    readers = {
        str(file.relative_to(ROOT)): found
        for file in naming(ENVIRONMENT)
        if package_of(file) in PACKAGES and (found := environment_readers(parse(file)))
    }
    # The engine sets one variable, ONNX Runtime's switch against telemetry, and reads none.
    assert sorted(readers) == ["models/session.py", "service/settings.py"]
    assert len(readers["models/session.py"]) == 1


def test_cupy_is_never_imported_when_a_module_is() -> None:
    eager = [
        str(file.relative_to(ROOT))
        for file in naming(["cupy"])
        for node in at_top_level(parse(file))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(name.partition(".")[0] == "cupy" for name in imports(node))
    ]
    assert not eager


def test_everything_imports_without_a_gpu_and_kernels_and_models_without_the_server() -> None:
    modules = [module_of(file) for file in FILES if package_of(file) in PACKAGES]
    # Training needs PyTorch, and nothing that serves imports it.
    modules = [name for name in modules if name != "models.digits.train"]
    if find_spec("grpc") is None:  # the extra `grpc` is not installed
        modules.remove("service.grpc.port")
    if find_spec("ray") is None:  # the extra `ray` is not installed
        modules.remove("service.ray.application")
    script = """
import importlib, sys
sys.modules["cupy"] = None  # as where it is not installed
modules = sys.argv[1].split()
for name in modules:
    if not name.startswith(("service", "loadtest")):
        importlib.import_module(name)
heavy = {"fastapi", "pydantic", "uvicorn", "starlette", "typer"} & set(sys.modules)
assert not heavy, heavy
for name in modules:
    importlib.import_module(name)
"""
    command = [sys.executable, "-c", script, " ".join(modules)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_onnx_runtime_reports_nothing_from_tests_and_benchmarks() -> None:
    """ONNX Runtime decides this when it is imported first."""
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
    without = {name: value for name, value in os.environ.items() if "TELEMETRY" not in name}
    script = "import os, benchmarks; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, cwd=ROOT, env=without, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "1"


def test_no_cuda_hides_in_python() -> None:
    """Exceptions are the reader of declarations, and the writer of a header, which nothing
    imports."""
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


def room_of(package: str, module: str) -> str:
    """Return the folder or file directly inside the package to which a module belongs."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == package else ""


def breaches_of_the_order(package: str, order: list[str], module: str, tree: ast.AST) -> list[str]:
    """Yield imports that violate the order of rooms."""
    floor = {room: number for number, line in enumerate(order) for room in line.split()}
    mine = room_of(package, module)
    if not mine:
        return []  # the package's own __init__
    if mine not in floor:
        return [f"the room {mine} is not in the order"]
    return [
        f"{mine} imports {name}"
        for name in imports(tree)
        if (other := room_of(package, name))
        and other != mine
        and (other not in floor or floor[other] >= floor[mine])
    ]


@pytest.mark.parametrize("package", ORDER)
def test_rooms_import_only_rooms_before_them(package: str) -> None:
    order = ORDER[package]
    breaches = {
        str(file.relative_to(ROOT)): found
        for file in FILES
        if package_of(file) == package
        and (found := breaches_of_the_order(package, order, module_of(file), imports_of(file)))
    }
    assert not breaches


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from service.low import x", []),
        ("from service.high.y import z", ["middle imports service.high.y"]),
        ("from service.beside import z", ["middle imports service.beside"]),
        ("def f():\n    import service.unknown", ["middle imports service.unknown"]),
        ("from service.middle.other import z", []),
    ],
)
def test_the_order_itself(line: str, found: list[str]) -> None:
    order = ["low", "middle beside", "high"]
    tree = ast.parse(line)
    assert breaches_of_the_order("service", order, "service.middle.x", tree) == found


def imported_modules(tree: ast.AST, modules: Collection[str]) -> Iterator[str]:
    """Return the modules among these that a file imports; `from package import module` imports the
    module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield from [each for each in (name, node.module) if each in modules][:1]


def circle_of(modules: Mapping[str, ast.AST]) -> list[str]:
    """Return a circle of imports among these modules, including imports for types; none: empty."""
    graph: dict[str, set[str]] = {}
    for module, tree in modules.items():
        graph[module] = {name for name in imported_modules(tree, modules) if name != module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as found:
        circle: list[str] = found.args[1]
        return circle
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert not circle_of(
        {module_of(file): imports_of(file) for file in FILES if package_of(file) != "tests"}
    )


def test_a_circle_of_imports_is_found() -> None:
    sources = {
        "a.one": "from a import two",
        "a.two": "if TYPE_CHECKING:\n    from a.three import x",
        "a.three": "def f():\n    import a.one",
    }
    trees = {name: ast.parse(text) for name, text in sources.items()}
    assert set(circle_of(trees)) == set(sources)
    del trees["a.two"]
    assert not circle_of(trees)


def test_every_room_says_what_it_is_for() -> None:
    silent = [
        str(file.relative_to(ROOT))
        for file in FILES
        if file.name == "__init__.py"
        and (package_of(file) != "tests" or file.parent.name in FREE_TESTS)
        and not ast.get_docstring(parse(file))
    ]
    assert not silent


def subject_of(test: Path) -> Path | None:
    """Return the module or folder after which a test file is named; None: there is none."""
    folder, stem = ROOT / test.parent.relative_to(ROOT / "tests"), test.stem.removeprefix("test_")
    words = stem.split("_")
    for end in range(len(words), 0, -1):  # test_batcher_close.py tests batcher.py
        name = "_".join(words[:end])
        if name == folder.name:
            return folder
        for subject in (folder / f"{name}.py", folder / f"__{name}__.py", folder / f"{name}.sh"):
            if subject.exists():
                return subject
        if (folder / name).is_dir():
            return folder / name
    return None


def test_every_test_file_has_the_module_of_its_name() -> None:
    homeless = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("test_*.py")
        if file.parent != ROOT / "tests"
        and not FREE_TESTS & set(file.relative_to(ROOT).parts)
        and subject_of(file) is None
    ]
    assert not homeless


# Files of one name in several rooms of a package: "open that file" is then a question.
MAY_SHARE_A_NAME = {
    # Each room is a program: what it compares, what it measures, and its report.
    "benchmarks": {
        *("catalogue", "check", "estimates", "measure", "plots", "recorded"),
        *("report", "sides", "table"),
    },
}


def names_in_several_rooms(modules: Collection[str], package: str) -> set[str]:
    """The last names that modules in different folders of a package have in common."""
    places: dict[str, set[str]] = {}
    for module in modules:
        first, *_ = parts = module.split(".")
        if first == package and parts[-1] != "__main__":
            places.setdefault(parts[-1], set()).add(module)
    return {name for name, found in places.items() if len(found) > 1}


@pytest.mark.parametrize("package", ALLOWED)
def test_a_files_name_says_which_it_is(package: str) -> None:
    modules = [module_of(file) for file in FILES if file.name != "__init__.py"]
    assert names_in_several_rooms(modules, package) == MAY_SHARE_A_NAME.get(package, set())


def test_a_name_in_two_rooms_is_found() -> None:
    modules = ["service.http.request", "service.hosting.request", "models.a.request"]
    modules += ["service.http.__main__", "service.api.__main__"]
    assert names_in_several_rooms(modules, "service") == {"request"}
    assert names_in_several_rooms(modules, "models") == set()


# Docstrings that are no sentence: a verb put before words that do not take it, or none at all.
NO_SENTENCE = re.compile(
    r"Return (those|them|names the|the rule)\b|Return the \w+ contradicts\b"
    r"|(What|With|How|Of|Whether|Why)\b"
)


def test_docstrings_begin_as_sentences() -> None:
    bad = ("Return those kept.", "Return names the key.", "Return the file contradicts its format.")
    assert all(map(NO_SENTENCE.match, (*bad, "What is read.", "With a limit, wait.")))
    assert not NO_SENTENCE.match("Return the rules of a layer.")
    support = ROOT / "tests/support"
    files = [file for file in FILES if package_of(file) != "tests" or support in file.parents]
    found = [
        f"{module_of(file)}.{name}: {text.splitlines()[0]}"
        for file in files
        for name, text in outline_of(file)[1]
        if NO_SENTENCE.match(text)
    ]
    assert found == []
