"""Convoy's side of a comparison, on the simulated device, and the conditions that rows state."""

from pathlib import Path

import pytest

from benchmarks.kernels.contest import Effort
from benchmarks.kernels.sides import ConvoySide
from benchmarks.rows import nvidia_driver, where
from cusim.device import CusimDevice
from kernels.problems.conv import same_padded
from kernels.tuning.autotune import Search
from kernels.tuning.heuristic import heuristic

QUICK = Effort(copies=2, replays=2)
SMALL = same_padded((3, 4), 3, 4, 8)


def test_without_a_store_the_heuristics_choice_is_timed(device: CusimDevice) -> None:
    side = ConvoySide(device, QUICK, None, Search())
    outcome = side.measure(SMALL)
    side.close()
    assert {each.name for each in outcome.winners.values()} == {str(heuristic(device)(SMALL))}
    assert outcome.tried == 1


def test_a_choice_that_is_wrong_is_never_timed(
    device: CusimDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = ConvoySide(device, QUICK, None, Search())
    prepare = type(heuristic(device)(SMALL).algorithm).prepare_filter
    monkeypatch.setattr(
        type(heuristic(device)(SMALL).algorithm),
        "prepare_filter",
        lambda self, weight, *others: prepare(self, 1 - weight, *others),
    )
    outcome = side.measure(SMALL)
    side.close()
    assert outcome.winners == {}
    assert "are wrong" in outcome.refused[str(heuristic(device)(SMALL))]


def test_a_place_says_which_device_and_versions(device: CusimDevice) -> None:
    place = where(device, "abc")
    assert (place["kind"], place["commit"]) == ("measurement", "abc")
    assert place["device"] == device.name
    assert place["peak_flops"] == device.peak_flops
    assert place["python"]


def test_the_drivers_version_is_what_nvidia_smi_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_driver() is None
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\n[ "$1" = --query-gpu=driver_version ] && echo 580.1\n')
    program.chmod(0o755)
    assert nvidia_driver() == "580.1"
