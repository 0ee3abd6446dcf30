"""The model, its device and its machine, from a server's metrics."""

import pytest

from loadtest.subject import Subject, subject
from service.telemetry.metrics import Metrics


def test_the_device_and_the_machine_are_those_of_the_metrics() -> None:
    metrics = Metrics(max_batch=4)
    metrics.model("digits", "1").engine = lambda: ("cpu (ONNX Runtime)", "")
    metrics.model("other", "1").engine = lambda: ("NVIDIA H200", "")
    found = subject("digits", metrics.exposition().decode())
    assert found.device == "cpu (ONNX Runtime)"
    assert found.machine.endswith(" cores")
    assert str(found) == f"digits, cpu (ONNX Runtime), {found.machine}"


@pytest.mark.parametrize(
    "text", [None, "<html>", "convoy_info{} 1\n", 'convoy_engine_info{device="x"} 1\n']
)
def test_without_convoys_metrics_only_the_model_is_known(text: str | None) -> None:
    assert subject("digits", text) == Subject("digits")
