"""Reading the images to send."""

from pathlib import Path

from tests.support.command_line import Run


def test_a_folder_without_images_is_one_clear_line(loadtest: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    status, _, error = loadtest("http://127.0.0.1:1", "--images", tmp_path / "empty")
    assert status == 1
    assert error.endswith("empty: no JPEG, PNG or WebP files are there\n")
    status, _, error = loadtest("http://127.0.0.1:1", "--images", tmp_path / "nowhere")
    assert status == 1
    assert error.endswith("nowhere: No such file or directory\n")
