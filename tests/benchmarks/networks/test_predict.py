"""Predictions of whole networks: sums of the model's parts, marked as what they are."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.networks import __main__ as networks
from benchmarks.networks import light, predict
from benchmarks.rows import read
from kernels.problems.precision import Precision
from kernels.tuning.heuristic import H200, estimated_cycles, heuristic
from models import BUILT_IN_MODEL, load_classifier
from models.graph import Conv


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16], ids=lambda p: p.value)
def test_a_prediction_is_convolutions_and_others_and_gaps(precision: Precision) -> None:
    digits = replace(load_classifier(BUILT_IN_MODEL), precision=precision)
    prediction = predict.predict(digits, 8)
    problems = [
        node.problem.with_batch(8)
        for node in digits.rewritten.graph.nodes
        if isinstance(node, Conv)
    ]
    cycles = sum(estimated_cycles(p, heuristic(H200)(p), H200) for p in problems)
    assert prediction.convolutions_us == pytest.approx(cycles / 1980)
    assert prediction.launches == 12
    # Images, two pools, a linear layer and the ranking: bytes at 4.8 TB/s.
    assert 0 < prediction.others_us < 1
    parts = prediction.convolutions_us + prediction.others_us
    assert prediction.us == pytest.approx(parts + 12 * 0.8)
    assert prediction.gaps_us < 12 * 0.8
    assert prediction.overlapped_us < prediction.us


def test_rows_say_that_nothing_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(predict, "PREDICTED", ("SqueezeNet",))
    command = ["--predict", "--n", "1", "--out", str(tmp_path), "--commit", "abc"]
    for _ in range(2):  # written anew, not added to
        networks.main(command)
    rows = read(tmp_path / "network_predictions.jsonl")
    assert [row["precision"] for row in rows] == ["fp32", "tf32", "3xtf32", "fp16"]
    assert {row["kind"] for row in rows} == {"prediction"}
    assert {row["device"] for row in rows} == {"NVIDIA H200, predicted"}
    assert all(row["launches"] <= 33 for row in rows)
    assert rows[3]["us"] < rows[0]["us"]
    assert "PREDICTED, not measured" in capsys.readouterr().out
    assert light.NETWORKS.keys() >= {"VGG-19", "ResNet-50", "GoogLeNet", "SqueezeNet"}
