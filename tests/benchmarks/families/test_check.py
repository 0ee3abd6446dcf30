"""The findings for an export, with a small network as PyTorch would write it."""

from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from benchmarks.families.check import check
from benchmarks.families.export import EXPORTERS, SIZE, export
from tests.support.models.onnx_chains import model, node, noise
from tests.support.onnx_models import run_onnxruntime


def test_a_file_that_loads_and_one_that_does_not(tmp_path: Path) -> None:
    images, weight = noise(2, 3, SIZE, SIZE), noise(4, 3, 3, 3) / 9
    original = model(
        [node("Conv", "x w", "c", strides=[4, 4]), node("GlobalAveragePool", "c")],
        {"w": weight},
        shape=("N", 3, SIZE, SIZE),
    )
    (scores,) = run_onnxruntime(original, {"x": images}).values()
    np.savez(tmp_path / "small.npz", images=images, scores=scores.reshape(2, 4))
    (tmp_path / "small.dynamo.dynamic.onnx").write_bytes(original.SerializeToString())
    original.graph.node.insert(0, helper.make_node("Sin", ["x"], ["s"]))
    original.graph.node[1].input[0] = "s"
    original.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    (tmp_path / "small.dynamo.1.onnx").write_bytes(original.SerializeToString())
    refused, loaded = check(tmp_path, ["small"])
    assert (refused["batch"], refused["loads"]) == ("1", False)
    assert "Sin: the operator is not supported" in refused["reason"]
    assert loaded["loads"]
    assert loaded["launches"] == loaded["launches_at_8"] == 4
    assert loaded["cpu_error"] < 1e-5
    assert loaded["top_1"]
    _, quick = check(tmp_path, ["small"], planned=False)
    assert loaded.items() > quick.items(), "all but launches and estimates"
    assert not {"launches", "fp16_us"} & quick.keys()


def test_exports_need_torch_and_timm(tmp_path: Path) -> None:
    pytest.importorskip("timm", reason="needs timm, which is not installed")
    first = next(export(tmp_path))
    assert first.split(", ")[1] in EXPORTERS
