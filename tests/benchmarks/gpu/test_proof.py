"""The proof: what it says of checks that pass, fail, hang or die, and of kernels that are wrong."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import checks, proof
from benchmarks.gpu.checks import NotProvedError, first_cases, load_kernels, run_cases
from benchmarks.rows import read
from kernels.device.device import SOURCE_ROOT, DeviceError, Instantiation
from models.schedule.branches import dependents
from tests.cusim.device import CusimDevice
from tests.support import ROOT
from tests.support.cases import CASES
from tests.support.kernels.kernel_case import KernelCase
from tests.support.networks import needs_shared


def saying(*lines: object, then: str = "") -> list[str]:
    """A child that says these lines."""
    program = "".join(f"print({json.dumps(json.dumps(line))}, flush=True)\n" for line in lines)
    return [sys.executable, "-c", program + then]


def passed(name: str, ok: bool = True) -> dict[str, object]:
    return {"check": name, "ok": ok, "text": "as it should", "seconds": 0.1}


ALL = [passed(name) for name in proof.NAMES]


def test_the_parent_knows_every_check() -> None:
    assert tuple(checks.CHECKS) == proof.NAMES


def test_it_is_proved_where_every_check_passes_and_a_row_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    child = saying({"place": {"device": "made up", "commit": ""}}, *ALL)
    proved, _ = proof.prove(child, 20, "abc", tmp_path)
    assert proved
    assert capsys.readouterr().out.splitlines()[-1] == "PROVED"
    (row,) = read(tmp_path / "gpu_proof.jsonl")
    assert (row["device"], row["commit"], row["proved"]) == ("made up", "abc", True)


@pytest.mark.parametrize(
    ("said", "then", "wrong", "why"),
    [
        ([*ALL[:3], passed("digits", ok=False), *ALL[4:]], "", "digits", "as it should"),
        (ALL[:-1], "", "server", "the checks ended before it"),
        (ALL[:-1], "import os; os._exit(9)", "server", "the process died with status 9 before it"),
        (ALL[:-1], "import time; time.sleep(60)", "server", "2 s were over before it"),
    ],
    ids=["failed", "left out", "died", "hung"],
)
def test_what_is_not_shown_is_not_proved(
    said: list[object],
    then: str,
    wrong: str,
    why: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    proved, _ = proof.prove(saying(*said, then=then), 2, "abc", tmp_path)
    assert not proved
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == f"NOT PROVED: {wrong}"
    assert f"FAILED {wrong}: {why}" in output
    assert read(tmp_path / "gpu_proof.jsonl")[0]["not_proved"] == [wrong]


def test_every_kernel_template_has_a_case_in_the_simulators_part() -> None:
    whole = {each.kernel for case in CASES for each in kernels_of(case)}
    assert {each.kernel for case in first_cases() for each in kernels_of(case)} == whole


def kernels_of(case: KernelCase) -> list[Instantiation]:
    return [launch.instantiation for launch in case.launches]


BREAKS = {
    "lrn.cu": ("fmaf(scale, sum, bias)", "fmaf(scale, sum, 2 * bias)"),
    "softmax.cu": ("expf(shifted) / sum", "expf(shifted)"),
    "elementwise.cu": ("return a + b", "return a - b"),
}


@pytest.mark.parametrize("source", BREAKS)
def test_a_kernel_that_is_broken_on_purpose_is_not_proved(source: str, tmp_path: Path) -> None:
    broken = tmp_path / "src"
    shutil.copytree(SOURCE_ROOT, broken)
    text = (broken / source).read_text()
    assert BREAKS[source][0] in text
    (broken / source).write_text(text.replace(*BREAKS[source]))
    cases = [
        case for case in first_cases() if {each.source for each in kernels_of(case)} == {source}
    ]
    device = CusimDevice(source_root=broken)
    subject = checks.Subject(device, None, cases=cases)
    assert load_kernels(subject)
    with pytest.raises(NotProvedError, match="cases are wrong"):
        run_cases(subject)
    device.close()


@pytest.fixture(scope="module")
def digits() -> Iterator[checks.Subject]:
    device = CusimDevice()
    subject = checks.Subject(device, None, max_batch=2, replays=2)
    checks.classify_digits(subject)
    yield subject
    device.close()


def test_graphs_replay_as_planned(digits: checks.Subject) -> None:
    (engine, _), *_ = digits.engines.values()
    planned = sum(sum(dependents(plan.after)) for plan in engine.plans.values())
    assert planned > 10
    assert checks.count_edges(digits) == f"{planned} programmatic edges, as planned"
    assert checks.replay_often(digits) == "2 replays of each graph"


def test_full_edges_are_told(digits: checks.Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits.device, "early_launches", lambda graph: 3)
    with pytest.raises(NotProvedError, match=r"3 of \d+ dependent launches may begin early"):
        checks.count_edges(digits)


def test_a_replay_of_other_bits_is_told(
    digits: checks.Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (engine, _), *_ = digits.engines.values()
    run = engine.run
    monkeypatch.setattr(engine, "run", lambda images: run(images) + np.float32(1))
    with pytest.raises(NotProvedError, match="replay 0 gives other bits"):
        checks.replay_often(digits)


def test_late_stores_add_up_unless_a_kernel_does_not_wait(tmp_path: Path) -> None:
    device = CusimDevice()
    said = checks.wait_for_late_stores(checks.Subject(device, None))
    assert said.startswith("20 replays of 16 launches")
    device.close()
    broken = tmp_path / "src"
    shutil.copytree(SOURCE_ROOT, broken)
    source = broken / "micro.cu"
    head = "late(const float* x, float* y) {\n"
    kept, late = source.read_text().split(f"{head}  follow_previous();")
    source.write_text(f"{kept}{head}  let_next_begin();{late}")
    device = CusimDevice(source_root=broken)
    with pytest.raises((NotProvedError, DeviceError)):
        checks.wait_for_late_stores(checks.Subject(device, None))
    device.close()


def test_without_photographs_nothing_is_skipped_in_silence() -> None:
    device = CusimDevice()
    subject = checks.Subject(device, None)
    for check in (
        checks.classify_photographs,
        checks.answer_requests,
        checks.replay_graphs,
        checks.count_edges,
        checks.replay_often,
    ):
        with pytest.raises(NotProvedError):
            check(subject)
    device.close()


def checkout(folder: Path) -> Path:
    """A copy of this one, beside the same data and with the same kernels built."""
    copy = folder / "convoy"
    for package in ("benchmarks", "kernels", "loadtest", "models", "service", "tests"):
        shutil.copytree(ROOT / package, copy / package)
    (copy / ".cache").symlink_to(ROOT / ".cache")
    (folder / "shared").symlink_to(ROOT.resolve().parent / "shared")
    return copy


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("broken", [None, *BREAKS])
def test_the_command_ends_with_status_0_or_with_1_where_a_kernel_is_broken(
    broken: str | None, tmp_path: Path
) -> None:
    copy = checkout(tmp_path)
    if broken is not None:
        source = copy / "kernels" / "src" / broken
        source.write_text(source.read_text().replace(*BREAKS[broken]))
    command = [sys.executable, "-m", "benchmarks.gpu", "proof", "--device", "cusim"]
    run = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    said = run.stdout.splitlines()[-1]
    if broken is None:
        assert (run.returncode, said) == (0, "PROVED"), run.stdout + run.stderr
        assert "20 of 132 instantiations" in run.stdout
    else:
        assert run.returncode == 1
        assert said.startswith("NOT PROVED: kernels are right")
