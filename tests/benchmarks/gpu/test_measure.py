"""Units become rows: layers and networks on the simulator."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import measure
from benchmarks.gpu.measure import _layers, _networks, measurer_of
from benchmarks.gpu.units import Unit, units
from benchmarks.gpu.worker import serve_units
from benchmarks.kernels.baselines_torch import BaselineError
from benchmarks.kernels.contest import Effort
from benchmarks.kernels.suites import PAPERS_BATCHES
from benchmarks.networks import light
from benchmarks.networks.sides import ConvoyNetwork
from benchmarks.networks.switches import CONVOYS, SWITCHES, switched
from benchmarks.rows import Row
from cusim.device import CusimDevice
from kernels.device.device import FaultError
from kernels.problems.conv import same_padded
from kernels.problems.precision import Precision
from kernels.tuning import micro
from kernels.tuning.autotune import Search
from kernels.tuning.examination import exam_of
from kernels.tuning.heuristic import heuristic
from kernels.tuning.store import TuningStore
from models import BUILT_IN_MODEL, load_classifier
from tests.support.kernels.null_device import NullDevice

SMALL = same_padded((3, 4), 3, 4, 8)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_a_layer_is_measured_warm_and_cold(
    device: CusimDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision
) -> None:
    problem = replace(SMALL, precision=precision)
    monkeypatch.setattr(measure, "problems", lambda: {str(problem): problem})
    monkeypatch.setattr(measure, "Search", lambda: Search(top=1))
    effort = Effort(copies=2, replays=2)
    layer = _layers("convoy", device, TuningStore(tmp_path / "tuning.json"), effort)
    rows = layer(Unit("layer", str(problem), 2, "convoy"))
    assert [row["cache"] for row in rows] == ["warm", "cold"]
    assert {row["problem"] for row in rows} == {str(problem.with_batch(2))}
    assert all(row["p50_us"] > 0 for row in rows)


def test_the_largest_n_of_the_papers_has_numbers_that_a_float_holds() -> None:
    most = max(n for batches in PAPERS_BATCHES.values() for n in batches)
    exam = exam_of(SMALL)
    x = exam.inputs(most)["x"][..., : SMALL.c]
    assert len(x) == most == 256
    assert np.isfinite(x).all()
    assert np.abs(x).max() * SMALL.c * 9 < np.finfo(np.float32).max


@pytest.mark.slow
def test_what_the_model_assumes_is_measured_first(
    device: CusimDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [unit.kind for unit in units()[: len(micro.MEASUREMENTS)]] == ["micro"] * 5
    monkeypatch.setattr(micro, "TURNS", (0, 2, 4))
    measured = measurer_of("micro", "convoy", device, tmp_path)
    rows = measured(Unit("micro", "chain", 1, "convoy"))
    assert len(rows) == 3 * 3 * 2
    assert {row["reading"] for row in rows} == {"chain"}
    assert rows[0]["conditions"] == {"turns": 0, "trigger": "START", "dependent": False}
    assert all(row["p50_us"] > 0 for row in rows)


def test_a_network_is_measured_from_pixels_to_scores(
    device: CusimDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    monkeypatch.setattr(measure, "AT_PRECISIONS", {"digits": ("digits", Precision.FP32)})
    monkeypatch.setattr("benchmarks.networks.light.network", lambda *_: digits)
    monkeypatch.setattr(measure, "chosen", lambda device, *_: heuristic(device))
    network = _networks("convoy", device, TuningStore(tmp_path / "tuning.json"), runs=2)
    rows = network(Unit("network", "digits", 2, "convoy"))
    assert [row["metric"] for row in rows] == ["device", "end to end"]
    assert {(row["network"], row["n"], row["side"]) for row in rows} == {("digits", 2, "convoy")}


def test_a_network_without_a_part_has_rows_of_its_own(
    device: CusimDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    monkeypatch.setattr(measure, "AT_PRECISIONS", {"digits": ("digits", Precision.FP32)})
    monkeypatch.setattr("benchmarks.networks.light.network", lambda *_: digits)
    monkeypatch.setattr(measure, "chosen", lambda device, *_: heuristic(device))
    name = switched(SWITCHES[0])
    network = _networks("convoy", device, TuningStore(tmp_path / "tuning.json"), runs=2)
    rows = network(Unit("network", "digits", 1, name))
    assert [(row["side"], row["metric"]) for row in rows] == [
        (name, "device"),
        (name, "end to end"),
    ]
    measured = {(unit.side, unit.n) for unit in units() if unit.kind == "network"}
    assert {(switched(switch), n) for switch in SWITCHES for n in (1, 2, 4, 8)} <= measured


def test_sides_that_need_the_same_libraries_share_a_worker() -> None:
    def worker(subject: str, side: str) -> tuple[str, str]:
        return Unit("network", subject, 1, side).worker

    same = {worker("ResNet-50 tf32", side) for side in CONVOYS}
    assert same == {worker("SqueezeNet", "convoy")}
    assert worker("ResNet-50 fp16", "torch graph") == ("network", "torch graph")
    assert worker("ResNet-50 tf32", "torch graph") == ("network", "torch graph with tf32")
    assert Unit("layer", "any", 1, "torch").worker == ("layer", "torch")


@pytest.mark.parametrize("side", ["convoy dependent launches", "convoy untuned without branches"])
def test_a_side_that_there_is_not_is_refused_with_those_that_there_are(
    side: str, device: CusimDevice, tmp_path: Path
) -> None:
    with pytest.raises(
        BaselineError, match=f"'{side}' cannot be measured; name one of convoy, .*im2col"
    ):
        measurer_of("network", side, device, tmp_path)
    network = _networks("convoy", device, TuningStore(tmp_path / "tuning.json"))
    with pytest.raises(BaselineError, match=f"'{side}' cannot be measured"):
        network(Unit("network", "SqueezeNet", 1, side))


def test_a_network_of_bytes_has_kernels_of_bytes() -> None:
    model = light.network("SqueezeNet", Precision.INT8)
    assert model.network.quantized
    device = NullDevice()
    engine = ConvoyNetwork(model, device, 1, heuristic(device))
    kernels = {step.launch.instantiation.source for step in engine.plans[1].steps}
    assert "integer_gemm.cu" in kernels
    engine.close()


def test_what_is_missing_is_said_before_any_unit(
    device: CusimDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.gpu.carried.data", lambda: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    for kind, side in (("http", "convoy"), ("network", "torch eager"), ("layer", "torch")):
        with pytest.raises(BaselineError):
            measurer_of(kind, side, device, tmp_path)


def test_a_library_that_loses_the_device_is_no_refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    units = [{"kind": "layer", "subject": name, "n": 1, "side": "cudnn"} for name in "abc"]
    asked: list[str] = []

    def losing(unit: Unit) -> list[Row]:
        asked.append(unit.subject)
        raise RuntimeError("no plan")

    def check() -> None:
        if "b" in asked:
            raise FaultError("cudaErrorIllegalAddress")

    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(json.dumps(u) + "\n" for u in units)))
    with pytest.raises(SystemExit):
        serve_units(losing, {"device": "made up"}, check)
    _, first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["outcome"], first["why"]) == ("refused", "RuntimeError: no plan")
    assert (second["outcome"], second["why"]) == ("faulted", "cudaErrorIllegalAddress")
    assert asked == ["a", "b"]
