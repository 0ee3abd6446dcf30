"""Measuring problem by problem: Convoy on the simulated device, beside a side that is made up."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.kernels import __main__ as kernels
from benchmarks.kernels.__main__ import measure, nvidia_driver, of_place, problems, where
from benchmarks.kernels.contest import Cache, Effort, Outcome, Winner
from benchmarks.kernels.sides import ConvoySide, Side, baselines
from benchmarks.kernels.suites import CUCONV, SUITES, VGG_E, Layer
from benchmarks.rows import append, read
from cusim.device import CusimDevice
from kernels.device.device import FaultError
from kernels.problems.conv import ConvProblem, same_padded
from kernels.tuning.autotune import Search
from kernels.tuning.heuristic import heuristic
from kernels.tuning.store import TuningStore
from kernels.tuning.timing import Timing
from tests.support.benchmarks.made_up import rows_of

QUICK = Effort(copies=2, replays=2)
SMALL = same_padded((3, 4), 3, 4, 8)
POINTWISE = same_padded((4, 4), 1, 8, 4).with_batch(2)
PLACE = {"kind": "measurement", "device": "simulated", "commit": "abc", "peak_flops": 1e9}


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    device = CusimDevice()
    yield device
    device.close()


class MadeUpSide:
    """Takes a µs more each time it is asked; says of what."""

    def __init__(self, name: str = "made up", runs: bool = True) -> None:
        self.name = name
        self.asked: list[ConvProblem] = []
        self._runs = runs

    def measure(self, problem: ConvProblem) -> Outcome:
        self.asked.append(problem)
        if not self._runs:
            return Outcome({}, 1, {"the only one": "no memory"})
        us = float(len(self.asked))
        winner = Winner("the only one", Timing(us - 0.5, us, us + 0.5), None)
        return Outcome({Cache.WARM: winner, Cache.COLD: winner}, 1, {})

    def close(self) -> None:
        pass


def run(todo: list[ConvProblem], sides: list[Side], file: Path, **changes: Any) -> str:
    place = {**PLACE, **changes.pop("place", {})}
    out = io.StringIO()
    budget = changes.pop("budget_s", 1000)
    measure(todo, sides, file, place, QUICK, budget, Console(file=out, width=200))
    return out.getvalue()


def test_both_sides_are_measured_warm_and_cold_and_rows_say_all_they_depend_on(
    device: CusimDevice, tmp_path: Path
) -> None:
    file = tmp_path / "kernels.jsonl"
    store = TuningStore(tmp_path / "tuning.json")
    sides: list[Side] = [ConvoySide(device, QUICK, store, Search(top=1)), MadeUpSide()]
    shown = run([SMALL, POINTWISE], sides, file)
    rows = read(file)
    assert [(row["problem"], row["side"], row["cache"]) for row in rows] == [
        (str(problem), side, cache)
        for problem in (SMALL, POINTWISE)
        for side in ("convoy", "made up")
        for cache in ("warm", "cold")
    ]
    for row in rows:
        assert row["kind"] == "measurement"
        assert (row["device"], row["commit"]) == ("simulated", "abc")
        assert row["date"]
        assert 0 < row["p20_us"] <= row["p50_us"] <= row["p80_us"]
        assert (row["copies"], row["replays"]) == (2, 2)
        assert row["refused"] == 0
    assert rows[4]["n"] == 2
    assert [row["workspace_bytes"] for row in rows[:4]] == [0, 0, None, None]
    assert [rows[6][f"p{each}_us"] for each in (20, 50, 80)] == [1.5, 2, 2.5]
    warm, cold = rows[:2]
    assert warm["choice"] == cold["choice"]  # one for both, as in an engine
    assert "made up: warm 2.00 µs (the only one)" in shown
    for side in sides:
        side.close()


def test_what_is_there_is_not_measured_again_but_for_another_commit_or_device(
    tmp_path: Path,
) -> None:
    file = tmp_path / "kernels.jsonl"
    first, second = MadeUpSide("first"), MadeUpSide("second")
    run([SMALL], [first], file)
    run([SMALL, POINTWISE], [first, second], file)
    assert first.asked == [SMALL, POINTWISE]
    assert second.asked == [SMALL, POINTWISE]
    run([SMALL, POINTWISE], [first, second], file)
    assert len(first.asked) == 2
    run([SMALL], [first], file, place={"commit": "abd"})
    run([SMALL], [first], file, place={"device": "another"})
    assert len(first.asked) == 4


def test_a_spent_budget_stops_and_says_how_to_go_on(tmp_path: Path) -> None:
    side = MadeUpSide()
    shown = run([SMALL], [side], tmp_path / "rows.jsonl", budget_s=0)
    assert side.asked == []
    assert "goes on from here" in shown


def test_a_side_on_which_nothing_runs_says_why_and_leaves_no_row(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    shown = run([SMALL], [MadeUpSide(runs=False)], file)
    assert "made up: nothing runs (the only one: no memory)" in shown
    assert read(file) == []


def test_without_a_store_the_heuristics_choice_is_timed(device: CusimDevice) -> None:
    side = ConvoySide(device, QUICK, None, Search())
    outcome = side.measure(SMALL)
    side.close()
    assert {each.name for each in outcome.winners.values()} == {str(heuristic(device)(SMALL))}
    assert outcome.tried == 1


def test_a_choice_that_is_wrong_is_never_timed(
    device: CusimDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = ConvoySide(device, QUICK, None, Search())
    prepare = type(heuristic(device)(SMALL).algorithm).prepare_filter
    monkeypatch.setattr(
        type(heuristic(device)(SMALL).algorithm),
        "prepare_filter",
        lambda self, weight, *others: prepare(self, 1 - weight, *others),
    )
    outcome = side.measure(SMALL)
    side.close()
    assert outcome.winners == {}
    assert "are wrong" in outcome.refused[str(heuristic(device)(SMALL))]


def test_problems_come_once_and_in_the_order_of_n() -> None:
    every = problems(SUITES, (8, 1))
    assert len(every) == len(set(every)) == 2 * (len(CUCONV) + 4)  # VGG-E is part of cuConv's
    assert [problem.n for problem in every] == [8] * 101 + [1] * 101
    assert every[:9] == [layer.problem.with_batch(8) for layer in VGG_E]


def test_a_place_says_which_device_and_versions(device: CusimDevice) -> None:
    place = where(device, "abc")
    assert place["commit"] == "abc"
    assert place["device"] == device.name
    assert place["peak_flops"] == device.peak_flops
    assert place["python"]
    row = {**place, "problem": "p"}
    assert of_place([row, {**row, "commit": "abd"}, {**row, "kind": "estimate"}], place) == [row]


def test_the_drivers_version_is_what_nvidia_smi_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_driver() is None
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\n[ "$1" = --query-gpu=driver_version ] && echo 580.1\n')
    program.chmod(0o755)
    assert nvidia_driver() == "580.1"


def test_a_report_shows_the_rows_of_the_last_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels.main(["--report", "--out", str(tmp_path)])
    assert "no rows" in capsys.readouterr().out
    append(tmp_path / "kernels.jsonl", rows_of(VGG_E, 1, lambda _: 3))
    append(
        tmp_path / "kernels.jsonl",
        [{**row, "commit": "1"} for row in rows_of(VGG_E, 8, lambda _: 2)],
    )
    kernels.main(["--report", "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "vgg-e, N = 8, cache warm" in shown
    assert "vgg-e, N = 1, cache warm" not in shown


def test_a_run_measures_reports_and_plots(
    device: CusimDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(kernels, "CudaDevice", lambda: device)
    monkeypatch.setattr(kernels, "Effort", lambda: QUICK)
    monkeypatch.setattr(kernels, "SUITES", {"vgg-e": (Layer("small", SMALL),)})
    monkeypatch.setitem(sys.modules, "torch", None)
    kernels.main(["--n", "1", "--heuristic", "--out", str(tmp_path), "--commit", "abc"])
    shown = capsys.readouterr().out
    assert f"{SMALL}  convoy: warm" in shown
    assert "torch is not measured: PyTorch cannot be imported" in shown
    assert "not measured: vgg-e at N = 1" in shown
    rows = read(tmp_path / "kernels.jsonl")
    assert {(row["side"], row["device"], row["commit"]) for row in rows} == {
        ("convoy", device.name, "abc")
    }


def test_a_lost_device_ends_the_run_after_showing_what_there_is(
    device: CusimDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost(MadeUpSide):
        def measure(self, problem: ConvProblem) -> Outcome:
            raise FaultError("illegal address")

    monkeypatch.setattr(kernels, "CudaDevice", lambda: device)
    monkeypatch.setattr(kernels, "ConvoySide", lambda *_: Lost())
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="the device is lost: illegal address"):
        kernels.main(["--n", "1", "--suite", "c3d", "--out", str(tmp_path)])


def test_without_a_gpu_it_is_said_that_one_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(SystemExit, match="kernels are measured on a GPU"):
        kernels.main([])


def test_a_baseline_that_is_not_installed_is_left_out_and_named(
    device: CusimDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    said: list[str] = []
    assert baselines(("cudnn", "torch"), device, QUICK, said.append) == []
    assert len(said) == 2
    assert said[0].startswith("cudnn is not measured: PyTorch cannot be imported")
