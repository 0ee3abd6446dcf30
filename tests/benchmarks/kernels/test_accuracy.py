"""Errors of the kernels on the simulated device, and the report of them."""

import io
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.kernels import __main__ as kernels
from benchmarks.kernels import accuracy
from benchmarks.kernels.accuracy import (
    ELEMENTS,
    LAYERS,
    ONE_SUM,
    PAPER,
    PAPER_HALF,
    SQUARE,
    convolve,
    error_of,
    errors,
    sample,
    show,
    variants,
)
from benchmarks.kernels.suites import Layer
from benchmarks.rows import read
from cusim.device import CusimDevice
from kernels.device.gpus import H200
from kernels.problems.conv import same_padded
from kernels.problems.precision import Precision
from tests.support.kernels import reference
from tests.support.networks import SHARED

PAPER_TEXT = SHARED / "seeds" / "lavin-gray-2015-winograd.txt"
TINY = same_padded((5, 6), 3, 16, 12)


def test_every_way_to_round_is_a_variant(device: CusimDevice) -> None:
    names = set(variants(TINY, device))
    assert "direct" in names
    assert {"gemm"} == set(variants(same_padded((4, 4), 1, 8, 8), device)) & {"gemm"}
    winograd = {name for name in names if name.startswith("winograd F(4x4,3x3)")}
    assert {name.rpartition(", ")[2] for name in winograd} == {"integer points", "mixed points"}


def test_every_variant_errs_but_by_little_and_never_leaves_anything_out(
    device: CusimDevice,
) -> None:
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (2, 16, 5, 6)).astype(np.float32)
    weight = rng.uniform(-1, 1, TINY.filter_shape).astype(np.float32)
    problem = TINY.with_batch(2)
    truth = reference.conv(x.astype(np.float64), weight.astype(np.float64), problem)
    for choice in variants(problem, device).values():
        y = convolve(device, problem, choice, x, weight)
        assert y.shape == truth.shape
        assert np.allclose(y, truth, atol=1e-4)
    largest = {name: error.largest for name, (_, error) in errors(device, TINY, device).items()}
    assert all(0 < error < 1e-4 for error in largest.values())
    assert "direct, in one part" in largest
    four = {name: error for name, error in largest.items() if "F(4x4,3x3)," in name}
    mixed, integer = (
        next(error for name, error in four.items() if points in name)
        for points in ("mixed", "integer")
    )
    assert largest["direct"] < mixed < integer


def test_an_error_has_a_size_and_a_direction() -> None:
    truth = np.array([3.0, -4.0])
    towards_zero = np.float32(1 - 2.0**-20) * truth.astype(np.float32)
    error = error_of(towards_zero, truth)
    assert error.largest == 4 * 2.0**-20
    assert error.usual == pytest.approx(8)  # eps
    assert error.bias == pytest.approx(-8 * 3.5 / 12.5**0.5)


def test_a_sample_has_squares_from_all_over_the_layer_with_all_channels_and_filters() -> None:
    counts = {}
    for layer in LAYERS:
        problem = layer.problem
        found = sample(problem)
        assert (found.problem.c, found.problem.k) == (problem.c, problem.k)
        inside = found.of_image(problem)
        assert ELEMENTS // 2 < inside.sum() * problem.k <= ELEMENTS
        height, width = problem.window.output
        assert found.begins[0] == (0, 0)
        assert found.begins[-1][0] + SQUARE >= height
        assert found.begins[-1][1] + SQUARE >= width
        assert len(set(found.begins)) == len(found.begins)
        counts[layer.name] = int(inside.sum())
    assert counts == dict(zip(counts, (2048, 1024, 512, 208, 196), strict=True))


@pytest.mark.parametrize("precision", Precision, ids=lambda each: each.value)
def test_the_numbers_of_a_sample_are_the_whole_layers_to_the_bit(
    device: CusimDevice, precision: Precision
) -> None:
    small, layer = (
        replace(same_padded(size, 3, 8, 8), precision=precision) for size in ((4, 4), (20, 27))
    )
    found = sample(layer, 8 * 64 * 5)
    assert len(found.begins) == 5
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (1, 8, 20, 27)).astype(np.float32)
    weight = rng.uniform(-1, 1, layer.filter_shape).astype(np.float32)
    squares, inside = found.pixels(x, layer), found.of_image(layer)
    for name, choice in variants(small, H200).items():
        whole = convolve(device, layer, choice, x, weight, 20)
        part = convolve(device, found.problem, choice, squares, weight, 20)
        for (h, w), of_square, seen in zip(found.begins, part, inside, strict=True):
            expected = whole[0, :, h : h + SQUARE, w : w + SQUARE]
            kept = of_square[:, seen[0].any(1)][:, :, seen[0].any(0)]
            assert np.array_equal(kept, expected), (name, h, w)


