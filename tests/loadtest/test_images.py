"""Reading the images to send."""

from pathlib import Path

import pytest

from loadtest import LoadTestError
from loadtest import images as module
from loadtest.images import SAMPLES, ImageFile, load_images
from tests.support.command_line import Run


def test_a_folder_without_images_is_one_clear_line(loadtest: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    status, _, error = loadtest("http://127.0.0.1:1", "--images", tmp_path / "empty")
    assert status == 1
    assert error.endswith("empty: there are no images\n")
    status, _, error = loadtest("http://127.0.0.1:1", "--images", tmp_path / "nowhere")
    assert status == 1
    assert error.endswith("nowhere: No such file or directory\n")


def test_images_of_a_folder_are_sorted_and_other_files_are_left_out(tmp_path: Path) -> None:
    for name in ("b.JPG", "a.webp", "c.jpeg", "d.png", "notes.txt", "no_suffix"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "folder.png").mkdir()
    assert load_images(tmp_path) == [
        ImageFile("a.webp", b"a.webp", "image/webp"),
        ImageFile("b.JPG", b"b.JPG", "image/jpeg"),
        ImageFile("c.jpeg", b"c.jpeg", "image/jpeg"),
        ImageFile("d.png", b"d.png", "image/png"),
    ]
    assert [image.name for image in load_images(tmp_path / "d.png")] == ["d.png"]


def test_images_in_subfolders_are_named_by_their_paths(tmp_path: Path) -> None:
    for name in ("red/1.png", "blue/1.png", "blue/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    names = {image.name: image.data for image in load_images(tmp_path)}
    assert names == {"blue/1.png": b"blue/1.png", "red/1.png": b"red/1.png"}


def test_the_built_in_samples_are_images() -> None:
    assert {image.media_type for image in load_images(SAMPLES)} == {
        *("image/jpeg", "image/png", "image/webp")
    }


def test_images_have_a_limit_on_their_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 20)
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(bytes(10))
    assert len(load_images(tmp_path)) == 2
    (tmp_path / "c.png").write_bytes(b"1")
    with pytest.raises(LoadTestError, match="the images exceed"):
        load_images(tmp_path)
