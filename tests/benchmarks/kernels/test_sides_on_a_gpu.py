"""The benchmarks' own code for a GPU, PyTorch and cuDNN; each part runs once and quickly."""

from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.kernels.baselines_torch import BaselineError, CudaRuntime
from benchmarks.kernels.contest import Cache, Effort
from benchmarks.kernels.sides import BASELINES, ConvoySide, baseline
from benchmarks.kernels.suites import C3D, CUCONV, Layer
from benchmarks.networks.light import images_of, network
from benchmarks.networks.measure import check
from benchmarks.networks.sides import WAYS, ConvoyNetwork, TorchNetwork
from kernels.device.cuda_device import CudaDevice
from kernels.tuning.autotune import Search
from kernels.tuning.heuristic import heuristic
from tests.support.kernels.gpu import open_gpu

pytestmark = pytest.mark.gpu

QUICK = Effort(copies=4, replays=5, screen_copies=2, screen_replays=2)


@pytest.fixture(scope="module")
def device(pytestconfig: pytest.Config) -> Iterator[CudaDevice]:
    device = open_gpu(pytestconfig)
    yield device
    device.synchronize()


@pytest.mark.parametrize("layer", [CUCONV[0], CUCONV[-1], C3D[3]], ids=lambda each: each.name)
def test_convoy_is_measured(device: CudaDevice, layer: Layer) -> None:
    side = ConvoySide(device, QUICK, None, Search())
    outcome = side.measure(layer.problem)
    side.close()
    assert outcome.refused == {}
    assert set(outcome.winners) == set(Cache)


@pytest.mark.baseline
@pytest.mark.parametrize("layer", [CUCONV[0], C3D[3]], ids=lambda each: each.name)
@pytest.mark.parametrize("name", BASELINES)
def test_a_library_is_measured(device: CudaDevice, name: str, layer: Layer) -> None:
    try:
        side = baseline(name, device, QUICK)
    except BaselineError as error:
        pytest.skip(str(error))
    outcome = side.measure(layer.problem)
    assert set(outcome.winners) == set(Cache), outcome.refused
    assert all(winner.timing.p50_us > 0 for winner in outcome.winners.values())


@pytest.mark.baseline
@pytest.mark.parametrize("way", ["torch eager", "torch graph"])
def test_a_network_gives_the_same_scores_in_pytorch(device: CudaDevice, way: str) -> None:
    try:
        runtime = CudaRuntime()
    except BaselineError as error:
        pytest.skip(str(error))
    model = network("SqueezeNet")
    images = images_of(model, 2)
    engine = ConvoyNetwork(model, device, 2, heuristic(device))
    expected = engine.run(images).scores
    side = TorchNetwork(runtime, model, 2, WAYS[way])
    check(way, side.run(images).scores, expected)
    assert np.ptp(expected) > 0
    assert min(side.queued_us(3)) > 0
    engine.close()
