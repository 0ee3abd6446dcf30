"""Rows of results: which commit they are of where there is no git."""

from pathlib import Path

import pytest

from benchmarks import rows


def test_a_checkout_without_git_has_the_commit_that_was_carried_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "ROOT", tmp_path)
    monkeypatch.setattr(rows, "CARRIED", tmp_path)
    assert rows.commit() == "unknown"
    (tmp_path / "COMMIT").write_text("abcdef012345+\n")
    assert rows.commit() == "abcdef012345+"
    (tmp_path / ".git").mkdir()
    assert rows.commit() != "abcdef012345+"


def test_a_document_is_filled_between_its_marks() -> None:
    assert rows.fill("a\n<b>\nold\n<e>\nz", "<b>", "<e>", r"new \1") == "a\n<b>\nnew \\1\n<e>\nz"
    with pytest.raises(ValueError, match="no <b> and <e>"):
        rows.fill("a", "<b>", "<e>", "new")
