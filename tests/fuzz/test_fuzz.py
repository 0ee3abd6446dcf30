"""Every input in the corpus is taken or refused in time; the longer run looks for others."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzz.targets import CORPUS, TARGETS, TooSlowError, try_input

# Of ten minutes in all.
SECONDS = 120


def corpus() -> list[Path]:
    return sorted(path for path in CORPUS.glob("*/*") if path.is_file())


@pytest.mark.parametrize("path", corpus(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_an_input_that_was_found_is_taken_or_refused_in_time(path: Path) -> None:
    try_input(path.parent.name, path.read_bytes())


def test_every_target_has_inputs_to_begin_with() -> None:
    assert {path.parent.name for path in corpus()} == set(TARGETS)


def test_an_input_that_takes_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def quadratic(data: bytes) -> None:
        sum(one ^ other for one in data for other in data)

    monkeypatch.setattr("tests.fuzz.targets.TARGETS", {"json": quadratic})
    with pytest.raises(TooSlowError):
        try_input("json", bytes(3000))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no wheel for this machine")
@pytest.mark.parametrize("target", TARGETS)
def test_no_input_is_found_that_breaks_a_parser(target: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.fuzz", target),
            *("--seconds", str(SECONDS), "--keep", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS + 120,
    )
    found = [path.read_bytes() for path in tmp_path.iterdir()]
    assert (done.returncode, found) == (0, []), done.stderr[-3000:]
