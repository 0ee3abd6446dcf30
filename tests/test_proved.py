"""What `make test` spares depends only on what the digest is of, and is a sample short of all."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support import ROOT, proved

KERNELS = ROOT / "tests" / "kernels" / "whole" / "test_kernels.py"


def _items(file: Path, *tests: tuple[str, int]) -> list[pytest.Item]:
    """Return stand-ins for so many cases of each test."""
    return [
        cast(pytest.Item, SimpleNamespace(path=file, originalname=name, name=f"{name}[{i}]"))
        for name, cases in tests
        for i in range(cases)
    ]


def test_one_case_in_eight_and_every_test_without_cases_is_left() -> None:
    items = _items(KERNELS, ("of_many", 17), ("of_one", 1), ("of_eight", 8))
    spared = proved.spared(items)
    left = [item.name for item in items if item not in spared]
    assert left == ["of_many[0]", "of_many[8]", "of_many[16]", "of_one[0]", "of_eight[0]"]


@pytest.mark.parametrize(
    "file", ["tests/service/api/test_app.py", "tests/kernels/convolution/test_algorithms_toy.py"]
)
def test_tests_that_read_what_the_digest_is_not_of_all_run(file: str) -> None:
    assert not proved.spared(_items(ROOT / file, ("of_many", 17)))


def test_nothing_else_that_the_digest_is_of_reads_more() -> None:
    """A test file that does is run whole; a source that did would make the digest untrue."""
    sources = [file for file in proved.files() if file.suffix == ".py"]
    assert len(sources) > 150
    more = {file for file in sources if proved.reads_more(file)}
    assert {file for file in more if not file.name.startswith("test_")} == set()


def test_any_change_of_a_source_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "kernels" / "a.cu"
    source.parent.mkdir()
    source.write_text("one")
    monkeypatch.setattr(proved, "ROOT", tmp_path)
    monkeypatch.setattr(proved, "SOURCES", ("kernels",))
    monkeypatch.setattr(proved, "PROVED", tmp_path / "proved.txt")
    assert not proved.holds()
    proved.PROVED.write_text(f"{proved.digest()}\n")
    assert proved.holds()
    source.write_text("two")
    assert not proved.holds()
    source.write_text("one")
    assert proved.holds()
    source.rename(source.with_name("b.cu"))
    assert not proved.holds()
