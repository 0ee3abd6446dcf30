"""The simulator, an empty store, and few algorithms, for what measures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cusim.device import CusimDevice
from kernels.convolution import algorithms
from kernels.tuning.store import TuningStore
from tests.support.kernels.tuning_fakes import FEW


@pytest.fixture
def few_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else there is."""
    monkeypatch.setattr(algorithms, "ALGORITHMS", FEW)


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    """A simulated device with the first of the orders."""
    device = CusimDevice()
    yield device
    device.close()


@pytest.fixture
def store(tmp_path: Path) -> TuningStore:
    """Where nothing has been measured."""
    return TuningStore(tmp_path / "tuning.json")
