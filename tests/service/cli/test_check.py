"""`convoy check` compares a model's answers with ONNX Runtime's answers, side by side."""

import re
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

from cusim.device import CusimDevice
from models import BUILT_IN_MODEL, Batch, Original, Results
from models.engines.cuda_engine import CudaEngine
from service.cli.check import chance_of
from tests.support.command_line import Run
from tests.support.servers.several_models import save_channels

SAMPLES = BUILT_IN_MODEL.parent / "samples"


def test_a_model_agrees_with_onnx_runtime_on_every_image(convoy: Run) -> None:
    status, out, _ = convoy("check", "digits", SAMPLES, "--device", "cpu")
    assert status == 0
    assert "10 of 10 labels agree" in out
    assert "7_faint_on_grey.jpg" in out


def test_scores_that_differ_are_status_1(
    convoy: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = onnx.load(BUILT_IN_MODEL)
    weight = model.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.1, weight.name))
    onnx.save(model, tmp_path / "other.onnx")
    init = Original.__init__
    monkeypatch.setattr(
        Original, "__init__", lambda self, _, c: init(self, tmp_path / "other.onnx", c)
    )
    status, out, _ = convoy("check", "digits", SAMPLES, "--device", "cpu")
    assert status == 1
    assert "at most 0.001 is allowed" in out


