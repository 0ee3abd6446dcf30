"""The output in terminals of 80 and of 120 columns, compared with files.

pytest tests/service/cli/test_cli_golden.py --write-golden
"""

import re
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.command_line import Run

GOLDEN = Path(__file__).parent / "golden"

COMMANDS = {
    "help": ("--help",),
    "models": ("models",),
    "classify": ("classify", "digits", "models/digits/samples", "-k", "2"),
}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_cut_at_any_width(
    convoy: Run,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    name: str,
    width: int,
) -> None:
    monkeypatch.chdir(ROOT)
    terminal = {"COLUMNS": str(width), "FORCE_COLOR": "1", "TERM": "xterm"}
    nothing_pulled = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    for key, value in {**terminal, **nothing_pulled}.items():
        monkeypatch.setenv(key, value)
    _, out, error = convoy(*COMMANDS[name])
    plain = re.sub(r"\x1b\[[\d;]*m", "", out + error)
    shown = "".join(f"{line.rstrip()}\n" for line in plain.splitlines())
    shown = re.sub(r"0\.\d{4}$", "0.####", shown, flags=re.MULTILINE)  # the last bits are a CPU's
    shown = re.sub(r"^Usage: .*?convoy ", "Usage: convoy ", shown)  # not as pytest was called
    golden = GOLDEN / f"{name}-{width}.txt"
    if request.config.getoption("--write-golden"):
        golden.write_text(shown, encoding="utf-8")
    assert shown == golden.read_text(encoding="utf-8")
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
