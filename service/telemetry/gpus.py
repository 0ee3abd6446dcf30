"""Utilisation, memory and power of the GPUs, under Triton's names.

NVML comes with the driver, and its Python binding with the CUDA extras; without either there are
no such metrics.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# Help, and how to read it of a GPU's handle by the binding.
_READINGS: dict[str, tuple[str, Callable[[Any, Any], float]]] = {
    "nv_gpu_utilization": (
        "Share of time in which the GPU was busy, 0 to 1.",
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    ),
    "nv_gpu_memory_total_bytes": (
        "Memory of the GPU.",
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total,
    ),
    "nv_gpu_memory_used_bytes": (
        "Memory of the GPU in use, by all processes.",
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    ),
    "nv_gpu_power_usage": (
        "Power draw of the GPU, in watts.",
        lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    ),
}


class GpuCollector(Collector):
    """Reads NVML at every scrape."""

    def __init__(self, nvml: Any, gpus: Mapping[str, Any]) -> None:
        self._nvml = nvml
        self._gpus = gpus  # handles by UUID

    def collect(self) -> Iterable[Metric]:
        """One gauge per reading, with a value for each GPU that has it."""
        for name, (text, read) in _READINGS.items():
            gauge = GaugeMetricFamily(name, text, labels=["gpu_uuid"])
            for uuid, gpu in self._gpus.items():
                try:
                    gauge.add_metric([uuid], read(self._nvml, gpu))
                except self._nvml.NVMLError:  # not supported by this GPU, or the GPU is lost
                    continue
            if gauge.samples:
                yield gauge

    @property
    def facts(self) -> dict[str, str]:
        """The GPUs' names and the driver's version."""
        nvml = self._nvml
        names = map(nvml.nvmlDeviceGetName, self._gpus.values())
        return {"gpus": ", ".join(names), "driver": str(nvml.nvmlSystemGetDriverVersion())}


def open_gpus() -> GpuCollector | None:
    """A collector of all GPUs; None without a binding, a driver or a GPU."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        gpus = {str(nvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}
    except nvml.NVMLError:
        return None
    return GpuCollector(nvml, gpus) if gpus else None
