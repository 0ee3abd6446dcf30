"""Runs that are killed, crash or hang: every unit has exactly one row."""

import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import run as runs
from benchmarks.gpu.commands import main
from benchmarks.gpu.day import SECONDS, START_S
from benchmarks.gpu.run import pack, run
from benchmarks.gpu.units import Unit, limit_s, missing, packed, seconds_of, units
from benchmarks.kernels.suites import MEASURED, NAMED, batches_of
from benchmarks.rows import read
from tests.support import PATIENCE_S, ROOT
from tests.support.benchmarks.stand_in_gpu import CRASHING, UNITS

_HELLO = (
    "import sys, time, json; print(json.dumps({'machine': {'device': 'made up', 'commit': '0'}}))\n"
)
_ANSWER = "print(json.dumps({'outcome': 'measured', 'rows': []}), flush=True)\n"


def worker(on_line: str = _ANSWER, hello: str = _HELLO) -> list[str]:
    """Return a worker that does this with every unit."""
    loop = f"sys.stdout.flush()\nfor line in sys.stdin:\n    {on_line}"
    return [sys.executable, "-c", hello + loop]


def lines_of(out: Path) -> list[Any]:
    return list(read(out / "gpu.jsonl"))


def assert_each_once(lines: Iterable[Any]) -> None:
    assert sorted(line["unit"] for line in lines) == sorted(map(str, UNITS))


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_again_and_again_loses_no_line_and_repeats_none(
    kills: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.support.benchmarks.stand_in_gpu", str(tmp_path)]
    rng = random.Random(1)
    seen: list[Any] = []
    for _ in range(kills):
        before = len(seen)
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()  # the first unit is done, or there is nothing to do
        time.sleep(rng.uniform(0, 0.06))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        now = lines_of(tmp_path)
        assert now[:before] == seen, "what was there stays as it was"
        seen = now
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    lines = lines_of(tmp_path)
    assert lines[: len(seen)] == seen
    assert_each_once(lines)
    crashed = [line for line in lines if line["outcome"] == "crashed"]
    assert {line["unit"].split(" N")[0] for line in crashed} <= {f"layer {CRASHING}"}
    assert len(crashed) == 2
    assert all(len(line["rows"]) == 2 for line in lines if line not in crashed)


def test_a_line_cut_short_is_measured_again(tmp_path: Path) -> None:
    run(tmp_path, PATIENCE_S, "0", UNITS[:3], lambda *_: worker())
    file = tmp_path / "gpu.jsonl"
    os.truncate(file, file.stat().st_size - 5)
    assert len(lines_of(tmp_path)) == 2
    run(tmp_path, PATIENCE_S, "0", UNITS[:3], lambda *_: worker())
    assert [line["unit"] for line in lines_of(tmp_path)] == [str(unit) for unit in UNITS[:3]]


def test_a_unit_that_hangs_leaves_a_line_and_the_next_has_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {UNITS[1]: 1.0}
    monkeypatch.setattr(runs, "limit_s", lambda unit, _: limits.get(unit, PATIENCE_S))
    hangs = f"time.sleep(600) if 'made up 1\"' in line else {_ANSWER}"
    run(tmp_path, 10 * PATIENCE_S, "0", UNITS[:3], lambda *_: worker(hangs))
    assert [line["outcome"] for line in lines_of(tmp_path)] == ["measured", "crashed", "measured"]
    assert lines_of(tmp_path)[1]["why"] == "the measuring process hung for 1 s"


def test_a_side_that_cannot_start_stops_no_other_and_leaves_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = [sys.executable, "-c", "raise SystemExit('no PyTorch')"]
    run(tmp_path, PATIENCE_S, "0", UNITS, lambda _, side: absent if side == "torch" else worker())
    assert {line["side"] for line in lines_of(tmp_path)} == {"convoy"}
    assert "layer by torch is not measured: the measuring process crashed with status 1" in (
        capsys.readouterr().out
    )


def test_a_run_ends_in_time_with_what_it_was_at_left_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "START_S", 1.0)
    monkeypatch.setattr(runs, "seconds_of", lambda _: {("layer", "convoy"): 0.5})
    began = time.monotonic()
    run(tmp_path, 3, "0", UNITS[:3], lambda *_: worker("time.sleep(1200)"))
    assert time.monotonic() - began < PATIENCE_S
    assert lines_of(tmp_path) == []


