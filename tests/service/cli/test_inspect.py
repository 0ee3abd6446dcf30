"""`convoy inspect` describes the built-in model, as a table and as JSON."""

import json
import sys
from math import prod
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from models import BUILT_IN_MODEL, GPUS, NetworkReport, load_classifier, plan_report, report
from models.graph import Conv
from models.schedule.timeline import Bar, Timeline
from service.cli.inspect import print_report
from service.cli.plots import shortened, times_of
from tests.support.command_line import Run
from tests.support.models.quantized import quantized


@pytest.fixture(scope="module")
def digits() -> NetworkReport:
    return report(load_classifier(BUILT_IN_MODEL), n=4)


def test_costs_grow_with_the_batch_but_weights_are_read_once(digits: NetworkReport) -> None:
    single = report(load_classifier(BUILT_IN_MODEL), n=1)
    assert digits.flops == 4 * single.flops
    assert single.bytes < digits.bytes < 4 * single.bytes
    assert digits.bytes == 4 * (single.bytes - single.weight_bytes) + single.weight_bytes


def test_a_convolutions_flops_are_two_a_multiply_add_and_its_epilogue(
    digits: NetworkReport,
) -> None:
    graph = load_classifier(BUILT_IN_MODEL).rewritten.graph
    conv = next(node for node in graph.nodes if isinstance(node, Conv))
    row = next(row for row in digits.nodes if row.name == conv.name)
    macs = prod(row.shape) * prod(conv.problem.filter_shape[1:])
    assert row.fused[:2] == ("bias", "Relu")
    assert row.flops == 4 * (2 * macs + 2 * prod(row.shape))


