"""GPU metrics, from an artificial binding of NVML."""

# ruff: noqa: N802  the binding's names

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from models import __version__
from service.telemetry.gpus import open_gpus
from service.telemetry.metrics import Metrics
from tests.support.service.client import samples_in


class NVMLError(Exception):
    """The only exception that the binding raises."""


class FakeNvml(ModuleType):
    """The part of pynvml that is used: two GPUs, of which the second does not report its power."""

    def __init__(self, gpus: int = 2, driver: bool = True) -> None:
        super().__init__("pynvml")
        self._gpus = gpus
        self._driver = driver
        self.lost = False
        self.NVMLError = NVMLError

    def nvmlInit(self) -> None:
        if not self._driver:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return self._gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, gpu: int) -> str:
        return f"Fake {gpu}"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetUUID(self, gpu: int) -> str:
        return f"GPU-{gpu}"

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> Any:
        if self.lost:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(gpu=75 - gpu)

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:
        return SimpleNamespace(total=8 * 2**30, used=2**30 + gpu)

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:
        if gpu:
            raise NVMLError("Not Supported")
        return 123_456


def told(nvml: ModuleType | None, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], float]:
    """Return the value of every GPU metric, by its name and its GPU."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    text = Metrics(max_batch=1).exposition().decode()
    return {
        (name, labels["gpu_uuid"]): value
        for name, labels, value in samples_in(text)
        if name.startswith("nv_gpu_")
    }


def test_each_gpu_tells_what_it_knows_under_the_names_that_perf_analyzer_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert told(FakeNvml(), monkeypatch) == {
        ("nv_gpu_utilization", "GPU-0"): 0.75,
        ("nv_gpu_utilization", "GPU-1"): 0.74,
        ("nv_gpu_memory_total_bytes", "GPU-0"): 8 * 2**30,
        ("nv_gpu_memory_total_bytes", "GPU-1"): 8 * 2**30,
        ("nv_gpu_memory_used_bytes", "GPU-0"): 2**30,
        ("nv_gpu_memory_used_bytes", "GPU-1"): 2**30 + 1,
        ("nv_gpu_power_usage", "GPU-0"): 123.456,
    }


def test_the_gpus_and_the_version_are_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    text = Metrics(max_batch=1).exposition().decode()
    (facts,) = [labels for name, labels, _ in samples_in(text) if name == "convoy_info"]
    assert (facts["gpus"], facts["driver"]) == ("Fake 0, Fake 1", "580.1")
    assert facts["version"] == __version__


def test_a_gpu_that_is_lost_is_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(gpus=1)
    nvml.lost = True
    assert ("nv_gpu_utilization", "GPU-0") not in told(nvml, monkeypatch)


@pytest.mark.parametrize(
    "nvml", [None, FakeNvml(driver=False), FakeNvml(gpus=0)], ids=["binding", "driver", "GPU"]
)
def test_without_a_binding_a_driver_or_a_gpu_there_is_no_metric(
    monkeypatch: pytest.MonkeyPatch, nvml: ModuleType | None
) -> None:
    assert told(nvml, monkeypatch) == {}
    assert open_gpus() is None
