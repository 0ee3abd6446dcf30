"""Runs the tests marked `gpu`, from kernels to server, to prove that Convoy computes correctly on
this GPU.

This is the first step of docs/gpu-day.md. Each group of tests runs in a separate process, which may
hang or die. Each outcome is written when its test ends (outcomes.py). If a test stops the process,
another process continues after that test. The proof fails unless all tests have passed in the end.
"""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import carried
from benchmarks.gpu.clocks import clocks
from benchmarks.gpu.outcomes import PASSED, WAITS, ends_of
from benchmarks.rows import ROOT, Row, append, now, read, where
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import DeviceError

OUTCOMES = "gpu_tests.jsonl"
"""The file in the results' folder with the outcome of each test."""

HANG_S = 30
"""Seconds after which a test counts as hung. They include no compilation: kernels are compiled
beforehand, or carried."""

MOST_PROCESSES = 10
"""The most processes of a group. Each process continues after the test that stopped the process
before."""

_ENGINES = "tests/models/engines"
_WHOLE_KERNELS = "tests/kernels/whole/test_kernels.py"
_KERNELS = (
    "tests/kernels/device/test_device.py",
    "tests/kernels/device/test_cuda_device.py",
    "tests/kernels/tuning/test_autotune.py",
    "tests/kernels/tuning/test_micro_late.py",
    _WHOLE_KERNELS,
)
_WINDOWS = "1x7 or 7x1"
_ENDED = "pytest ended with status {}"
_LONG = "vgg19 or densenet or 4096"
"""The whole networks whose float64 reference alone takes minutes."""


@dataclass(frozen=True)
class Group:
    """A group of tests in the files and folders `tests`. It contains the tests that have the mark
    `gpu`, and that pytest's options -m (`marks`) and -k (`names`) select."""

    tests: tuple[str, ...]
    marks: str = "not slow"
    names: str = ""


GROUPS: Mapping[str, Group] = {
    "kernels": Group(_KERNELS, "not risky and not slow"),
    "replays": Group(
        tuple(
            f"{_ENGINES}/test_cuda_engine_{what}.py" for what in ("replays", "decodes", "resizes")
        ),
        "",  # slow tests too: they take only seconds on a GPU
    ),
    "engines": Group(
        (_ENGINES,), "", f"not replays and not decodes and not resizes and not ({_LONG})"
    ),
    "benchmarks": Group(("tests/benchmarks/kernels/test_sides_on_a_gpu.py",), "not baseline"),
    "server": Group(("tests/service/whole/test_gpu_server.py",)),
    "windows": Group((_WHOLE_KERNELS,), "risky", f"conv_tensor_tma and ({_WINDOWS})"),
    "risky": Group((_WHOLE_KERNELS,), "risky", f"not (conv_tensor_tma and ({_WINDOWS}))"),
}
"""The groups in the order in which they run. Kernels that may hang the GPU come last. Of these,
"windows" comes first: it shows in which order a driver takes the corners of images."""


def command(group: Group) -> list[str]:
    """Return the command that runs the tests of a group."""
    limits = ("-o", f"faulthandler_timeout={HANG_S}", "-o", "faulthandler_exit_on_timeout=true")
    marks = " and ".join(f"({each})" for each in ("gpu", group.marks) if each)
    options = (
        "-q",
        "--tb=short",
        "-m",
        marks,
        "-k",
        group.names,
        "-p",
        "no:cacheprovider",
        *limits,
    )
    return [*carried.python(), "-m", "pytest", *options, *group.tests]


def prove(groups: Mapping[str, Sequence[str]], seconds: float, commit: str, out: Path) -> bool:
    """Run each group of tests, for at most `seconds` in total. `groups` maps a group's name to its
    command. Return whether all tests passed.

    Writes a summary to gpu_proof.jsonl in the folder `out`, and each test's outcome as soon as it
    is known. A skipped test counts as not passed.
    """
    deadline, ends, ended = time.monotonic() + seconds, dict[str, str](), dict[str, str]()
    for name, tests in groups.items():
        ended[name] = _run(tests, deadline, out / OUTCOMES, run := f"{name} {now()}")
        found = ends_of(read(out / OUTCOMES), run)
        print(f"{now()} {name}: {ended[name]}, {dict(Counter(found.values())) or 'nothing shown'}")
        ends |= found or {name: WAITS}
    counted = Counter(ends.values())
    wrong = [f"{test}: {outcome}" for test, outcome in ends.items() if outcome != PASSED]
    proved = bool(ends) and not wrong and set(ended.values()) == {_ENDED.format(0)}
    print("PROVED" if proved else f"NOT PROVED: {dict(counted)}", flush=True)
    row: Row = {
        **_place(commit),
        **clocks(),
        "kind": "proof",
        "date": now(),
        "commit": commit,
        "proved": proved,
        "ended": ended,
        "passed": counted[PASSED],
        "not_proved": wrong,
    }
    append(out / "gpu_proof.jsonl", [row])
    return proved


def _run(tests: Sequence[str], deadline: float, outcomes: Path, run: str) -> str:
    """Run the command `tests` until all of its tests have begun or the time is over. If a test
    stops the process, run the command again for the remaining tests. Return how the last process
    ended."""
    plugin = ("-p", "benchmarks.gpu.outcomes", f"--outcomes={outcomes}", f"--outcomes-of={run}")
    alone = "--continue-on-collection-errors"  # run the other files if one cannot be imported
    begun, ended = 0, ""
    for _ in range(MOST_PROCESSES):
        status = limited([*tests, *plugin, alone], deadline - time.monotonic())
        if status is None:
            return "the time was over"
        ended = _ENDED.format(status)
        ends = ends_of(read(outcomes), run)
        waiting = Counter(ends.values())[WAITS]
        if not waiting or len(ends) - waiting == begun:
            break
        begun = len(ends) - waiting
    return ended


def limited(command: Sequence[str], seconds: float, **options: Any) -> int | None:
    """Run a command. Return its exit status, or None if it was killed after `seconds`. In both
    cases, all processes that the command started are killed at the end.

    If `seconds` is not positive, the command is not started.
    """
    if seconds <= 0:
        return None
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **options)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _place(commit: str) -> Row:
    try:
        return where(CudaDevice(), commit)
    except DeviceError as error:
        return {"device": f"none answers: {error}"}