def test_the_table_shows_every_node_its_algorithms_and_why_others_refuse(
    digits: NetworkReport, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(digits, as_json=False)
    text = capsys.readouterr().out
    for node in digits.nodes:
        assert node.name in text
    assert "digits, N = 4: 20 nodes became 11" in text
    assert "winograd F(4x4,3x3)" in text
    assert "stride 2x2; supported: stride 1" in text
    assert "fuse_residual" in text


def test_json_holds_the_same_and_more(
    digits: NetworkReport, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(digits, as_json=True)
    parsed = json.loads(capsys.readouterr().out)
    assert parsed["flops"] == digits.flops
    assert [node["name"] for node in parsed["nodes"]] == [node.name for node in digits.nodes]
    first = parsed["nodes"][0]
    assert {choice["algorithm"]: choice["refusal"] for choice in first["choices"]}["direct"] is None


def test_a_plan_is_shown_launch_by_launch_with_its_totals(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = plan_report(load_classifier(BUILT_IN_MODEL), 8, GPUS["h200"])
    print_report(plan, as_json=False)
    text = capsys.readouterr().out
    for step in plan.steps:
        assert step.name in text
        assert step.kernel in text
    assert "issue ceiling" in text
    assert "digits, N = 8, H200 SXM: 12 launches" in text
    assert "Nothing was measured" in text
    print_report(plan, as_json=True)
    parsed = json.loads(capsys.readouterr().out)
    assert parsed["launches"] == 12
    assert parsed["gpu"]["multiprocessors"] == 132


def test_the_summary_comes_first_and_fits_into_80_columns(
    convoy: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = convoy("inspect", "digits")
    assert status == 0
    first, *_, last = out.strip().splitlines()
    assert first.startswith("digits, N = 1: 20 nodes became 11")
    assert max(map(len, map(str.rstrip, out.splitlines()))) <= 80
    assert last.split()[-1] in ("gemm", "linear", "softmax")
    assert "direct" in out


def test_a_precision_says_what_it_stores_and_what_stays_in_float32(convoy: Run) -> None:
    for wide in ((), ("--wide",)):
        status, out, _ = convoy("inspect", "digits", "--precision", "fp16", *wide)
        assert status == 0
        assert "fp16: stored as halves" in out
        assert "float32: logits: scores are float32" in out
    for precision in ("tf32", "3xtf32"):
        _, out, _ = convoy("inspect", "digits", "--precision", precision)
        described = "described by the flags: precision; digits.toml: preset, labels"
        assert out.splitlines()[1] == described
        assert out.splitlines()[2].startswith(f"{precision}: ")
    _, out, _ = convoy("inspect", "digits", "--precision", "fp32")
    assert "float32" not in out


def test_layers_of_a_quantized_model_are_counted_for_both_devices(
    convoy: Run, tmp_path: Path
) -> None:
    images = np.random.default_rng(0).normal(size=(4, 1, 32, 32)).astype(np.float32)
    path = quantized(BUILT_IN_MODEL, tmp_path / "q.onnx", images)
    for wide in ((), ("--wide",)):
        _, out, _ = convoy("inspect", path, "--preset", "digits", *wide)
        assert "int8 on a GPU: 8 of 8 layers on integers" in out
        assert "int8 on this CPU: 8 of 8 layers on integers" in out


def test_refusals_are_one_row_a_reason(convoy: Run) -> None:
    status, out, _ = convoy("inspect", "digits", "--why")
    assert status == 0
    rows = [line for line in out.splitlines() if "stride 2x2; supported: stride 1" in line]
    assert rows
    assert any(" us by the cost model; gemm " in line for line in out.splitlines())
    assert len(out.splitlines()) == len(set(out.splitlines()))


def test_when_launches_run_is_drawn(convoy: Run, tmp_path: Path) -> None:
    status, _, _ = convoy("inspect", "digits", "--plan", "--timeline", tmp_path / "digits.svg")
    assert status == 0
    drawn = (tmp_path / "digits.svg").read_text()
    assert "<svg" in drawn
    assert "not measured" in drawn
    status, _, error = convoy("inspect", "digits", "--timeline", tmp_path / "digits.pdf")
    assert status == 2
    assert "must end in .svg or .png" in error


def test_a_timeline_is_measured_where_asked(
    convoy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, error = convoy("inspect", "digits", "--measure")
    assert status == 2
    assert "--measure needs --timeline FILE, the file for the drawing" in error
    drawing = ("inspect", "digits", "--timeline", tmp_path / "digits.svg", "--measure")
    monkeypatch.setitem(sys.modules, "cupy", None)
    status, _, error = convoy(*drawing)
    assert status == 1
    assert "Without --measure, the timeline is modelled" in error
    bars = [Bar("first", 0.0, 2.0, ()), Bar("second", 3.0, 4.0, (0,))]
    timeline = Timeline("digits", 1, "a GPU", bars, replay_us=3.25)
    monkeypatch.setattr("service.cli.inspect.measure_timeline", lambda *_: timeline)
    status, _, _ = convoy(*drawing)
    assert status == 0
    drawn = (tmp_path / "digits.svg").read_text()
    assert "measured between events" in drawn
    assert "takes 3.2 µs" in drawn
    assert "not measured" not in drawn
    assert "2 launches, 4.0 µs, of which 1.0 are gaps" in drawn


def test_the_time_by_layer_is_that_of_the_model_of_time() -> None:
    """The report must not show the roofline's time, which is about a twentieth of the cost
    model's."""
    plan = plan_report(load_classifier(BUILT_IN_MODEL), 1, GPUS["h200"], None)
    us = times_of(plan.timeline)
    assert set(us) == {step.name for step in plan.steps}
    assert plan.timeline.us - plan.timeline.gaps_us <= sum(us.values()) + 1e-9
    assert sum(us.values()) > 5 * plan.roofline_us


def test_the_time_by_layer_is_plotted(convoy: Run, tmp_path: Path) -> None:
    status, _, _ = convoy("inspect", "digits", "--plot", tmp_path / "digits.png")
    assert status == 0
    with Image.open(tmp_path / "digits.png") as image:
        assert image.width > 500
    status, _, error = convoy("inspect", "digits", "--plot", tmp_path / "digits.jpg")
    assert status == 2
    assert "digits.jpg must end in .png" in error


def test_long_names_keep_their_ends() -> None:
    name = "/features/denseblock4/denselayer16/conv2/Conv"
    assert shortened(name) == "…" + name[-31:]
    assert len(shortened(name)) == 32
