"""Blocks that learn of each other by atomic operations."""

import numpy as np
import pytest

from tests.cusim.build import ASAN, BUILDS, PLAIN, Build
from tests.cusim.device import CusimDevice, Order
from tests.cusim.selftest.launching import Passed, instantiation, launch, opened, unwritten

THREADS, BLOCKS = 64, 5


def sums_blocks(device: CusimDevice, *, barrier: bool) -> bool:
    """Whether the block that comes last finds what all others left."""
    x = np.arange(BLOCKS * THREADS, dtype=np.float32).reshape(BLOCKS, THREADS)
    kernel = instantiation("handover.cu", "sum_blocks", threads=THREADS, barrier=barrier)
    arrays: list[Passed] = [x, unwritten(x.shape), unwritten(THREADS), np.zeros(1, np.uint32)]
    _, _, y, _ = launch(device, kernel, (BLOCKS, 1, 1), (THREADS, 1, 1), arrays)
    return np.array_equal(y, np.roll(x.sum(axis=0), -1))


@pytest.mark.parametrize("order", Order, ids=lambda order: order.name.lower())
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_the_last_block_finds_what_the_others_left(build: Build, order: Order) -> None:
    device = opened(build, order)
    assert sums_blocks(device, barrier=True)
    device.close()


@pytest.mark.parametrize("build", [PLAIN, ASAN], ids=lambda build: build.name)
def test_a_block_that_is_counted_before_all_its_threads_have_written_is_caught(
    build: Build,
) -> None:
    # Only a random order leaves a block at its atomic operation for the others.
    device = opened(build, Order.RANDOM)
    assert not sums_blocks(device, barrier=False)
    device.close()
