"""`convoy quantize` either writes a file and a report, or prints a reason and writes no file."""

import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from PIL import Image

from models import BUILT_IN_MODEL
from models.quantization import quantize as quantization
from models.quantization.candidate import Method, Ranges, Tensors, calibrate
from service.cli import quantize as command
from tests.support.command_line import Run

SAMPLES = BUILT_IN_MODEL.parent / "samples"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder with the samples, and with copies that are shifted down by a pixel. Files are
    named after their digits."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for file in sorted(SAMPLES.iterdir()):
        image = np.asarray(Image.open(file).convert("L").resize((32, 32)))
        for shift in (0, 1):
            Image.fromarray(np.roll(image, shift, 0)).save(
                folder / f"{file.name[0]}_{file.stem}_{shift}.png"
            )
    return folder


@pytest.fixture(autouse=True)
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        quantization, "time_in_turn", lambda models, *_: [1.0, *[0.5] * (len(models) - 1)]
    )


def test_a_quantized_file_is_written_and_checked(convoy: Run, photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "digits.int8.onnx"
    status, out, error = convoy("quantize", "digits", photos, "-o", output)
    assert status == 0, error
    assert "10 labels stay the same (100.0%)" in out
    assert "of 10 photographs named after a label" in out
    assert "N = 1: 1000.00 ms become 500.00 ms on this machine, 2.00 times the images" in out
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [output.name]
    onnx.checker.check_model(output, full_check=True)
    described = "--preset", "digits", "--labels", BUILT_IN_MODEL.parent / "labels.txt"
    check = "check", output, SAMPLES, *described, "--device", "cpu"
    assert convoy(*check)[0] == 0  # as ONNX Runtime runs the file itself
    status, out, _ = convoy(*check, "--original", BUILT_IN_MODEL)
    assert status == 0
    assert "10 of 10 labels agree" in out
    assert "any difference is allowed" in out
    status, _, error = convoy("quantize", output, photos, "-o", tmp_path / "x.onnx", *described)
    assert status == 1
    assert "is already quantized" in error


def test_a_model_that_is_no_faster_comes_with_what_may_explain_it(
    convoy: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantization, "time_in_turn", lambda models, *_: [1.0] * len(models))
    status, out, _ = convoy("quantize", "digits", photos, "-o", tmp_path / "digits.int8.onnx")
    assert status == 0
    assert (
        "Warning: the 8-bit model is not faster on this machine. Models with small layers gain"
        " little, and no model gains much on a CPU without VNNI\n"
    ) in out


def test_the_report_is_json_too(convoy: Run, photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "digits.int8.onnx"
    status, out, _ = convoy("quantize", "digits", photos, "-o", output, "--json")
    assert status == 0
    report = json.loads(out)
    assert report["compared"]["kept"] == report["compared"]["images"] == 10
    assert {"name", "divergence", "saved", "in_float"} <= report["layers"][0].keys()


def test_a_refusal_writes_nothing(convoy: Run, photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "digits.int8.onnx"
    status, _, error = convoy("quantize", "digits", SAMPLES, "-o", output)
    assert status == 1
    assert "10 photographs are too few" in error
    status, _, error = convoy("quantize", "digits", photos, "-o", output, "--margin", "1")
    assert status == 1
    assert "Give photographs of the model's own classes" in error
    assert list(tmp_path.iterdir()) == [photos]


def test_interrupted_it_says_whether_there_is_something_to_go_on_with(
    convoy: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal first has results of a run with other options."""
    output = tmp_path / "digits.int8.onnx"
    journal = tmp_path / "digits.int8.onnx.progress"
    journal.write_text('{"question": "another", "results": {"layer": 1}}')
    quantize = ("quantize", "digits", photos, "-o", output)
    done: list[Method] = []

    def interrupted(proto: onnx.ModelProto, images: Tensors, method: Method) -> Ranges:
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(method)
        return calibrate(proto, images, method)

    with monkeypatch.context() as patch:
        patch.setattr(quantization, "calibrate", Mock(side_effect=KeyboardInterrupt))
        status, out, error = convoy(*quantize)
        assert (status, out) == (1, "")
        assert error.splitlines()[-1] == (
            "Interrupted. Nothing was measured yet; run the command again to start over"
        )
        assert list(tmp_path.iterdir()) == [photos]
        patch.setattr(quantization, "calibrate", interrupted)
        status, out, error = convoy(*quantize)
        assert (status, out) == (1, "")
        assert error.splitlines()[-1] == (
            f"Interrupted. Measurements so far are in {journal}; run the command again to continue"
        )
        assert sorted(tmp_path.iterdir()) == [journal, photos]
    assert convoy(*quantize)[0] == 0
    assert sorted(tmp_path.iterdir()) == [output, photos]


def test_interrupted_while_the_model_is_read_it_says_so_too(
    convoy: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "load", Mock(side_effect=KeyboardInterrupt))
    status, _, error = convoy("quantize", "digits", photos, "-o", tmp_path / "x.onnx")
    assert status == 1
    assert error == "Interrupted. Nothing was measured yet; run the command again to start over\n"


@pytest.mark.parametrize("value", ["nan", "1.5", "-0.5", "much"])
@pytest.mark.parametrize("flag", ["--keep", "--margin"])
def test_a_share_is_a_number_from_0_to_1(
    convoy: Run, tmp_path: Path, flag: str, value: str
) -> None:
    arguments = "quantize", "digits", SAMPLES, "-o", tmp_path / "x.onnx", flag, value
    status, _, error = convoy(*arguments)
    assert status == 2
    assert f"'{flag}': {value} is not allowed; it must be a number from 0 to 1" in error


def test_a_place_that_cannot_be_written_is_said_first(convoy: Run, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(BUILT_IN_MODEL.read_bytes())
    status, _, error = convoy("quantize", model, SAMPLES, "-o", model)
    assert status == 2
    assert "is the model itself" in error
    status, _, error = convoy("quantize", model, SAMPLES, "-o", tmp_path / "no" / "m.onnx")
    assert status == 2
    assert "there is no folder" in error
    (tmp_path / "folder").mkdir()
    status, _, error = convoy("quantize", model, SAMPLES, "-o", tmp_path / "folder")
    assert status == 2
    assert "is a folder; name a file in it" in error
    status, _, error = convoy("quantize", model, SAMPLES, "-o", "/proc/m.onnx")
    assert status == 2
    assert "/proc/m.onnx cannot be written" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "model.onnx"]


def test_int8_of_a_float_model_leads_here(convoy: Run) -> None:
    status, _, error = convoy("classify", "digits", SAMPLES, "--precision", "int8")
    assert status == 1
    assert "is not quantized, so its precision cannot be int8" in error
    assert "convoy quantize" in error
