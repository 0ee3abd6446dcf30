"""Fixtures for all folders."""

import contextlib
import gc
import importlib
import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

# Before anything imports NumPy, here or in a process that is started: its threads wait for each
# other by spinning, and a product of small matrices beside busy processes takes 50 times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from service.machine.cores import available_cores
from tests.support import ROOT, bytecode, proved
from tests.support.proved import CHOICE, Choice

# Before a test imports ONNX Runtime, in this process or one that it starts: tests report nothing.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# A server in a process of its own begins in half the time where what it imports is compiled. Who
# wants no bytecode beside the sources has it kept with the other caches.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / ".cache" / "bytecode")
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"]
    sys.dont_write_bytecode = False
    if "PYTEST_XDIST_WORKER" not in os.environ:
        bytecode.link_libraries(ROOT / ".cache" / "bytecode")

with contextlib.suppress(ImportError):  # the tests that a GPU is wanted for do without
    from hypothesis import settings

    # How long an example takes says more about the machine's other work than about the code.
    # The examples are the same in every run, so that a change is judged by itself, not by luck;
    # `HYPOTHESIS_PROFILE=search`, which `make test-all` sets, looks for new ones.
    settings.register_profile("convoy", deadline=None, derandomize=True)
    settings.register_profile("search", deadline=None)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "convoy"))


@pytest.fixture(autouse=True)
def same_noise() -> None:
    """Let a test draw the same weights (`onnx_chains.noise`) independent of earlier tests."""
    if chains := sys.modules.get("tests.support.models.onnx_chains"):
        vars(chains)["RNG"] = np.random.default_rng(17)


@pytest.fixture
def anyio_backend() -> str:
    """Tests marked `anyio` are coroutines and run on asyncio, as the server does."""
    return "asyncio"


@pytest.hookimpl(optionalhook=True)  # a GPU's machine need not have xdist
def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than cores, because tests of servers wait as long as they compute."""
    return available_cores() + 1


_WAITING = ("tests/service/whole/", "tests/deploy/")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the tests of this run, which are the same in each of xdist's workers."""
    told = getattr(config, "workerinput", {})
    spares = config.getoption("--spare-proved")
    holding = told["holding"] if told else proved.holding() if spares else []
    config.stash[CHOICE] = Choice(holding, told.get("testrunuid") or secrets.token_hex())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the matching proofs to a worker of xdist, because checking them again takes a second."""
    node.workerinput["holding"] = node.config.stash[CHOICE].holding


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options: `make test` skips most tests that passed with the same sources, and golden files
    can be written."""
    parser.addoption(
        "--spare-proved",
        action="store_true",
        help="run one in 64 tests of what passed with the same sources (support/proved.py)",
    )
    parser.addoption(
        "--write-golden",
        action="store_true",
        help="write what service/cli/golden and deploy/manifests/published.json should contain",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect without garbage collection, and exclude the collected objects from later collections.

    These are half a million objects that live as long as the process. Each worker starts with
    different files, so that only one worker compiles each file.
    """
    gc.disable()
    try:
        worker = getattr(session.config, "workerinput", None)
        if worker is not None and session.config.args == session.config.getini("testpaths"):
            begin = int(worker["workerid"][2:]) / worker["workercount"]
            _import_tests(session.config.stash[CHOICE], begin)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _import_tests(choice: Choice, begin: float) -> None:
    """Import the test files from this part of the collection on."""
    every = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [file for file in every if not choice.leaves(file)]
    first = int(begin * len(files))
    for file in files[first:] + files[:first]:
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        # Whatever is wrong with it, or it is skipped: pytest imports it again, and tells.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of which all cases are skipped."""
    choice = config.stash[CHOICE]
    if not collection_path.match("test_*.py") or not choice.leaves(collection_path):
        return None
    choice.count("files", collection_path)
    return True


@pytest.hookimpl(trylast=True)  # of the cases that markers leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the skipped cases, and start with those that wait for servers: the rest can then be
    computed meanwhile."""
    spared = config.stash[CHOICE].spared(items)
    left = set(map(id, spared))
    items[:] = [item for item in items if id(item) not in left]
    items.sort(key=lambda item: not item.nodeid.startswith(_WAITING))
    for item in spared:
        item.add_marker("spared")
    config.hook.pytest_deselected(items=spared)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count the tests that are left to `make test-all`, by folder."""
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("spared"):
            item.config.stash[CHOICE].count("tests", item.path)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In xdist's workers, send the counts to the process that prints the summary."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left"] = dict(session.config.stash[CHOICE].left)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receive the counts of a worker of xdist, which are the same in each."""
    left = getattr(node, "workeroutput", {}).get("left", {})
    node.config.stash[CHOICE].left = Counter(left)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the "summary" that tests recorded, including those of xdist's workers."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, text in report.user_properties:
                if name == "summary":
                    terminalreporter.section(report.nodeid)
                    terminalreporter.write_line(str(text))
    if left := terminalreporter.config.stash[CHOICE].left:
        parts = ", ".join(f"{count} {what}" for what, count in sorted(left.items()))
        terminalreporter.section("left to `make test-all`")
        terminalreporter.write_line(parts)