def test_lines_of_another_commit_count_for_nothing(tmp_path: Path) -> None:
    run(tmp_path, PATIENCE_S, "0", UNITS[:2], lambda *_: worker())
    lines = lines_of(tmp_path)
    assert missing(UNITS[:2], lines, "0") == []
    assert missing(UNITS[:2], lines, "1") == UNITS[:2]
    assert missing(UNITS[:2], lines, "0", device="another") == UNITS[:2]


def test_what_comes_back_is_one_file(tmp_path: Path) -> None:
    run(tmp_path / "out", PATIENCE_S, "0", UNITS[:1], lambda *_: worker())
    (tmp_path / "out" / "tuning.json").write_text("{}")
    pack(tmp_path / "out", tmp_path / "gpu.tar")
    with tarfile.open(tmp_path / "gpu.tar") as packed_file:
        assert packed_file.getnames() == ["gpu.jsonl", "tuning.json"]


def test_the_plan_has_every_unit_once_and_torch_before_cudnn() -> None:
    every = units()
    assert len(set(every)) == len(every) > 1000
    assert {unit.kind for unit in every} == {"micro", "layer", "network", "http", "decoding"}
    first: dict[tuple[str, str], int] = {}
    for place, unit in enumerate(every):
        first.setdefault((unit.kind, unit.side), place)
    assert first["layer", "torch"] < first["layer", "cudnn"]
    assert all(limit_s(unit, seconds_of([])) > 30 for unit in every)


def test_of_the_papers_configurations_those_that_they_name_fit_what_a_day_leaves() -> None:
    fits = packed(units(), SECONDS - START_S, seconds_of([]))
    for named in NAMED:
        for side in ("convoy", "torch"):
            assert Unit("layer", str(named.layer.problem), named.n, side) in fits
    every = set(units())
    for suite, layers in MEASURED.items():
        wanted = {(str(layer.problem), n) for layer in layers for n in batches_of(suite)}
        assert wanted == {
            (unit.subject, unit.n)
            for unit in every
            if unit.side == "convoy" and (unit.subject, unit.n) in wanted
        }, suite


def test_what_fits_is_packed_in_order_and_counts_a_worker_s_start() -> None:
    takes = {("layer", "convoy"): 10.0, ("layer", "cudnn"): 100.0}
    todo = [
        Unit("layer", "a", 1, "convoy"),
        Unit("layer", "b", 1, "cudnn"),
        Unit("layer", "c", 1, "convoy"),
        Unit("layer", "d", 1, "convoy"),
    ]
    assert packed(todo, 36, takes) == [todo[0], todo[2]]
    assert packed(todo, 46, takes) == [todo[0], todo[2], todo[3]]
    assert packed(todo, 19, takes) == []


def test_seconds_are_those_that_units_took() -> None:
    lines = [
        {"unit": "layer x N1 torch", "side": "torch", "outcome": "measured", "seconds": s}
        for s in (5.0, 7.0, 90.0)
    ]
    assert seconds_of(lines)["layer", "torch"] == 7.0


def test_the_plan_says_what_is_missing_and_what_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--out", str(tmp_path), "--seconds", "100", "--commit", "0"]) == 0
    first, second, *groups = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{len(units())} of {len(units())} measurements are missing, about")
    assert second.endswith(" of them fit into 100 s:")
    assert groups[0].startswith("  micro convoy, N = 1: ")
    assert groups[1].startswith("  network convoy untuned, N = 1: ")


def test_units_are_chosen_by_a_part_of_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_resnet = [unit for unit in units() if "ResNet-50" in str(unit)]
    plan = ["plan", "--out", str(tmp_path), "--commit", "0", "--only"]
    assert main([*plan, "ResNet-50"]) == 0
    assert 0 < len(of_resnet) < len(units())
    count = len(of_resnet)
    assert f"{count} of {count} measurements are missing" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no unit's name contains 'ResNet-51'; "):
        main([*plan, "ResNet-51"])


def test_a_run_without_a_gpu_is_a_failure_that_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    no_cupy = "import sys; sys.modules['cupy'] = None; from benchmarks.gpu.commands import main; "
    command = [sys.executable, "-c", no_cupy + "main(sys.argv[3:])"]
    monkeypatch.setattr("benchmarks.gpu.carried.python", lambda **_: command)
    monkeypatch.setattr("benchmarks.gpu.commands.units", lambda: UNITS[:2])
    tar = tmp_path / "gpu.tar"
    assert main(["run", "--out", str(tmp_path), "--commit", "0", "--tar", str(tar)]) == 1
    told = capfd.readouterr()
    assert (
        "layer by convoy is not measured: the measuring process crashed with status 1" in told.out
    )
    assert "CuPy cannot be imported" in told.err
    assert tar.is_file()
