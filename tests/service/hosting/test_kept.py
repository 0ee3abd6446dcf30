"""Data of a model is kept in an unnamed file on disk, or in memory if no file can be written."""

import gc
import logging
from pathlib import Path

import numpy as np
import pytest

from kernels.device import cache_folder
from service.hosting import kept
from service.hosting.kept import KeptObject


def open_files(folder: Path) -> int:
    links = Path("/proc/self/fd").iterdir()
    return sum(str(folder) in str(link.readlink()) for link in links if link.is_symlink())


def test_an_equal_object_comes_back_any_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "FOLDER", tmp_path / "served")
    weights = np.arange(100_000, dtype=np.float32)
    held = KeptObject({"weights": weights})
    for _ in range(2):
        assert np.array_equal(held.get()["weights"], weights)
    assert open_files(tmp_path) == 1
    assert list(tmp_path.rglob("*")) == [tmp_path / "served"]  # nothing is left after a crash
    del held
    gc.collect()
    assert open_files(tmp_path) == 0


def test_without_a_place_on_disk_it_is_in_memory_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "served").write_text("this is no folder")
    monkeypatch.setattr(kept, "FOLDER", tmp_path / "served")
    with caplog.at_level(logging.WARNING, "convoy"):
        assert KeptObject([1, 2]).get() == [1, 2]
    (message,) = caplog.messages
    said = "models are also kept in memory, because no file can be written in"
    assert message.startswith(f"{said} {tmp_path / 'served'}: ")


def test_the_log_names_the_folder_that_the_settings_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "served").write_text("this is no folder")
    monkeypatch.setattr(cache_folder, "_chosen", [tmp_path])
    with caplog.at_level(logging.WARNING, "convoy"):
        assert KeptObject([1, 2]).get() == [1, 2]
    assert f" in {tmp_path / 'served'}: " in caplog.text
