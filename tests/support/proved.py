"""Which tests `make test` spares: most of those that passed with the same sources.

To simulate and compile every kernel and network, to compute figures of them, and to send the
batching policy hours of requests in virtual time takes most of the suite's time, and gives the same
result until a source, a case, a library or a compiler changes. `make prove` runs all of it, and
then writes the digest of all that each proof depends on to tests/proved.txt. While a proof's digest
holds, `make test` runs one test in 32, each run others than the one before, for
what a digest cannot know: this machine. Where it does not hold, and in `make test-all`, all run.

    python -m tests.support.proved            # writes the digests: `make prove`, where all passed
    python -m tests.support.proved --tests    # names the tests that it runs
"""

import hashlib
import re
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from kernels.device.compile import compiler
from tests.support import ROOT

PROVED = ROOT / "tests" / "proved.txt"

ONE_IN = 32

# Of files with few tests one in so many has tests in a run, and so many times as many of them: what
# a file needs once, such as a build of the simulator, is seldom made for a single test.
FILES = 4
MANY = 256

_IMPORT = re.compile(
    r"^\s*(?:from|import) ((?:benchmarks|loadtest|models|service|tests)\b[\w.]*)"
    r"(?: import ([\w, ]*))?"
)


@dataclass(frozen=True)
class Proof:
    """Names tests whose results depend only on sources, libraries, and the compilers."""

    name: str
    tests: tuple[str, ...]
    sources: tuple[str, ...]  # except for test files that `reads_more` names
    libraries: tuple[str, ...]

    def files(self) -> Iterator[Path]:
        """Yield the files of the sources, in order."""
        for source in map(ROOT.joinpath, self.sources):
            for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
                if path.is_file() and "__pycache__" not in path.parts:
                    yield path

    def digest(self) -> str:
        """Return the digest of the sources, the libraries' versions and the compilers."""
        whole = hashlib.sha256()
        gpp = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=False)
        libraries = [f"{library} {version(library)}" for library in self.libraries]
        whole.update("\n".join([compiler(), gpp.stdout, *libraries, ""]).encode())
        for path in self.files():
            whole.update(f"{path.relative_to(ROOT)}\n".encode())
            whole.update(hashlib.sha256(path.read_bytes()).digest())
        return whole.hexdigest()

    def holds(self) -> bool:
        """Tell whether all its tests passed with what is here now."""
        lines = PROVED.read_text(encoding="utf-8").splitlines() if PROVED.exists() else []
        return f"{self.name} {self.digest()}" in lines

    def reads_more(self, file: Path) -> bool:
        """Tell whether a module imports one of the project's that is none of the sources."""
        places = {source.removesuffix(".py").replace("/", ".") for source in self.sources}
        return any(
            name != "tests.support.ROOT"
            and not any(f"{name}.".startswith(f"{place}.") for place in places)
            for name in _imports(file)
        )

    def spared(self, items: Iterable[pytest.Item], run: str) -> list[pytest.Item]:
        """Return the tests that need not run again while it holds: 31 in 32.

        Which they are depends on the run's name alone, for all its workers to spare the same.
        """
        by_file: dict[Path, list[pytest.Item]] = {}
        for item in items:
            by_file.setdefault(item.path, []).append(item)
        spared: list[pytest.Item] = []
        for path, tests in by_file.items():
            where = path.relative_to(ROOT).as_posix()
            if where.startswith(self.tests) and not self.reads_more(path):
                files = FILES if len(tests) < MANY else 1
                step, turn = ONE_IN // files, zlib.crc32(f"{where} {run}".encode())
                first = turn // files % step if turn % files == 0 else len(tests)
                kept = set(range(first, len(tests), step))
                spared += [test for place, test in enumerate(tests) if place not in kept]
        return spared


@cache
def _imports(file: Path) -> tuple[str, ...]:
    """Return what a file imports, with the names of each module that stand on the same line: a
    package's may be its modules."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return tuple(
        f"{found[1]}.{name.split()[0]}" if name else found[1]
        for line in lines
        if (found := _IMPORT.match(line))
        for name in (found[2] or "").strip().split(", ")
    )


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
)

_SERVICE = (
    "service/__init__.py",
    "service/callbacks.py",
    "service/errors.py",
    "service/fair_queue.py",
    "service/folders.py",
)

_NETWORKS = Proof(
    "networks",
    tests=("tests/models",),
    sources=(
        *_KERNELS.sources,
        "tests/models",
        "models",
        "benchmarks/networks",
        "benchmarks/families",
        "tests/support/models",
        "tests/support/networks.py",
        "tests/support/onnx_models.py",
        # These read the images of some tests.
        *_SERVICE,
        "service/engine/__init__.py",
        "service/engine/cgroups.py",
        "service/engine/cores.py",
        "service/engine/process_pool.py",
        "service/engine/threads.py",
        "service/engine/undecoded.py",
        "service/images",
    ),
    libraries=("numpy", "onnx", "onnx-ir", "onnxruntime", "onnxscript", "pillow"),
)

PROOFS = (
    _KERNELS,
    _NETWORKS,
    # What is computed of both: errors, costs, estimates, the steps of a page; and what measures
    # kernels and networks, on the simulator.
    Proof(
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
            "tests/benchmarks/papers/test_errors.py",
            "tests/benchmarks/papers/test_ladder.py",
        ),
        sources=(
            *_NETWORKS.sources,
            "benchmarks/__init__.py",
            "benchmarks/gpu",
            "benchmarks/papers/__init__.py",
            "benchmarks/papers/errors.py",
            "benchmarks/papers/ladder.py",
            "benchmarks/papers/result.py",
            "benchmarks/results/accuracy.jsonl",
            "benchmarks/serving/__init__.py",
            "benchmarks/serving/http_client.py",
            "benchmarks/serving/served.py",
            "docs/ladder",
            "docs/ladder.md",
            "tests/benchmarks/conftest.py",
            "tests/benchmarks/gpu",
            "tests/benchmarks/kernels",
            "tests/benchmarks/networks",
            "tests/benchmarks/papers/test_errors.py",
            "tests/benchmarks/papers/test_ladder.py",
            "tests/support/benchmarks/__init__.py",
            "tests/support/benchmarks/made_up.py",
            "tests/support/images",
        ),
        libraries=(*_NETWORKS.libraries, "matplotlib"),
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
        libraries=(*_NETWORKS.libraries, "hypothesis", "matplotlib"),
    ),
    # What decoding takes, and what becomes of damaged files.
    Proof(
        "images",
        tests=(
            "tests/service/images/test_decode_fuzz.py",
            "tests/service/images/test_decode_memory.py",
        ),
        sources=(
            *_NETWORKS.sources,
            "tests/service/images",
            "tests/support/clips/__init__.py",
            "tests/support/clips/videos.py",
            "tests/support/images",
        ),
        libraries=(*_NETWORKS.libraries, "av", "hypothesis", "pi-heif", "simplejpeg"),
    ),
)


if __name__ == "__main__":
    if sys.argv[1:] == ["--tests"]:
        print(*(test for proof in PROOFS for test in proof.tests))
    else:
        PROVED.write_text(
            "".join(f"{proof.name} {proof.digest()}\n" for proof in PROOFS), encoding="utf-8"
        )
