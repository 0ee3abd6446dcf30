"""Chooses the tests that `make test` skips. These are most of the tests that have already passed
with the same sources.

Three kinds of tests take most of the suite's time. Some simulate and compile every kernel and
network, some compute figures from these, and some send hours of requests in virtual time to the
batching policy. Their results stay the same until a source, a case, a library or a compiler
changes. A proof is a set of these tests. `make prove` runs all proofs. Then it writes to
tests/proved.txt, for each proof, a digest of everything on which the proof depends. While the
digest of a proof matches, `make test` runs only one in 64 of its tests. Every run includes
different tests, because a digest does not cover the machine. If the digest does not match, all
tests run. `make test-all` always runs all tests.

    python -m tests.support.proved [PROOF ...]            # writes digests: `make prove`, at its end
    python -m tests.support.proved --tests [PROOF ...]    # prints the tests that `make prove` runs

Without a name, both commands apply to all proofs. `make prove PROOFS=server` names one.
"""

import argparse
import hashlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import pytest

from kernels.device.compile import compiler
from tests.support import ROOT

PROVED = ROOT / "tests" / "proved.txt"

_Case = TypeVar("_Case")

ONE_IN = 64

# In a run, one in FILES of most files has tests, and FILES times as many of them. The other files
# are not imported. So work that a file needs once, such as a build of the simulator, is rarely done
# for a single test.
FILES = 8

# A run creates tests for up to SHARING cases that have the same kernels, or for none of them,
# because it takes longer to compile a kernel than to run it.
SHARING = 4

_IMPORT = re.compile(
    r"^\s*(?:from|import) ((?:benchmarks|loadtest|models|service|tests)\b[\w.]*)"
    r"(?: import ([\w, ]*))?"
)


@dataclass(frozen=True)
class Proof:
    """Describes a set of tests whose results depend only on sources, libraries and compilers."""

    name: str
    tests: tuple[str, ...]
    sources: tuple[str, ...]  # except in test files for which `reads_more` is true
    libraries: tuple[str, ...]
    large: tuple[str, ...] = ()  # files with so many tests that each run creates only some
    long: tuple[str, ...] = ()  # files whose tests take so long that each run includes a few

    def files(self) -> Iterator[Path]:
        """Yield the files of the sources, in order."""
        for source in map(ROOT.joinpath, self.sources):
            for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
                if path.is_file() and "__pycache__" not in path.parts:
                    yield path

    def digest(self) -> str:
        """Return the digest of the sources, the libraries' versions and the compilers."""
        whole = hashlib.sha256()
        libraries = [f"{library} {version(library)}" for library in self.libraries]
        whole.update("\n".join([compiler(), _gpp(), *libraries, ""]).encode())
        for path in self.files():
            whole.update(f"{path.relative_to(ROOT)}\n".encode())
            whole.update(hashlib.sha256(path.read_bytes()).digest())
        return whole.hexdigest()

    def holds(self) -> bool:
        """Return whether all tests of this proof passed with the current sources."""
        lines = PROVED.read_text(encoding="utf-8").splitlines() if PROVED.exists() else []
        return f"{self.name} {self.digest()}" in lines

    def reads_more(self, file: Path) -> bool:
        """Return whether a file imports a module of the project that is not among the proof's
        sources."""
        names = (source.removesuffix(".py").replace("/", ".") for source in self.sources)
        places = tuple(f"{name}." for name in names)
        return any(not f"{name}.".startswith(places) for name in _imports(file))

    def proves(self, file: Path) -> bool:
        """Return whether this proof covers a test file. The file must be one of `tests`, and its
        results must depend only on the inputs of the digest."""
        where = file.relative_to(ROOT).as_posix()
        return where.startswith(self.tests) and not self.reads_more(file)

    def kept(self, file: Path, run: str) -> range:
        """Return the positions, in a proved file, of the tests that a run includes.

        The choice depends only on the files and the run's name, so all workers of the run choose
        the same tests. Neighbours among the files have different turns. So each run includes about
        as many files of a folder as any other run, and takes about as long.
        """
        where = file.relative_to(ROOT).as_posix()
        files = 1 if where in (*self.large, *self.long) else FILES
        if (_places(self)[file] + _drawn(run)) % files != 0:
            return range(0)
        step = ONE_IN // files
        return range(_drawn(f"{where} {run}") % step, sys.maxsize, step)

    def spared(self, items: Iterable[pytest.Item], run: str) -> list[pytest.Item]:
        """Return the tests that are skipped while the digest matches, which are 63 in 64.

        Tests of large files are not returned, because a large file creates only the tests that run
        (`Choice.of_cases`).
        """
        by_file: dict[Path, list[pytest.Item]] = {}
        for item in items:
            by_file.setdefault(item.path, []).append(item)
        spared: list[pytest.Item] = []
        for path, tests in by_file.items():
            if self.proves(path) and path.relative_to(ROOT).as_posix() not in self.large:
                kept = self.kept(path, run)
                spared += [test for place, test in enumerate(tests) if place not in kept]
        return spared


