"""The script of the GPU day: every command in it is one that its module takes."""

import os
import subprocess
from pathlib import Path

from benchmarks.kernels import __main__ as kernels
from benchmarks.networks import __main__ as networks

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_day.sh"


def commands(*arguments: str, commit: str = "") -> list[list[str]]:
    """What it would run, by having `echo` for an interpreter."""
    run = subprocess.run(
        ["sh", SCRIPT, *arguments],
        env={"PATH": os.environ["PATH"], "PYTHON": "echo", "COMMIT": commit},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split() for line in run.stdout.splitlines() if not line.startswith("==")]


def test_every_stage_is_a_command_that_its_module_takes(tmp_path: Path) -> None:
    tests, accuracy, first, whole, others = commands(str(tmp_path), "1000", commit="abc")
    assert tests[:4] == ["-m", "pytest", "-m", "gpu"]
    paths = [each for each in tests if each.startswith("tests/")]
    assert len(paths) == 3
    assert all((ROOT / path).exists() for path in paths)
    for command, module in (
        (accuracy, kernels),
        (first, kernels),
        (whole, networks),
        (others, kernels),
    ):
        assert command[:2] == ["-m", module.__name__]
        parsed = module.parse_arguments(command[2:])
        assert parsed.out == tmp_path
        assert parsed.commit == "abc"
    assert kernels.parse_arguments(accuracy[2:]).accuracy
    assert kernels.parse_arguments(first[2:]).n == [1, 8]
    spent = [
        module.parse_arguments(command[2:]).budget_s
        for command, module in ((first, kernels), (whole, networks), (others, kernels))
    ]
    assert spent == [450, 200, 200]


def test_stages_may_be_named_and_a_commit_left_out(tmp_path: Path) -> None:
    (only,) = commands(str(tmp_path / "new"), "10", "networks")
    assert networks.parse_arguments(only[2:]).commit is None
    assert (tmp_path / "new").is_dir()
    assert len(commands(str(tmp_path))) == 5
