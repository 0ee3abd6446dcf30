"""The engine's captured graphs compute the same as their launches, in every replay."""

from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.networks.sides import ConvoyNetwork
from kernels.device.device import Device
from kernels.tuning.heuristic import heuristic
from models import BUILT_IN_MODEL, load_classifier
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.schedule.branches import dependents
from tests.support.models.engines import opened, pixels, scores_by_steps

REPLAYS = {"cusim": 2}
"""The number of replays of each graph, by device; a GPU takes a second for 10,000."""


@pytest.fixture(scope="module")
def digits() -> Classifier:
    return load_classifier(BUILT_IN_MODEL)


@pytest.fixture(scope="module")
def engine(device: Device, digits: Classifier) -> Iterator[CudaEngine]:
    engine = opened(digits, device, max_batch=2 if device.architecture == "cusim" else 8)
    yield engine
    engine.close()


def test_a_graph_gives_the_bits_of_its_steps_one_by_one(
    engine: CudaEngine, digits: Classifier
) -> None:
    for n in engine.plans:
        images = pixels(digits, n)
        assert engine.run(images).scores.tobytes() == scores_by_steps(engine, images).tobytes()


def test_as_many_launches_as_planned_may_begin_early(engine: CudaEngine) -> None:
    """A capture could silently turn programmatic edges into full ones."""
    for n, plan in engine.plans.items():
        planned = sum(dependents(plan.after))
        assert planned > 5
        assert engine.early_launches(n) == (planned, planned)


def test_every_replay_gives_the_bits_of_a_graph_without_dependent_launches(
    device: Device, engine: CudaEngine, digits: Classifier
) -> None:
    for n in engine.plans:
        images = pixels(digits, n)
        apart = ConvoyNetwork(digits, device, n, heuristic(device), "without dependent launches")
        assert apart.early_launches(n) == (engine.early_launches(n)[0], 0)
        expected = apart.run(images).scores.tobytes()
        apart.close()
        for _ in range(REPLAYS.get(device.architecture, 10_000)):
            assert engine.run(images).scores.tobytes() == expected


def test_an_engine_that_is_closed_gives_all_its_memory_back(
    device: Device, digits: Classifier
) -> None:
    free = []
    for _ in range(2):  # the first may leave kernels loaded
        engine = opened(digits, device)
        assert np.isfinite(engine.run(pixels(digits, 1)).scores).all()
        engine.close()
        free.append(device.memory().free)
    assert free[0] == free[1]
