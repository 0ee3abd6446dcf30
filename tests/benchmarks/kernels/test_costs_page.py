"""docs/kernels.md has the tables that the code prints."""

import pytest

from benchmarks.kernels.costs import PAGE, PLOT, TILES, page, tile_errors


def test_the_page_has_the_tables_that_the_code_prints() -> None:
    text = PAGE.read_text()
    errors = tile_errors()
    written = page(text, errors)
    # Transforms depend on the order of the machine's sums: the page has those of one machine.
    lines = [line for line in text.splitlines() if not line.startswith("| F(")]
    assert lines == [line for line in written.splitlines() if not line.startswith("| F(")]
    shown = [line.split("|") for line in text.splitlines() if line.startswith("| F(")]
    assert len(shown) == len(TILES)
    for line, error in zip(shown, errors, strict=True):
        assert float(line[2]) == pytest.approx(error.saving, abs=0.005)
        assert float(line[3]) == pytest.approx(error.largest, rel=0.5)
    assert (PAGE.parent / PLOT).is_file()
