"""Every kernel compared with its reference: simulated in any order of threads, and on a GPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cusim.build import ASAN, PLAIN, TSAN, Build
from cusim.device import CusimDevice, Order
from kernels.device.device import NO_CLUSTERS, Device, Instantiation
from kernels.device.launch import Launch
from kernels.device.tensor_map import TensorMap
from tests.support.cases import CASES
from tests.support.kernels.kernel_case import KernelCase, run
from tests.support.proved import CHOICE


def may_hang(launch: Launch) -> bool:
    """Return whether blocks wait for other blocks, or for copies that a descriptor describes."""
    copies = any(isinstance(argument, TensorMap) for argument in launch.arguments)
    return copies or launch.cluster != NO_CLUSTERS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create tests for the cases of this run: all of them, or one in 64."""
    if "case" in metafunc.fixturenames:
        cases = metafunc.config.stash[CHOICE].of_cases(Path(__file__), CASES, kernels)
        metafunc.parametrize("case", [_by_risk(case) for case in cases], ids=str)


def kernels(case: KernelCase) -> tuple[Instantiation, ...]:
    """Return what is compiled for a case."""
    return tuple(launch.instantiation for launch in case.launches)


def _by_risk(case: KernelCase) -> Any:
    marks = [pytest.mark.risky] if any(map(may_hang, case.launches)) else []
    return pytest.param(case, marks=marks)


def _opened(build: Build, *orders: Order) -> Iterator[list[CusimDevice]]:
    devices = [CusimDevice(build, order) for order in orders]
    yield devices
    for device in devices:
        device.close()


@pytest.fixture(scope="module")
def every_order() -> Iterator[list[CusimDevice]]:
    yield from _opened(PLAIN, *Order)


@pytest.fixture(scope="module")
def sanitized(request: pytest.FixtureRequest) -> Iterator[list[CusimDevice]]:
    yield from _opened(request.param, Order.RANDOM)


def test_a_kernel_computes_its_reference_in_any_order(
    case: KernelCase, every_order: list[CusimDevice]
) -> None:
    first, *others = (run(case, device).tobytes() for device in every_order)
    assert all(other == first for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("sanitized", [ASAN, TSAN], indirect=True, ids=["asan", "tsan"])
def test_a_kernel_is_sound_to_the_sanitizers(
    case: KernelCase, sanitized: list[CusimDevice]
) -> None:
    clusters = any(launch.cluster != NO_CLUSTERS for launch in case.launches)
    if clusters and sanitized[0].build is TSAN:
        pytest.skip("to ThreadSanitizer all blocks are one")
    for device in sanitized:
        run(case, device)


@pytest.mark.gpu
def test_a_kernel_computes_its_reference_on_a_gpu_and_the_same_again(
    case: KernelCase, cuda_device: Device
) -> None:
    assert run(case, cuda_device).tobytes() == run(case, cuda_device).tobytes()


def test_no_two_cases_have_one_name() -> None:
    names = [str(case) for case in CASES]
    assert np.unique(names).size == len(names)
