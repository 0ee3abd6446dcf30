"""A run continues where an earlier run was interrupted."""

from pathlib import Path

import pytest

from models.quantization.journal import Journal


def test_a_result_is_found_once_for_the_same_question(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx.progress"
    assert Journal(path, "a").result("layer", lambda: [1, 2.5]) == [1, 2.5]
    again = Journal(path, "a")
    assert again.result("layer", pytest.fail) == [1, 2.5]
    assert again.result("other", lambda: 3) == 3
    other = Journal(path, "b")
    assert not path.exists()
    assert other.result("layer", lambda: "anew") == "anew"
    other.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff", b'{"question": "a"}', b'{"question": "a", "results": [7]}'],
)
def test_a_file_that_is_no_journal_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx.progress"
    path.write_bytes(content)
    journal = Journal(path, "a")
    assert not path.exists()
    assert journal.result("layer", lambda: 7) == 7
    assert Journal(path, "a").result("layer", pytest.fail) == 7
