"""cuDNN as a baseline, with a stand-in that computes with PyTorch on the CPU."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.kernels.baselines_cudnn import MOST_KNOBS, Cudnn, settings
from benchmarks.kernels.baselines_torch import (
    Tensors,
)
from benchmarks.kernels.contest import contest
from cusim.device import CusimDevice
from kernels.problems.conv import ConvProblem
from tests.support.benchmarks.cpu_torch import (
    DEEP,
    FLAT,
    HANDLE,
    QUICK,
    CpuRuntime,
    opened_device,
    torch,
)
from tests.support.benchmarks.fake_cudnn import FakeCudnn, KnobType


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    device = opened_device()
    yield device
    device.close()


def library(**options: Any) -> Any:
    made = Cudnn.__new__(Cudnn)
    made.cudnn, made.handle = FakeCudnn(torch, **options), 7
    return made


@pytest.mark.parametrize("problem", [FLAT, DEEP], ids=str)
def test_every_plan_of_cudnn_is_tried_once_and_only_exact_ones_are_timed(
    device: CusimDevice, problem: ConvProblem
) -> None:
    cudnn = library()
    outcome = contest(cudnn.candidates(device, Tensors(CpuRuntime(), problem)), QUICK)
    # In each layout: engine 0 by itself and with its two possible tiles; 1, 2.
    assert outcome.tried == 2 * 5
    assert outcome.refused == {
        "NCHW eng1": "Deselecting execution plan",
        "NHWC eng1": "Deselecting execution plan",
        "NCHW eng2": "does not compile",
        "NHWC eng2": "does not compile",
    }
    right = {"eng0", "eng0_k1=0", "eng0_k1=1"}
    assert set(cudnn.cudnn.executed) == right
    assert {winner.name.split()[1] for winner in outcome.winners.values()} <= right
    assert cudnn.cudnn.stream == HANDLE


def test_a_plan_in_tf32_that_no_note_told_of_is_refused_for_its_error(
    device: CusimDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tests.support.benchmarks.fake_cudnn.FakeGraph.deselect_numeric_notes",
        lambda self, notes: None,
    )
    outcome = contest(library().candidates(device, Tensors(CpuRuntime(), FLAT)), QUICK)
    assert "wrong result: the relative error" in outcome.refused["NHWC eng1"]
    assert all("eng0" in winner.name for winner in outcome.winners.values())


def test_a_layout_that_cudnn_does_nothing_in_is_refused_and_the_other_tried(
    device: CusimDevice,
) -> None:
    cudnn = library(unsupported=frozenset(["NHWC"]))
    outcome = contest(cudnn.candidates(device, Tensors(CpuRuntime(), FLAT)), QUICK)
    assert outcome.refused["NHWC from_heuristics"] == "no engine for NHWC"
    assert outcome.refused["NHWC from_engines"] == "no engine for NHWC"
    assert all(winner.name.startswith("NCHW") for winner in outcome.winners.values())
    assert outcome.winners


def test_knobs_are_combined_unless_those_are_too_many() -> None:
    def knob(kind: KnobType, last: int) -> Any:
        return SimpleNamespace(type=kind, min_value=0, max_value=last, stride=1)

    fake = FakeCudnn(torch)
    tile, odd = knob(KnobType.TILE_SIZE, 1), knob(KnobType.NOT_SET, 99)
    assert list(settings(fake, [])) == [{}]
    both = list(settings(fake, [tile, odd, knob(KnobType.SPLIT_K, 2)]))
    assert len(both) == 6
    assert {KnobType.TILE_SIZE: 1, KnobType.SPLIT_K: 2} in both
    assert list(settings(fake, [knob(KnobType.SPLIT_K, MOST_KNOBS)])) == [{}]
