"""Estimates: marked as what they are, and no better than the model."""

from pathlib import Path

import pytest

from benchmarks.kernels import __main__ as kernels
from benchmarks.kernels import estimate
from benchmarks.kernels.estimate import PEAK_FLOPS, Estimate, mean_over_plain, of_peak
from benchmarks.kernels.report import compare
from benchmarks.kernels.suites import BATCHES, C3D, CUCONV, SUITES, VGG_E
from benchmarks.rows import RESULTS, read
from kernels.convolution.algorithms import choices
from kernels.device.gpus import H200
from kernels.tuning.constants import CLOCK_HZ
from kernels.tuning.heuristic import estimated_cycles, heuristic
from kernels.tuning.search import by_name


def test_an_estimate_is_the_models_estimate_of_the_heuristics_choice() -> None:
    layer, n = VGG_E[8], 2
    problem = layer.problem.with_batch(n)
    found = estimate.estimate(layer, n)
    choice = heuristic(H200)(problem)
    assert found.choice == str(choice)
    assert found.us == pytest.approx(estimated_cycles(problem, choice, H200) / 1980)
    plain = [each for each in choices(problem) if each.algorithm.name == "direct"]
    least = min(estimated_cycles(problem, each, H200) for each in plain)
    assert found.plain_us == pytest.approx(least / 1980)
    assert found.flops == 2 * 2 * layer.problem.macs
    assert pytest.approx(66.9e12, rel=1e-3) == PEAK_FLOPS


def test_sums_count_a_layer_as_often_as_it_occurs_and_means_once() -> None:
    once, often = VGG_E[1], VGG_E[8]
    fast = Estimate(once, 1, "a", us=1e6 * 2 * once.problem.macs / PEAK_FLOPS, plain_us=1)
    slow = Estimate(often, 1, "b", us=1e6 * 4 * often.problem.macs / PEAK_FLOPS, plain_us=1)
    assert of_peak([fast]) == pytest.approx(1)
    assert of_peak([slow]) == pytest.approx(0.5)
    flops = fast.flops + 4 * slow.flops
    assert of_peak([fast, slow]) == pytest.approx(flops / (fast.flops + 8 * slow.flops))
    pair = [Estimate(once, 1, "a", 1, 2), Estimate(often, 1, "b", 1, 8)]
    assert mean_over_plain(pair) == pytest.approx(4)


def test_rows_and_tables_say_that_nothing_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    five, one = (next(each for each in CUCONV if k in each.name) for k in ("7-5-", "7-1-"))
    suites = {"vgg-e": VGG_E[8:], "cuconv": (five, one), "c3d": C3D[3:]}
    monkeypatch.setattr(estimate, "SUITES", suites)
    monkeypatch.setattr(estimate, "BATCHES", (1, 8))
    monkeypatch.setattr("benchmarks.kernels.report.SUITES", suites)
    for _ in range(2):  # written anew, not added to
        kernels.main(["--estimate", "--out", str(tmp_path), "--commit", "abc"])
    rows = read(tmp_path / "estimates.jsonl")
    assert len(rows) == 2 * 4
    assert {row["kind"] for row in rows} == {"estimate"}
    assert {row["device"] for row in rows} == {"NVIDIA H200, estimated"}
    shown = capsys.readouterr().out
    assert "ESTIMATED, not measured: vgg-e, N = 8" in shown
    assert "the model does not know cuDNN" in shown
    assert "estimated, to reach: 1.5" in shown
    assert compare(rows, VGG_E, 1, "warm") == []
    assert not (tmp_path / "kernels.jsonl").exists()


def test_the_committed_estimates_are_the_models() -> None:
    layers = {(suite, each.name): each.problem for suite, of in SUITES.items() for each in of}
    rows = read(RESULTS / "estimates.jsonl")
    assert len(rows) == len(layers) * len(BATCHES)
    for row in rows:
        problem = layers[row["suite"], row["layer"]].with_batch(row["n"])
        choice = by_name(choices(problem)).get(row["choice"])
        assert choice is not None, (row, "no such choice: python -m benchmarks.kernels --estimate")
        us = 1e6 * estimated_cycles(problem, choice, H200) / CLOCK_HZ
        assert row["us"] == pytest.approx(us, rel=0.02, abs=0.01), (
            row,
            "if this is meant: python -m benchmarks.kernels --estimate",
        )
