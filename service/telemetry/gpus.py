"""Utilisation and memory of the GPUs that this machine's driver tells of, under Triton's names.

NVML comes with the driver, its Python binding with the extras that bring CUDA; where either is
missing there is nothing to tell, and no metric that pretends otherwise.
"""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_BINDING = "pynvml"


@dataclass(frozen=True, slots=True)
class _Reading:
    """One number of each GPU: how it is called, what it is, how NVML tells it."""

    name: str
    text: str
    read: Callable[[Any, Any], float]  # of the binding and a GPU's handle


_READINGS = (
    _Reading(
        "nv_gpu_utilization",
        "Share of the last moments in which the GPU was busy, from 0 to 1.",
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    ),
    _Reading(
        "nv_gpu_memory_total_bytes",
        "Memory that the GPU has.",
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total,
    ),
    _Reading(
        "nv_gpu_memory_used_bytes",
        "Memory of the GPU that is taken, by whomever.",
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    ),
    _Reading(
        "nv_gpu_power_usage",
        "Power that the GPU draws, in watts.",
        lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    ),
)


class GpuCollector(Collector):
    """Asks NVML whenever somebody asks for metrics."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        self._gpus = [(str(nvml.nvmlDeviceGetUUID(handle)), handle) for handle in handles]

    @property
    def known(self) -> int:
        """How many GPUs there are."""
        return len(self._gpus)

    def collect(self) -> Iterable[Metric]:
        """A gauge for each number, with a value for each GPU that tells it."""
        for reading in _READINGS:
            gauge = GaugeMetricFamily(reading.name, reading.text, labels=["gpu_uuid"])
            for uuid, handle in self._gpus:
                try:
                    value = reading.read(self._nvml, handle)
                except self._nvml.NVMLError:  # a GPU that has no such number, or is lost
                    continue
                gauge.add_metric([uuid], value)
            if gauge.samples:
                yield gauge


def open_gpus() -> GpuCollector | None:
    """What tells of the GPUs; None where there is no binding, no driver or no GPU."""
    try:
        nvml = importlib.import_module(_BINDING)
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        collector = GpuCollector(nvml)
    except nvml.NVMLError:
        return None
    return collector if collector.known else None
