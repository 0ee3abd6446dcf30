"""Messages to clients name a file, but not the server's folder."""

import os
from pathlib import Path

import pytest

from service.folders import without_folders


@pytest.mark.parametrize("name", ["models", "my models", "models.v2", "modèles+"])
def test_a_file_is_named_from_the_served_folder_on(tmp_path: Path, name: str) -> None:
    served = tmp_path / name
    (served / "digits/1").mkdir(parents=True)
    file = served / "digits/1/model.onnx"
    for message, said in (
        (f"{file} has 2 outputs", f"{name}/digits/1/model.onnx has 2 outputs"),
        (f"read '{file}' or ({file})", f"read '{name}/digits/1/model.onnx' or "
         f"({name}/digits/1/model.onnx)"),
        (f"{served} has no models", f"{name} has no models"),
    ):  # fmt: skip
        assert without_folders(message, served) == said


def test_a_relative_folder_and_one_behind_a_link_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep/er/models").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep/er")
    monkeypatch.chdir(tmp_path)
    for served in (Path("link/models"), Path("deep/er/models"), Path("deep/../deep/er/models")):
        for named in (served, served.absolute(), served.resolve()):
            said = without_folders(f"{named}/a.onnx is truncated", served)
            assert said == "models/a.onnx is truncated"


def test_any_other_file_has_its_last_name(tmp_path: Path) -> None:
    (tmp_path / "a cache/of ours").mkdir(parents=True)
    other = tmp_path / "a cache/of ours/store.json"
    assert without_folders(f"measured: {other}; see {other}", Path("models")) == (
        "measured: store.json; see store.json"
    )


@pytest.mark.parametrize(
    "message",
    [
        "the node /conv1/Conv reads /features/0/Relu_output_0, which nothing writes",
        "POST to /v1/models/NAME/classify, or see https://example.com/tmp/x",
        "3/4 of 5 / 6, and / alone",
        "a JPEG, PNG/WebP",
        "",
    ],
)
def test_names_that_only_look_like_paths_stay(message: str) -> None:
    assert without_folders(message, Path("models"), Path()) == message


def test_a_folder_at_the_root_is_named_by_itself() -> None:
    assert without_folders("/models has no models", Path("/models")) == "models has no models"
    assert without_folders(f"{os.sep}models/x.onnx is odd", Path("/models")) == (
        "models/x.onnx is odd"
    )
