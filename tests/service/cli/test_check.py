"""`convoy check`: the answers of both, side by side."""

import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from models import BUILT_IN_MODEL, Original
from tests.cusim.device import CusimDevice
from tests.support.command_line import Run

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
    assert "0.001 is allowed" in out


def test_a_precision_is_checked_on_a_gpu_only(
    convoy: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, _, error = convoy("check", "digits", SAMPLES, "--device", "cpu", "--precision", "fp16")
    assert status == 2
    assert "fp16 is for a GPU; the CPU computes in fp32" in error
    monkeypatch.setitem(sys.modules, "cupy", None)  # as where it is not installed
    status, _, error = convoy("check", "digits", SAMPLES, "--precision", "fp16")
    assert status == 1
    assert "CuPy cannot be imported" in error
    device = CusimDevice()
    monkeypatch.setattr("kernels.device.cuda_device.CudaDevice", lambda _: device)
    monkeypatch.setenv("CONVOY_TUNING", "")
    status, out, _ = convoy("check", "digits", SAMPLES, "--precision", "fp16")
    device.close()
    assert status == 0
    assert "10 of 10 labels agree" in out
    allowed = re.search(r"largest difference is (\S+), (\S+) is allowed", out)
    assert allowed is not None
    assert 1e-5 < float(allowed[1]) < float(allowed[2]) < 0.05
    shifts = re.search(r"probabilities differ by (\S+) at most, (\S+) on average", out)
    assert shifts is not None
    assert 0 < float(shifts[2]) <= float(shifts[1]) < 0.01
    assert "labels differ" not in out


def test_labels_that_differ_are_listed(convoy: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Original.run
    monkeypatch.setattr(Original, "run", lambda self, image: np.roll(run(self, image), 1))
    status, out, _ = convoy("check", "digits", SAMPLES, "--device", "cpu", "--tolerance", "9")
    assert status == 0
    assert "0 of 10 labels agree" in out
    assert out.splitlines()[-1].count(".") >= 10
    assert out.splitlines()[-1].startswith("labels differ for: ")


def test_an_image_that_cannot_be_read_is_status_1(convoy: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(np.zeros(9, np.uint8).tobytes())
    status, _, error = convoy("check", "digits", tmp_path, "--device", "cpu")
    assert status == 1
    assert "bad.png" in error
