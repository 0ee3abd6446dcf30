"""Rows of results state their commit, even without git."""

import re
import subprocess
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


def test_changed_results_do_not_change_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "rows.jsonl").touch()
    (tmp_path / "source").touch()
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "all")
    monkeypatch.setattr(rows, "ROOT", tmp_path)
    clean = rows.commit()
    assert re.fullmatch("[0-9a-f]{12}", clean)
    (results / "rows.jsonl").write_text("{}\n")
    (tmp_path / "new").touch()
    assert rows.commit() == clean
    (tmp_path / "source").write_text("changed")
    assert rows.commit() == f"{clean}+"


def test_a_document_is_filled_between_its_marks() -> None:
    assert rows.fill("a\n<b>\nold\n<e>\nz", "<b>", "<e>", r"new \1") == "a\n<b>\nnew \\1\n<e>\nz"
    with pytest.raises(ValueError, match="marks <b> and <e>"):
        rows.fill("a", "<b>", "<e>", "new")
