"""Reads the GPUs' utilisation, memory and power, and exports them as metrics with Triton's names.

The library NVML is installed with the driver, and its Python binding with the CUDA extras. If the
driver or the binding is missing, there are no such metrics.
"""

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

# Each row: name, help, function of the binding, attribute of its result (of a number: real), unit.
_READINGS = (
    ("utilization", "Share of the GPU's time that it was busy.", "UtilizationRates", "gpu", 100),
    ("memory_total_bytes", "Memory of the GPU.", "MemoryInfo", "total", 1),
    ("memory_used_bytes", "Memory of the GPU in use, by all processes.", "MemoryInfo", "used", 1),
    ("power_usage", "Power draw of the GPU, in watts.", "PowerUsage", "real", 1000),
)


class GpuCollector(Collector):
    """Reads NVML's values at every scrape."""

    def __init__(self, nvml: Any, gpus: Mapping[str, Any]) -> None:
        self._nvml = nvml
        self._gpus = gpus  # handles by UUID

    @override
    def collect(self) -> Iterable[Metric]:
        """Return one gauge per reading, with a value for each GPU that provides the reading."""
        for name, text, function, part, unit in _READINGS:
            gauge = GaugeMetricFamily(f"nv_gpu_{name}", text, labels=["gpu_uuid"])
            read = getattr(self._nvml, f"nvmlDeviceGet{function}")
            for uuid, gpu in self._gpus.items():
                try:
                    gauge.add_metric([uuid], getattr(read(gpu), part) / unit)
                except self._nvml.NVMLError:  # not supported by this GPU, or the GPU is lost
                    continue
            if gauge.samples:
                yield gauge

    @property
    def facts(self) -> dict[str, str]:
        """Return the names of the GPUs and the version of the driver."""
        nvml = self._nvml
        names = map(nvml.nvmlDeviceGetName, self._gpus.values())
        return {"gpus": ", ".join(names), "driver": str(nvml.nvmlSystemGetDriverVersion())}


def open_gpus() -> GpuCollector | None:
    """Return a collector for all GPUs, or None without a binding, a driver or a GPU."""
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
