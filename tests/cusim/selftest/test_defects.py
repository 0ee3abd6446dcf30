"""Each defect that is planted in a kernel is found by the builds that should find it."""

import re
from collections.abc import Iterator

import pytest

from cusim.build import ASAN, BUILDS, PLAIN, TSAN, Build
from cusim.device import CusimDevice, Order
from kernels.device.device import FaultError, LaunchError
from tests.cusim.selftest.defects import PLANTED, SUBJECTS, TWICE, WRONG, Planted, Subject
from tests.cusim.selftest.launching import opened

CAUGHT = [
    pytest.param(planted, build, caught, id=f"{planted}-{build.name}")
    for planted in PLANTED
    for build, caught in ((PLAIN, planted.plain), (ASAN, planted.asan), (TSAN, planted.tsan))
    if caught is not None
]


@pytest.fixture(scope="module", params=BUILDS, ids=lambda build: build.name)
def every_order(request: pytest.FixtureRequest) -> Iterator[list[CusimDevice]]:
    devices = [opened(request.param, order) for order in Order]
    yield devices
    for device in devices:
        device.close()


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_without_the_defect_every_build_finds_every_order_right(
    subject: Subject, every_order: list[CusimDevice]
) -> None:
    for device in every_order:
        if subject.clusters and device.build is TSAN:
            with pytest.raises(LaunchError, match="build tsan does not support clusters"):
                subject.run(device, "NONE")
        else:
            assert subject.run(device, "NONE"), device.name


@pytest.mark.parametrize(("planted", "build", "caught"), CAUGHT)
def test_a_planted_defect_is_caught(planted: Planted, build: Build, caught: str) -> None:
    # Whatever the order; ThreadSanitizer, which has none to rely on, is asked once.
    for order in (Order.FORWARD,) if build is TSAN else Order:
        device = opened(build, order)
        if caught == WRONG:
            assert not planted.subject.run(device, planted.defect), device.name
        else:
            with pytest.raises(FaultError) as fault:
                planted.subject.run(device, planted.defect)
            assert re.search(caught, str(fault.value), re.DOTALL), device.name
        device.close()


def test_a_launch_that_never_ends_is_ended() -> None:
    device = opened(timeout_s=1)
    with pytest.raises(FaultError, match=r"still running after 1 seconds.*bounds\.cu:\d+"):
        TWICE.run(device, "ENDLESS")


def test_a_fault_names_kernel_block_and_thread_under_every_sanitizer() -> None:
    for build in BUILDS:
        with pytest.raises(FaultError) as fault:
            TWICE.run(opened(build), "WILD_READ")
        assert "in twice, block (0, 0, 0), thread (31, 0, 0)" in str(fault.value)
