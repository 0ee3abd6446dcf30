"""The model, its device and its machine, from a server's metrics."""

from functools import partial

import pytest

from loadtest.subject import Subject, subject
from service.engine.runner import EngineStatus
from service.telemetry.metrics import Metrics


def test_the_device_and_the_machine_are_those_of_the_metrics() -> None:
    metrics = Metrics(max_batch=4)
    for model, device in (("digits", "cpu (ONNX Runtime)"), ("other", "NVIDIA H200")):
        status = EngineStatus(
            device, "fp32", "", "", True, max_batch=4, restarts=0, batches=0, images=0, busy_s=0
        )
        metrics.model(model, "1").engines = partial(list, [status])
    found = subject("digits", metrics.exposition().decode())
    assert found.device == "cpu (ONNX Runtime)"
    assert found.machine.endswith(" cores")
    assert str(found) == f"digits, cpu (ONNX Runtime), {found.machine}"


@pytest.mark.parametrize(
    "text", [None, "<html>", "convoy_info{} 1\n", 'convoy_engine_info{device="x"} 1\n']
)
def test_without_convoys_metrics_only_the_model_is_known(text: str | None) -> None:
    assert subject("digits", text) == Subject("digits")
