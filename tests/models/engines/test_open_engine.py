"""A start of an engine: what it asks of the classifier that it is opened for."""

from pathlib import Path

import numpy as np
import pytest

from models import BUILT_IN_MODEL, DeviceKind, load_classifier, open_engine
from models.graph import Graph
from models.rewrite import Rewritten, rewrite
from tests.cusim.device import CusimDevice


@pytest.mark.parametrize(("kind", "times"), [(DeviceKind.CUDA, 1), (DeviceKind.CPU, 0)])
def test_a_start_rewrites_the_network_once_or_where_nobody_reads_it_never(
    kind: DeviceKind, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten: list[str] = []

    def counted(graph: Graph) -> Rewritten:
        rewritten.append(graph.name)
        return rewrite(graph)

    device = CusimDevice()
    monkeypatch.setattr("models.classifier.rewrite", counted)
    monkeypatch.setattr("kernels.device.cuda_device.CudaDevice", lambda *_: device)
    monkeypatch.setattr("models.tuning.measured.DEFAULT_STORE", Path("no/such/tuning.json"))
    engine = open_engine(load_classifier(BUILT_IN_MODEL), device=kind, max_batch=2)
    engine.warm_up()
    engine.run(np.zeros((2, 32, 32, 1), np.uint8))
    assert len(rewritten) == times
    engine.close()
    device.close()
