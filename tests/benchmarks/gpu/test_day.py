"""A day with a GPU: its stages as data, and the results that remain after every kind of failure."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gpu import day
from benchmarks.gpu.commands import _chosen, main, parse_arguments
from benchmarks.gpu.day import PARTS, SECONDS, START_S, Stage
from benchmarks.gpu.proof import GROUPS
from benchmarks.gpu.units import packed, seconds_of, units
from benchmarks.rows import read
from tests.support import ROOT

MOST_SECONDS, MOST_CHARACTERS, MOST_FILES = 600, 2000, 8
"""Of a command there, and the files that come back."""

EVERY = [stage for stages in PARTS.values() for stage in stages]


def told(stage: Stage) -> list[str]:
    """Return the words of its command."""
    return [word.format(out="out", seconds=9) for word in (*stage.program, *stage.arguments)]


def python(name: str, program: str, limit: int = 60, *before: str) -> Stage:
    return Stage(name, ("-c", program), 1, limit, before)


def spent(
    out: Path, monkeypatch: pytest.MonkeyPatch, *stages: Stage, seconds: float = 600
) -> list[str]:
    """Return how each stage ended."""
    monkeypatch.setitem(PARTS, "made up", stages)
    monkeypatch.setattr("benchmarks.gpu.carried.python", lambda: [sys.executable])
    day.spend("made up", out, seconds)
    return [f"{line['stage']}: {line['ended']}" for line in read(out / day.STAGES)]


def test_all_fits_what_the_machine_is_lent_for() -> None:
    limits = {part: sum(stage.limit for stage in stages) for part, stages in PARTS.items()}
    assert sum(limits.values()) <= SECONDS - START_S
    assert all(seconds <= MOST_SECONDS for seconds in limits.values())
    assert all(stage.expected <= stage.limit for stage in EVERY)
    assert len({stage.name for stage in EVERY}) == len(EVERY)


def test_the_commands_are_short_and_listed_with_the_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["day"]) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [line.partition("#")[0] for line in lines if line.startswith("python3")]
    assert [parse_arguments(command.split()[3:]).part for command in commands] == list(PARTS)
    assert all(len(command) < MOST_CHARACTERS for command in commands)
    assert [line.split()[0] for line in lines if "about" in line] == [
        stage.name.split()[0] for stage in EVERY
    ]
    assert lines[-1].endswith(f"ends by {SECONDS} s")


def test_every_group_of_the_proof_has_its_stage_and_the_risky_come_behind_the_others() -> None:
    names = [stage.name for stage in PARTS["proof"]]
    assert names.index("kernels") < names.index("windows") < names.index("risky")
    assert names.index("risky") < min(map(names.index, ("memcheck", "racecheck")))
    assert set(GROUPS) - set(names) == {"benchmarks"}, "whether benchmarks work the day shows"


def test_what_is_run_is_there_and_no_clock_is_set() -> None:
    for stage in EVERY:
        words = told(stage)
        for word in words:
            if word.startswith(("tests/", "models/")):
                assert (ROOT / word).exists()
        if "benchmarks.gpu" in words:
            arguments = parse_arguments(words[words.index("benchmarks.gpu") + 1 :])
            if arguments.command == "run":
                assert _chosen(arguments)
        assert "nvidia-smi" not in words
        assert stage.program[:1] != ("ncu",) or stage.program[1:3] == ("--clock-control", "none")


def test_precisions_are_measured_beside_torch_with_and_without_dependent_launches() -> None:
    def of(stage: str) -> set[tuple[str, int, str]]:
        (words,) = (told(each) for each in EVERY if each.name == stage)
        arguments = parse_arguments(words[words.index("benchmarks.gpu") + 1 :])
        return {(unit.subject, unit.n, unit.side) for unit in _chosen(arguments)}

    networks = {
        f"{name}{precision}"
        for name in ("SqueezeNet", "ResNet-50")
        for precision in ("", " tf32", " fp16", " int8")
    }
    ours = ("convoy untuned", "convoy untuned without dependent launches")
    vit = {"ViT-S/16", "ViT-S/16 fp16"}
    attention = {(name, n, ours[0]) for name in vit for n in (1, 8)}
    both = {(name, n, side) for name in networks for n in (1, 8) for side in ours}
    assert of("networks") == both | attention
    floating = {name for name in networks if not name.endswith("int8")}
    assert of("torch") == {(name, n, "torch graph") for name in floating | vit for n in (1, 8)}
    assert {(subject, n) for subject, n, _ in of("http")} == {("JPEG", 1), ("JPEG", 8)}
    assert {("JPEG decoded by the GPU", 1, "convoy"), ("4:2:0", 8, "convoy")} <= of("decoding")
    assert len(of("micro")) == 5
    assert {unit.subject for unit in units() if unit.kind == "micro"} == {
        each[0] for each in of("micro")
    }


def test_what_a_stage_measures_fits_its_limit_by_the_guesses() -> None:
    for stage in EVERY:
        words = told(stage)
        if "run" in words and not stage.program:
            arguments = parse_arguments(words[words.index("benchmarks.gpu") + 1 :])
            chosen = _chosen(arguments)
            assert packed(chosen, stage.limit - 2, seconds_of([])) == chosen, stage.name


def test_a_stage_that_hangs_or_fails_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = spent(
        tmp_path,
        monkeypatch,
        python("fails", "print('what it said'); raise SystemExit(3)"),
        python("hangs", "import time; time.sleep(600)", 1),
        python("absent", "", 60, "no-such-profiler", "{out}"),
        python("writes", "print(open(__import__('sys').argv[1]))", 60),
        Stage("folder", ("-c", "import sys; open(sys.argv[1] + '/made', 'w')", "{out}"), 1, 60),
    )
    assert ended == [
        "fails: status 3",
        "hangs: the limit was reached",
        "absent: left out: this machine has no no-such-profiler",
        "writes: status 1",
        "folder: status 0",
    ]
    assert (tmp_path / "made").exists()
    said = capsys.readouterr().out
    assert "what it said" in said
    assert all(
        len(line.partition(" ")[0]) == len("2026-11-27T18:00:00+00:00")
        for line in said.splitlines()
        if "after" in line
    )
    log = (tmp_path / day.LOG).read_text()
    assert "what it said" in log
    assert log.index("fails:") < log.index("hangs:") < log.index("folder:")


def test_the_end_is_left_out_where_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = python("hangs", "import time; time.sleep(600)")
    ended = spent(tmp_path, monkeypatch, hangs, python("last", "pass"), seconds=4)
    assert ended == ["hangs: the limit was reached", "last: left out: the time was over"]


def test_a_log_stays_small_enough_to_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(day, "_MOST_LOG_BYTES", 2000)
    noisy = python("noisy", "print('first'); print('x' * 5000); print('last')")
    spent(tmp_path, monkeypatch, noisy, python("next", "print('behind')"))
    log = (tmp_path / day.LOG).read_text()
    assert len(log) < 3000
    assert all(word in log for word in ("first", "last", "behind", "[...]"))


def test_what_is_here_is_told_and_whether_the_carried_kernels_are_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.cubin"
    monkeypatch.setattr(day, "cached_file", lambda *_: file)

    def told() -> Sequence[str]:
        assert main(["here"]) == 0
        return capsys.readouterr().out.splitlines()

    assert any(line.startswith("numpy ") for line in told())
    assert "ARE MISSING from" in told()[-1]
    file.touch()
    assert " are in " in told()[-1]