@pytest.mark.parametrize("broken", [False, True], ids=["right", "wrong"])
def test_images_are_decoded_in_both_ways_and_compared(
    broken: bool, convoy: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    grey = Image.open(SAMPLES / "1_pencil_on_paper.jpg").convert("L")
    (tmp_path / "files").mkdir()
    grey.save(tmp_path / "files/1_grey.jpg", quality=95)
    grey.save(tmp_path / "files/1_progressive.jpg", progressive=True)
    grey.convert("RGB").save(tmp_path / "files/1_colour.jpg")
    grey.save(tmp_path / "files/1_other.png")
    device = CusimDevice()
    monkeypatch.setattr("kernels.device.cuda_device.CudaDevice", lambda _: device)
    if broken:
        monkeypatch.setattr("models.engines.cuda_engine.CudaEngine.run", _one_brighter)
    monkeypatch.setenv("CONVOY_TUNING", "")
    flags = ("--device", "cuda", "--decode", "gpu")
    status, out, _ = convoy("check", "digits", tmp_path / "files", *flags)
    device.close()
    assert status == broken
    if broken:
        assert "the GPU computes other pixels than the CPU: 4 of 4 images: " in out
        return
    assert "decoded by the GPU, to the same pixels: 1 of 4 images" in out
    for why in ("progressive", "components", "format"):
        said = f"resized by the GPU, decoded by the CPU ({why}), to the same pixels: 1 of 4 images"
        assert said in out


_run = CudaEngine.run


def _one_brighter(engine: CudaEngine, images: Batch, inner: Collection[str] = ()) -> Results:
    """Return a result that differs from the CPU's if the device decodes or resizes the images."""
    results = _run(engine, images, inner)
    if isinstance(images, np.ndarray):
        return results
    return results._replace(inner={name: value + 1 for name, value in results.inner.items()})


def test_a_precision_is_checked_on_a_gpu_only(
    convoy: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, _, error = convoy("check", "digits", SAMPLES, "--device", "cpu", "--precision", "fp16")
    assert status == 2
    assert "fp16 needs a GPU, but --device is cpu; the CPU computes in fp32" in error
    monkeypatch.setitem(sys.modules, "cupy", None)  # as where it is not installed
    status, _, error = convoy("check", "digits", SAMPLES, "--precision", "fp16")
    assert status == 1
    assert "CuPy cannot be imported" in error
    device = CusimDevice()
    monkeypatch.setattr("kernels.device.cuda_device.CudaDevice", lambda _: device)
    monkeypatch.setenv("CONVOY_TUNING", "")
    for sample in sorted(SAMPLES.iterdir())[:3]:
        shutil.copy(sample, tmp_path)
    status, out, _ = convoy("check", "digits", tmp_path, "--precision", "fp16")
    device.close()
    assert status == 0
    assert "3 of 3 labels agree" in out
    allowed = re.search(
        r"difference of scores is (\S+) of the largest score; at most (\S+) is", out
    )
    assert allowed is not None
    assert 1e-5 < float(allowed[1]) < float(allowed[2]) < 0.05
    shifts = re.search(r"differ by at most (\S+), and by (\S+) on average", out)
    assert shifts is not None
    assert 0 < float(shifts[2]) <= float(shifts[1]) < 0.01
    assert "labels differ" not in out


@pytest.mark.parametrize("value", ["nan", "-1", "much"])
def test_a_tolerance_is_a_number_that_is_not_negative(convoy: Run, value: str) -> None:
    status, out, error = convoy("check", "digits", SAMPLES, "--tolerance", value)
    assert (status, out) == (2, "")
    assert f"'--tolerance': {value} is not allowed; it must be a number of at least 0" in error


def test_labels_that_differ_are_listed(convoy: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Original.run
    monkeypatch.setattr(Original, "run", lambda self, image: np.roll(run(self, image), 1))
    status, out, _ = convoy("check", "digits", SAMPLES, "--device", "cpu", "--tolerance", "9")
    assert status == 0
    assert "0 of 10 labels agree" in out
    (line,) = (line for line in out.splitlines() if line.startswith("labels differ for: "))
    assert line.count(".") >= 10


def halves(path: Path) -> None:
    """Return the built-in model with every number in float16."""
    model = onnx.load(BUILT_IN_MODEL)
    graph = model.graph
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    onnx.save(model, path)


def test_a_model_of_halves_is_held_to_float32_on_the_cpu(
    convoy: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    halves(tmp_path / "halves.onnx")
    command = "check", tmp_path / "halves.onnx", SAMPLES, "--device", "cpu", "--preset", "digits"
    status, out, _ = convoy(*command)
    assert status == 0
    told = re.search(
        r"difference of scores is (\S+) of the largest score; at most (\S+) is allowed", out
    )
    assert told is not None
    assert float(told[1]) < 1e-5  # ONNX Runtime alone would round to float16 after every node
    assert float(told[2]) == 0.001
    run = Original.run
    monkeypatch.setattr(Original, "run", lambda self, image: run(self, image) * 1.01)
    status, _, _ = convoy(*command)
    assert status == 1


def test_every_preset_is_shown_with_its_accuracy_by_the_names_of_files(convoy: Run) -> None:
    status, out, _ = convoy("check", "digits", SAMPLES, "--device", "cpu")
    assert status == 0
    assert re.search(r"digits, used +0\.9\d +\d+% +10 of 10", out)
    assert "not known" not in out


def test_the_preset_that_is_right_more_often_is_advised(convoy: Run, tmp_path: Path) -> None:
    save_channels(tmp_path / "colours.onnx", 32, 32)
    labels = tmp_path / "labels.txt"
    labels.write_text("red\ngreen\nblue\n")
    for name, colour in (("red", (255, 0, 0)), ("green", (0, 255, 0)), ("blue", (0, 0, 255))):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            image = Image.new("RGB", (40, 40 + number), colour)
            image.save(tmp_path / "photos" / name / f"{number}.png")
    command = "check", tmp_path / "colours.onnx", tmp_path / "photos", "--labels", labels
    status, out, _ = convoy(*command, "--device", "cpu", "--preset", "caffe")
    assert status == 0
    assert re.search(r"caffe, used +\S+ +\S+ +4 of 12", out), out  # green alone stays in place
    assert re.search(r"imagenet +\S+ +\S+ +12 of 12", out)
    advice = next(line for line in out.splitlines() if " is right for " in line)
    assert "is right for 12 of the 12 images" in advice
    assert "caffe is right for 4; these images do not distinguish" in advice
    assert "imagenet" in advice
    assert "unit" in advice
    status, out, _ = convoy(*command, "--device", "cpu", "--preset", "imagenet")
    assert "; set --preset" not in out


def test_images_without_names_of_labels_are_said_to_be_no_proof(
    convoy: Run, tmp_path: Path
) -> None:
    save_channels(tmp_path / "colours.onnx", 32, 32)
    Image.new("RGB", (40, 40)).save(tmp_path / "1.png")
    status, out, _ = convoy("check", tmp_path / "colours.onnx", tmp_path, "--device", "cpu")
    assert status == 0
    assert "no folder and no file is named after a label" in out


def test_an_image_that_cannot_be_read_is_status_1(convoy: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(np.zeros(9, np.uint8).tobytes())
    status, _, error = convoy("check", "digits", tmp_path, "--device", "cpu")
    assert status == 1
    assert "bad.png" in error


def test_scores_that_cannot_be_what_they_are_taken_for_are_status_1(convoy: Run) -> None:
    flags = ("--device", "cpu", "--set", "output=probabilities")
    status, out, _ = convoy("check", "digits", SAMPLES, *flags)
    assert status == 1
    assert "are probabilities that add up to 1" in out
    assert "its scores for these images are not of this kind, because one score is " in out
    status, out, _ = convoy("check", "digits", SAMPLES, "--device", "cpu")
    assert status == 0
    assert 'its scores, "logits", are logits' in out


@pytest.mark.parametrize(
    ("better", "other", "chance"),
    [
        ([True] * 4, [True] * 4, 1.0),
        ([True] * 5, [False] * 5, 1 / 32),
        ([True, True, True, False], [False, False, False, True], 5 / 16),
    ],
)
def test_how_probable_wins_are_by_chance(
    better: list[bool], other: list[bool], chance: float
) -> None:
    assert chance_of(better, other) == chance
