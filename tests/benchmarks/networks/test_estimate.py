"""Estimates of whole networks: sums of the model's parts, marked as what they are."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.networks import __main__ as networks
from benchmarks.networks import estimate, light
from benchmarks.rows import RESULTS, Row, read
from kernels.device.gpus import H200
from kernels.problems.precision import Precision
from kernels.tuning.heuristic import estimated_cycles, heuristic
from models import BUILT_IN_MODEL, load_classifier
from models.graph import Conv
from models.schedule.time import GAP_US


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16], ids=lambda p: p.value)
def test_an_estimate_is_convolutions_and_others_with_gaps(precision: Precision) -> None:
    digits = replace(load_classifier(BUILT_IN_MODEL), precision=precision)
    found = estimate.estimate(digits, 8)
    problems = [
        node.problem.with_batch(8)
        for node in digits.rewritten.graph.nodes
        if isinstance(node, Conv)
    ]
    cycles = sum(estimated_cycles(p, heuristic(H200)(p), H200, warm=True) for p in problems)
    assert found.convolutions_us == pytest.approx(cycles / 1980)
    assert found.launches == 12
    assert found.cached
    # Each has a gap and an end; what few bytes take comes on top.
    others = 12 - len(problems)
    assert 0 < found.others_us - others * (0.7 + GAP_US) < 1
    assert found.us == found.convolutions_us + found.others_us
    assert found.gaps_us < 12 * GAP_US
    assert found.overlapped_us < found.us
    assert sum(found.parts_us.values()) == pytest.approx(found.convolutions_us)
    assert found.parts_us["gaps"] == pytest.approx(len(problems) * GAP_US)
    assert 12 * GAP_US < found.floor_us < found.us  # no node takes several launches


def test_weights_that_do_not_fit_the_cache_come_from_memory() -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    assert not estimate.estimate(digits, 1, replace(H200, l2_mb=0)).cached


def key(row: Row) -> tuple[str, str, int]:
    """What a row is of."""
    return row["network"], row["precision"], row["n"]


def test_rows_say_that_nothing_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(estimate, "ESTIMATED", ("SqueezeNet",))
    command = ["--estimate", "--n", "1", "--out", str(tmp_path), "--commit", "abc"]
    for _ in range(2):  # written anew, not added to
        networks.main(command)
    rows = read(tmp_path / "network_estimates.jsonl")
    assert [row["precision"] for row in rows] == ["fp32", "tf32", "3xtf32", "fp16"]
    assert {row["kind"] for row in rows} == {"estimate"}
    assert {row["device"] for row in rows} == {"NVIDIA H200, estimated"}
    assert all(row["launches"] <= 33 for row in rows)
    assert rows[3]["us"] < rows[0]["us"]
    committed = {key(row): row["us"] for row in read(RESULTS / "network_estimates.jsonl")}
    assert len(committed) == 4 * len(Precision) * 4  # networks, precisions, N
    for row in rows:
        stale = "if this is meant: python -m benchmarks.networks --estimate"
        assert committed[key(row)] == pytest.approx(row["us"], rel=0.02), stale
    assert "ESTIMATED, not measured" in capsys.readouterr().out
    assert light.NETWORKS.keys() >= {"VGG-19", "ResNet-50", "GoogLeNet", "SqueezeNet"}
