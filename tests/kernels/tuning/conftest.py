"""The simulator, an empty store, and few algorithms, for tests of measuring."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cusim.device import CusimDevice
from kernels.convolution import algorithms
from kernels.tuning.store import TuningStore
from tests.support.kernels.tuning_fakes import FEW


@pytest.fixture
def few_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the algorithms with few, whatever else there is."""
    monkeypatch.setattr(algorithms, "ALGORITHMS", FEW)


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    """Yield a simulated device with the first of the thread orders."""
    device = CusimDevice()
    yield device
    device.close()


@pytest.fixture
def store(tmp_path: Path) -> TuningStore:
    """Return an empty store, as before the first measurement."""
    return TuningStore(tmp_path / "tuning.json")