def test_rows_and_a_table_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(accuracy, "LAYERS", (Layer("conv 5", same_padded((4, 4), 3, 8, 8)),))
    monkeypatch.setitem(accuracy.DEVICES, "cusim", CusimDevice)  # its kernels are compiled already
    monkeypatch.setattr(kernels, "commit", lambda: "abc")
    out = ["--out", str(tmp_path)]
    kernels.main(["--accuracy", "--device", "cusim", *out])
    rows = read(tmp_path / "accuracy.jsonl")
    assert {row["kind"] for row in rows} == {"accuracy"}
    assert {row["layer"] for row in rows} == {"conv 5"}
    assert rows[0]["device"].startswith("CPU simulator")
    assert rows[0]["commit"] == "abc"
    assert {row["variant"] for row in rows if row["precision"] == "fp16"} == {
        "tensor",
        "tensor wgmma",
        "tensor tma",
        "tensor patch",
        "tensor winograd F(2x2,3x3), integer points",
        "winograd F(2x2,3x3) non-fused, integer points",
        "winograd F(4x4,3x3) non-fused, mixed points",
    }
    assert {row["precision"] for row in rows} == {each.value for each in Precision}
    in_bytes = [row["largest_error"] for row in rows if row["precision"] == "int8"]
    assert len(in_bytes) == 3
    assert len(set(in_bytes)) == 1, "sums of bytes are exact"
    (one_sum,) = (row for row in rows if row["variant"] == ONE_SUM)
    assert "/" not in one_sum["choice"]
    assert all(row["choice"] for row in rows)
    out_of_all = capsys.readouterr().out
    assert "per layer: squares of 8×8 with 131,072 elements of y" in out_of_all
    assert all(row["sampled"] for row in rows)
    (on_tensor_cores,) = (
        row for row in rows if (row["precision"], row["variant"]) == ("3xtf32", "tensor")
    )
    usual, bias = on_tensor_cores["usual_error_eps"], on_tensor_cores["bias_eps"]
    best = min(row["usual_error_eps"] for row in rows if row["precision"] == "fp32")
    assert (
        f"conv 5, 3xtf32: usual error {usual:.2f} eps, {usual / best:.1f} times the"
        f" smallest in fp32; mean error {bias:+.2f} eps"
    ) in out_of_all
    kernels.main(["--accuracy", "--device", "cusim", "--whole", *out])
    assert "squares" not in capsys.readouterr().out
    assert not read(tmp_path / "accuracy.jsonl")[-1]["sampled"]


def test_what_is_promised_is_held_against_the_worst_layer() -> None:
    rows = [
        {
            "layer": layer,
            "variant": variant,
            "largest_error": error,
            "problem": "p",
            "precision": precision,
        }
        for precision in ("fp32", "fp16")
        for layer, errors in {
            "conv 1.2": {"direct": 1.0, "winograd F(2x2,3x3)": 2.1, "winograd F(4x4,3x3), x": 3.0},
            "conv 5": {"direct": 1.0, "winograd F(2x2,3x3)": 1.0, "winograd F(4x4,3x3), x": 20.0},
        }.items()
        for variant, error in errors.items()
    ]
    out = io.StringIO()
    show(rows, Console(file=out, width=200))
    assert "NOT MET: the error of winograd F(2x2,3x3) is 2.10 times" in out.getvalue()
    assert "\nmet: the error of winograd F(4x4,3x3), x is 20.00 times" in out.getvalue()
    assert "2.10e+00 (1.53e-05)" in out.getvalue()
    assert out.getvalue().count("1.00e+00 (2.61e-02)") == 2  # of fp16, of which nothing is promised
    assert out.getvalue().count("met: ") == 1


@pytest.mark.skipif(not PAPER_TEXT.is_file(), reason=f"needs the paper's text, {PAPER_TEXT}")
def test_the_papers_numbers_are_the_papers() -> None:
    table = PAPER_TEXT.read_text().partition("Direct F(2x2,3x3) F(4x4,3x3)")[2]
    rows = re.findall(r"^([\d.]+) (\S+) (\S+) (\S+) (\S+)$", table, re.MULTILINE)[:5]
    assert {
        f"conv {name}": tuple(map(float, errors)) for name, *errors in rows
    } == {name: (*errors.values(), PAPER_HALF[name]) for name, errors in PAPER.items()}  # fmt: skip


def test_without_a_gpu_the_simulator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(SystemExit, match="--device cusim"):
        kernels.main(["--accuracy"])
