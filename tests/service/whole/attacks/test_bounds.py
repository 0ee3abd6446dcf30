"""The table of bounds has no empty cell, and each names the test that holds it."""

import re
from pathlib import Path

from tests.service.whole.faults.catalog import ELSEWHERE

_ROOT = Path(__file__).parents[4]
_TESTS = _ROOT / "tests" / "service"
_TABLE = (_ROOT / "docs" / "reliability.md").read_text("utf-8")

_LETTER = re.compile(r"\[([a-z]{1,2})\]")


def rows(begin: str) -> list[list[str]]:
    """The cells of a table's rows, from the line that begins so."""
    lines = _TABLE[_TABLE.index(begin) :].split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    return bool(re.search(rf"def {name}\(", (_TESTS / file).read_text("utf-8")))


def test_each_surface_has_each_bound_and_its_test() -> None:
    head, _, *surfaces = rows("| surface | bytes |")
    legend = {cells[0].strip("[]"): cells[1].strip("`") for cells in rows("| | test, in")[2:]}
    assert len(head) == 9
    used = set()
    for surface in surfaces:
        assert len(surface) == len(head), surface
        for cell in surface[1:]:
            letters = _LETTER.findall(cell)
            assert letters, f"{surface[0]}: {cell!r} names no test"
            used |= {*letters}
    assert used == set(legend)
    assert [test for test in legend.values() if not is_there(test)] == []


def test_faults_that_are_injected_elsewhere_have_their_test() -> None:
    assert [test for _, test in ELSEWHERE.values() if not is_there(test)] == []
