"""The simulator is fast enough to run whole networks."""

import platform

import pytest

from cusim.build import PLAIN
from cusim.device import Order
from tests.cusim.selftest.speed import measure


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere fibers switch slowly")
@pytest.mark.parametrize("kernel", ["barriers", "shuffles"])
def test_a_core_takes_fifteen_million_thread_steps_a_second(kernel: str) -> None:
    """The rate is twice as high on an idle core, and 2 million if fibers save the kernel's signal
    masks."""
    steps, _ = measure(PLAIN, Order.RANDOM, kernel)
    assert steps > 15e6