def _drawn(name: str) -> int:
    """Return a number that depends only on the name."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)


@cache
def _places(proof: Proof) -> dict[Path, int]:
    """Return the positions of the test files among all that the proof covers."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return {file: place for place, file in enumerate(filter(proof.proves, files))}


@cache
def _gpp() -> str:
    command = ["g++", "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@cache
def _imports(file: Path) -> tuple[str, ...]:
    """Return the modules that a file imports. A name that is imported from a package is a module of
    the package, or is defined in its `__init__`."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return tuple(
        _with_name(found[1], name.split()[0]) if name else found[1]
        for line in lines
        if (found := _IMPORT.match(line))
        for name in (found[2] or "").strip().split(", ")
    )


def _with_name(module: str, name: str) -> str:
    place = ROOT.joinpath(*module.split("."))
    is_module = (place / f"{name}.py").is_file() or (place / name).is_dir()
    return f"{module}.{name}" if is_module or not place.is_dir() else f"{module}.__init__"


_KERNELS = Proof(
    "kernels",
    tests=("tests/kernels", "tests/cusim"),
    sources=(
        "tests/kernels",
        "tests/cusim",
        "kernels",
        "cusim",
        "benchmarks/kernels",
        "benchmarks/plots.py",
        "benchmarks/rows.py",
        "tests/support/__init__.py",
        "tests/support/cases",
        "tests/support/kernels",
        "tests/support/proved.py",
        "tests/support/tolerance.py",
    ),
    libraries=("numpy",),
    large=("tests/kernels/whole/test_kernels.py",),
    long=("tests/kernels/convolution/test_tma_gemm.py",),
)

# This adds an algorithm to a copy of the kernels, and loads a network to test its rounding.
_TOY = "tests/kernels/convolution/test_algorithms_toy.py"

# These compare the reference with ONNX Runtime, which no kernel needs.
_REFERENCE = tuple(
    f"tests/kernels/test_reference{of}.py" for of in ("", "_elementwise", "_onnx_backend")
)

_SERVICE = (
    "service/__init__.py",
    "service/errors.py",
    "service/fair_queue.py",
    "service/folders.py",
)

_NETWORKS = Proof(
    "networks",
    tests=("tests/models", *_REFERENCE, _TOY),
    sources=(
        *_KERNELS.sources,
        "tests/models",
        "models",
        "benchmarks/networks",
        "benchmarks/families",
        "tests/support/images",
        "tests/support/models",
        "tests/support/networks.py",
        "tests/support/onnx_models.py",
        # These read the images of some tests.
        *_SERVICE,
        "service/engine/__init__.py",
        "service/engine/death_signal.py",
        "service/engine/lane.py",
        "service/engine/process_pool.py",
        "service/engine/threads.py",
        "service/engine/undecoded.py",
        "service/images",
        "service/machine",
    ),
    libraries=(
        "hypothesis",
        "numpy",
        "onnx",
        "onnx-ir",
        "onnxruntime",
        "onnxscript",
        "pillow",
        "scikit-learn",
    ),
)

# What is computed of both: errors, costs, estimates, the steps of a page; and what measures
# kernels and networks, on the simulator.
_FIGURES = Proof(
    "figures",
    tests=(
        "tests/benchmarks/gpu/test_decoding.py",
        "tests/benchmarks/gpu/test_measure.py",
        "tests/benchmarks/gpu/test_report.py",
        "tests/benchmarks/kernels/test_accuracy.py",
        "tests/benchmarks/kernels/test_costs.py",
        "tests/benchmarks/kernels/test_report.py",
        "tests/benchmarks/kernels/test_suites.py",
        "tests/benchmarks/networks",
    ),
    sources=(
        *_NETWORKS.sources,
        "benchmarks/__init__.py",
        "benchmarks/gpu",
        "benchmarks/serving/__init__.py",
        "benchmarks/serving/http_client.py",
        "benchmarks/serving/served.py",
        "tests/benchmarks/conftest.py",
        "tests/benchmarks/gpu",
        "tests/benchmarks/kernels",
        "tests/benchmarks/networks",
        "tests/support/benchmarks/__init__.py",
        "tests/support/benchmarks/made_up.py",
    ),
    libraries=(*_NETWORKS.libraries, "matplotlib"),
)

_PAPERS = (
    *("blur", "complexity", "errors", "ladder", "larger_tiles"),
    *("launches", "memory", "papers", "pipeline"),
)

# What the application answers and its commands print, in the process of the test.
_IN_PROCESS = {
    "api": ("app", "app_scores", "app_under_stress", "embeddings", "explain"),
    "api/v2": ("infer_endpoint", "interpretation", "long_json", "parse", "parse_tensors"),
    "batching": ("policy_urgency",),
    "cli": (
        *("check", "check_by_newcomers", "cli", "cli_golden", "inspect", "named", "pull"),
        *("quantize", "tune"),
    ),
    "edge": ("call_turns", "connections", "edge", "keys", "rate_limit", "rights"),
    "engine": (
        *("lane", "ranking", "runner", "runner_max_batch", "runner_several"),
        *("supervised_engine", "watchdog"),
    ),
    "grpc": ("infer_request", "port"),
    "hosting": (
        *("admission", "catalogue", "comparison", "hub", "loading", "opening", "presets"),
        *("request", "request_files", "trial"),
    ),
    "http": (
        *("asgi", "body", "connection", "connection_ends", "connection_hostile", "exchange"),
        "parser",
    ),
    "images": ("decode_pool",),
    "telemetry": ("counts", "logs"),
    "whole": ("clips", "cusim_server", "decoder_crashes", "mistakes_of_commands", "trainers"),
}

PROOFS = (
    _KERNELS,
    _NETWORKS,
    _FIGURES,
    # What stands beside the papers' numbers.
    Proof(
        "papers",
        tests=tuple(f"tests/benchmarks/papers/test_{of}.py" for of in _PAPERS),
        sources=(
            *_FIGURES.sources,
            "benchmarks/papers",
            "benchmarks/results/accuracy.jsonl",
            "benchmarks/results/gpu.jsonl",
            "docs/blur.png",
            "docs/ladder",
            "docs/ladder.md",
            "docs/papers.md",
            "tests/benchmarks/papers",
        ),
        libraries=_FIGURES.libraries,
    ),
    # Requests in virtual time.
    Proof(
        "batching",
        tests=("tests/benchmarks/simulation", "tests/service/batching"),
        sources=(
            *_NETWORKS.sources,
            "benchmarks/__init__.py",
            "benchmarks/simulation",
            "service/batching",
            "service/engine",
            "service/hosting/__init__.py",
            "service/hosting/admission.py",
            "service/hosting/model_info.py",
            "service/hosting/pipeline.py",
            "service/hosting/recent.py",
            "service/hosting/regions.py",
            "service/hosting/request.py",
            "service/telemetry/__init__.py",
            "service/telemetry/counts.py",
            "service/telemetry/gpus.py",
            "service/telemetry/metrics.py",
            "service/telemetry/record.py",
            "tests/benchmarks/simulation",
            "tests/service/batching",
            "tests/support/benchmarks/__init__.py",
            "tests/support/benchmarks/hostile.py",
            "tests/support/service/__init__.py",
            "tests/support/service/batcher_scenarios.py",
            "tests/support/service/desk.py",
            "tests/support/service/running.py",
            "tests/support/service/virtual_time.py",
        ),
        libraries=(*_NETWORKS.libraries, "matplotlib"),
    ),
    # What becomes of files, whole and damaged, and what decoding takes.
    Proof(
        "images",
        tests=("tests/service/images",),
        sources=(
            *_NETWORKS.sources,
            "service/api/page/photographs",
            "tests/service/images",
            "tests/support/clips/__init__.py",
            "tests/support/clips/videos.py",
        ),
        libraries=(*_NETWORKS.libraries, "av", "pi-heif", "simplejpeg"),
    ),
    Proof(
        "application",
        tests=(
            "tests/benchmarks/exporters/test_check.py",
            *(
                f"tests/service/{folder}/test_{name}.py"
                for folder, names in _IN_PROCESS.items()
                for name in names
            ),
        ),
        sources=(
            *_NETWORKS.sources,
            "benchmarks/__init__.py",
            "benchmarks/environments.py",
            "benchmarks/exporters",
            "loadtest",
            "service",
            "tests/benchmarks/exporters",
            "tests/service",
            "tests/support/clips",
            "tests/support/command_line.py",
            "tests/support/servers",
            "tests/support/service",
        ),
        libraries=(
            *_NETWORKS.libraries,
            *("aiohttp", "av", "fastapi", "grpcio", "httptools", "httpx", "msgspec", "pi-heif"),
            *("prometheus-client", "pydantic", "python-multipart", "pyyaml", "rich", "simplejpeg"),
            *("starlette", "typer", "uvicorn", "uvloop"),
        ),
    ),
)


class Choice:
    """Chooses the tests of a run. Counts the tests that it leaves out, by folder."""

    def __init__(self, holding: Iterable[str], run: str) -> None:
        """Prepare the choice for the run `run`. It skips most tests of the proofs with these names.
        Runs with different names include different tests."""
        self.holding = list(holding)
        self._proofs = [proof for proof in PROOFS if proof.name in self.holding]
        self._run = run
        self.left: Counter[str] = Counter()

    def leaves(self, file: Path) -> bool:
        """Return whether the run includes no test of a file."""
        return any(proof.proves(file) and not proof.kept(file, self._run) for proof in self._proofs)

    def spared(self, items: Iterable[pytest.Item]) -> list[pytest.Item]:
        """Return the tests that the run leaves out."""
        return [item for proof in self._proofs for item in proof.spared(items, self._run)]

    def of_cases(
        self, file: Path, cases: Sequence[_Case], kernels: Callable[[_Case], Hashable]
    ) -> Sequence[_Case]:
        """Return the cases of a large file for which the run creates tests. `kernels` returns what
        is compiled for a case.

        To create tests for all cases, and then to skip 63 in 64, would cost each worker more than a
        second.
        """
        for proof in self._proofs:
            if proof.proves(file):
                kept = proof.kept(file, self._run)
                groups = list(_groups(cases, kernels))[kept.start :: kept.step]
                taken = [case for group in groups for case in group]
                self.count("cases", file, len(cases) - len(taken))
                return taken
        return cases

    def count(self, kind: str, file: Path, number: int = 1) -> None:
        """Count the tests of a file that are left to `make test-all`."""
        self.left[f"{kind} of {'/'.join(file.relative_to(ROOT).parts[:2])}"] += number


def _groups(cases: Iterable[_Case], kernels: Callable[[_Case], Hashable]) -> Iterator[list[_Case]]:
    """Yield groups of up to SHARING cases that have the same kernels."""
    alike: dict[Hashable, list[_Case]] = {}
    for case in cases:
        alike.setdefault(kernels(case), []).append(case)
    for group in alike.values():
        for begin in range(0, len(group), SHARING):
            yield group[begin : begin + SHARING]


CHOICE = pytest.StashKey[Choice]()
"""The key under which pytest's configuration holds the Choice."""


def holding() -> list[str]:
    """Return the names of the proofs whose digests match."""
    return [proof.name for proof in PROOFS if proof.holds()]


def write(names: Iterable[str]) -> None:
    """Write the digests of these proofs. Keep the recorded digests of all other proofs."""
    lines = PROVED.read_text(encoding="utf-8").splitlines() if PROVED.exists() else []
    digests = dict(line.split() for line in lines)
    digests |= {proof.name: proof.digest() for proof in PROOFS if proof.name in names}
    kept = (proof.name for proof in PROOFS if proof.name in digests)
    text = "".join(f"{name} {digests[name]}\n" for name in kept)
    PROVED.write_text(text, encoding="utf-8")


def main() -> None:
    """Write the digests of the proofs that the command line names, or print their tests."""
    every = [proof.name for proof in PROOFS]
    parser = argparse.ArgumentParser(prog="python -m tests.support.proved")
    parser.add_argument("--tests", action="store_true", help="print the tests, write nothing")
    parser.add_argument("proofs", nargs="*", metavar="PROOF", help=f"of {', '.join(every)}")
    options = parser.parse_args()
    names = options.proofs or every
    if unknown := set(names) - set(every):
        parser.error(f"there is no proof of {', '.join(unknown)}")
    if options.tests:
        print(*(test for proof in PROOFS if proof.name in names for test in proof.tests))
    else:
        write(names)


if __name__ == "__main__":
    main()
