"""Each cell of the table of bounds names a test that sends requests to the interface of its row, or
another special test."""

import re
from pathlib import Path

from tests.service.whole.attacks import test_holds, test_surfaces
from tests.service.whole.attacks.test_surfaces import ROWS
from tests.service.whole.faults.catalogue import ELSEWHERE

_ROOT = Path(__file__).parents[4]
_TESTS = _ROOT / "tests" / "service"
_TABLE = (_ROOT / "docs" / "reliability.md").read_text("utf-8")

_LETTER = re.compile(r"\[([a-z]{1,2})\]")


def rows(begin: str) -> list[list[str]]:
    """Return the cells of a table's rows. The table starts with the line that begins with
    `begin`."""
    lines = _TABLE[_TABLE.index(begin) :].split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    return bool(re.search(rf"def {name}\(", (_TESTS / file).read_text("utf-8")))


# This form has exactly one image, so it has no separate bound on images.
ONE = {"classify, an image"}

# Tests that send to one surface, which is the only one with this bound.
OWN = {"clips": {"cl"}, "`/v1/.../pixels`": {"sp"}}


def surfaces_of(test: str) -> set[str]:
    """Return the interfaces to which a test sends requests. The test is parametrised by them."""
    module = test_holds if "test_holds" in test else test_surfaces
    found = getattr(module, test.partition("::")[2], None)
    marks = [mark for mark in getattr(found, "pytestmark", []) if mark.args[:1] == ("surface",)]
    return {surface for mark in marks for surface in mark.args[1]}


def empty_cells(surfaces: list[list[str]], legend: dict[str, str]) -> list[tuple[str, str]]:
    """Return the row and the text of each cell that lacks tests. A cell needs tests that send
    requests to each interface of its row."""
    found = []
    for name, *cells in surfaces:
        for cell in cells:
            letters = _LETTER.findall(cell)
            tested = {surface for each in letters for surface in surfaces_of(legend[each])}
            if not {*ROWS[name]} - ONE <= tested and not OWN.get(name, set()) & {*letters}:
                found.append((name, cell))
    return found


def test_each_surface_has_each_bound_and_its_test() -> None:
    head, _, *surfaces = rows("| surface | bytes |")
    _, _, *tests = rows("| letters | test, in")
    legend = {letters.strip("[]"): test.strip("`") for letters, test in tests}
    assert len(head) == 9
    assert [row[0] for row in surfaces] == [*ROWS]
    assert {len(row) for row in surfaces} == {len(head)}
    assert empty_cells(surfaces, legend) == []
    used = {letter for row in surfaces for cell in row[1:] for letter in _LETTER.findall(cell)}
    assert used == set(legend)
    assert [test for test in legend.values() if not is_there(test)] == []


def test_an_empty_cell_and_one_with_another_surfaces_test_are_found() -> None:
    legend = {"so": "test_surfaces.py::test_other_calls_take_short_bodies_and_no_images"}
    assert empty_cells([["clips", "", "none [so]"]], legend) == [
        ("clips", ""),
        ("clips", "none [so]"),
    ]
    assert empty_cells([["all other calls by gRPC", "4 kB [so]"]], legend) == []


def test_faults_that_are_injected_elsewhere_have_their_test() -> None:
    assert [test for _, test in ELSEWHERE.values() if not is_there(test)] == []
