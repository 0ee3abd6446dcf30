"""Blocks that synchronise with atomic operations, and the visibility of their stores to others."""

import numpy as np
import pytest

from cusim.build import ASAN, BUILDS, ORDERED, PLAIN, Build
from cusim.device import CusimDevice, Order
from tests.cusim.selftest.defects import enumerator
from tests.cusim.selftest.launching import Passed, instantiation, launch, opened, unwritten

THREADS, BLOCKS = 64, 5
RUNS = 20  # each of another random order


def sums_blocks(device: CusimDevice, defect: str) -> bool:
    """Return whether the block that arrives last finds the results of all others."""
    x = np.arange(BLOCKS * THREADS, dtype=np.float32).reshape(BLOCKS, THREADS)
    kernel = instantiation("handover.cu", "sum_blocks", threads=THREADS)
    arrays: list[Passed] = [x, unwritten(x.shape), unwritten(THREADS), np.zeros(1, np.uint32)]
    arguments = [*arrays, enumerator(kernel, defect)]
    _, _, y, _ = launch(device, kernel, (BLOCKS, 1, 1), (THREADS, 1, 1), arguments)
    return np.array_equal(y, np.roll(x.sum(axis=0), -1))


@pytest.mark.parametrize("order", Order, ids=lambda order: order.name.lower())
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_the_last_block_finds_what_the_others_left(build: Build, order: Order) -> None:
    device = opened(build, order)
    assert sums_blocks(device, "NONE")
    device.close()


@pytest.mark.parametrize("build", [PLAIN, ASAN, ORDERED], ids=lambda build: build.name)
def test_a_block_that_is_counted_before_all_its_threads_have_written_is_caught(
    build: Build,
) -> None:
    # Only a random order leaves a block at its atomic operation for the others.
    device = opened(build, Order.RANDOM)
    assert not sums_blocks(device, "NO_BARRIER")
    device.close()


@pytest.mark.parametrize("defect", ["NO_FENCE", "PLAIN_LOAD"])
def test_what_nothing_orders_is_caught_in_every_run_where_memory_order_is_modelled(
    defect: str,
) -> None:
    device = opened(ORDERED, Order.RANDOM)
    assert not any(sums_blocks(device, defect) for _ in range(RUNS))
    device.close()


@pytest.mark.parametrize("defect", ["NO_FENCE_BEHIND", "FENCE_BEFORE_BARRIER"])
def test_a_fence_at_the_wrong_place_is_caught_in_some_run(defect: str) -> None:
    device = opened(ORDERED, Order.RANDOM)
    assert not all(sums_blocks(device, defect) for _ in range(RUNS))
    assert all(sums_blocks(device, "NONE") for _ in range(RUNS))
    device.close()


def test_stores_drain_in_any_order_without_a_fence_and_in_their_own_with_one() -> None:
    nothing_said, value_unseen = -1, -2
    seen: dict[str, set[float]] = {"FENCED": set(), "UNFENCED": set()}
    device = opened(ORDERED, Order.RANDOM)
    kernel = instantiation("handover.cu", "say")
    for _ in range(3 * RUNS):
        for number, saying in enumerate(seen):
            zeros = np.zeros(1, np.uint32)
            operands: list[Passed] = [unwritten(1), zeros, unwritten(1), zeros, np.int32(number)]
            value, said, found, _ = launch(device, kernel, (2, 1, 1), (1, 1, 1), operands)
            assert (value[0], said[0]) == (7, 1)  # all has drained when the launch is over
            seen[saying].add(float(np.nan_to_num(found[0], nan=value_unseen)))
    device.close()
    assert seen["FENCED"] == {nothing_said, 7}
    assert seen["UNFENCED"] >= {nothing_said, value_unseen}
