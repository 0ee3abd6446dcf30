"""A cached conversion of a file is used only if it certainly belongs to that file."""

import logging
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import ModelProto

from models import BUILT_IN_MODEL
from models.onnx_loader import FileLimits, kept, load_proto, read_model
from tests.support import ROOT


@pytest.fixture
def proto() -> ModelProto:
    return read_model(BUILT_IN_MODEL, FileLimits())


def only(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def make(values: list[int]) -> list[int]:
    """Return a new value in each call, and count the calls."""
    values.append(len(values))
    return values[-1:]


def test_a_second_start_imports_no_converter_and_has_the_same_network(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from models import BUILT_IN_MODEL, load_classifier
loaded = load_classifier(BUILT_IN_MODEL, keep=Path(sys.argv[1])).network
print(loaded.graph.nodes, loaded.meaning, hash(loaded.proto.SerializeToString(deterministic=True)))
print({"onnx_ir", "onnxscript", "sympy"} & set(sys.modules))
"""
    first, second = (
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for _ in range(2)
    )
    assert first[0] == second[0]
    assert "sympy" in first[1]
    assert second[1] == "set()"


def test_another_file_or_question_is_translated_anew(tmp_path: Path, proto: ModelProto) -> None:
    made: list[int] = []
    for _ in range(2):
        assert kept.translated(proto, ("one",), lambda: make(made), tmp_path) == [0]
    assert kept.translated(proto, ("another",), lambda: make(made), tmp_path) == [1]
    proto.graph.node[0].name = "another"
    assert kept.translated(proto, ("one",), lambda: make(made), tmp_path) == [2]
    assert kept.translated(proto, ("one",), lambda: make(made), None) == [3]


def test_another_translator_translates_anew(
    tmp_path: Path, proto: ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    assert kept.translated(proto, (), lambda: make(made), tmp_path) == [0]
    monkeypatch.setattr(kept, "_translator", lambda: b"another")
    assert kept.translated(proto, (), lambda: make(made), tmp_path) == [1]


@pytest.mark.parametrize("spoil", ["cut", "changed", "another may write it"])
def test_what_is_not_whole_or_not_certainly_ours_is_not_read(
    tmp_path: Path, proto: ModelProto, spoil: str
) -> None:
    made: list[int] = []
    kept.translated(proto, (), lambda: make(made), tmp_path)
    path = only(tmp_path)
    data = path.read_bytes()
    if spoil == "cut":
        path.write_bytes(data[:-1])
    elif spoil == "changed":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    else:
        path.chmod(0o666)
    assert kept.translated(proto, (), lambda: make(made), tmp_path) == [1]
    assert kept.translated(proto, (), lambda: make(made), tmp_path) == [1]


@pytest.mark.parametrize("bound", ["files", "bytes"])
def test_only_the_last_few_are_kept(
    tmp_path: Path, proto: ModelProto, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    if bound == "files":
        monkeypatch.setattr(kept, "_MOST_FILES", 2)
    else:
        kept.translated(proto, 9, lambda: make([]), tmp_path)
        one = only(tmp_path).stat().st_size
        only(tmp_path).unlink()
        monkeypatch.setattr(kept, "_MOST_BYTES_IN_ALL", 2 * one)
    made: list[int] = []
    for question in range(4):
        kept.translated(proto, question, lambda: make(made), tmp_path)
        last = max(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(last, ns=(0, question))
    assert len(list(tmp_path.iterdir())) == 2
    assert kept.translated(proto, 3, lambda: make(made), tmp_path) == [3]


def test_a_model_that_is_too_large_is_not_kept(
    tmp_path: Path, proto: ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_MOST_BYTES", proto.ByteSize() - 1)
    kept.translated(proto, (), lambda: make([]), tmp_path)
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_written_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "file"
    folder.write_text("")
    with caplog.at_level(logging.INFO, "convoy"):
        loaded = load_proto(
            "digits", read_model(BUILT_IN_MODEL, FileLimits()), opaque=True, keep=folder
        )
    assert loaded.graph.nodes
    assert f"not cached in {folder}" in caplog.text


def test_of_a_file_that_cannot_be_written_whole_nothing_is_left(
    tmp_path: Path, proto: ModelProto
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        assert len(kept.translated(proto, "q", lambda: bytes(10**6), tmp_path)) == 10**6
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
