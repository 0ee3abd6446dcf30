"""Shuffles, votes, reductions and atomic operations compared with CUDA's programming guide."""

import numpy as np
import pytest
from numpy.typing import NDArray

from cusim.build import BUILDS, Build
from cusim.device import POISON, Order
from tests.cusim.selftest.launching import Passed, instantiation, launch, opened, unwritten

LANE = np.arange(32)


def _expected(x: NDArray[np.int32]) -> list[NDArray[np.integer]]:
    """Return one row per function, in the order of the kernel."""

    def outside(source: NDArray[np.integer], inside: NDArray[np.bool_]) -> NDArray[np.int32]:
        return x[np.where(inside, source, LANE)]

    everywhere = np.ones(32, np.int32)
    low, high = x[:16].max(), x[16:].max()
    return [
        x[LANE * 7 % 32],
        x[LANE // 8 * 8 + 3],
        outside(LANE - 3, LANE >= 3),
        outside(LANE - 3, LANE % 16 >= 3),
        outside(LANE + 5, LANE + 5 < 32),
        outside(LANE + 5, LANE % 8 + 5 < 8),
        x[LANE ^ 9],
        # Earlier segments of the width can be reached, later ones not.
        outside(LANE ^ 9, LANE ^ 9 < LANE // 8 * 8 + 8),
        everywhere * np.packbits(x > 0, bitorder="little").view(np.int32),
        everywhere * 0,
        everywhere,
        everywhere * x.sum(),
        everywhere * x.min(),
        everywhere * np.bitwise_or.reduce(x),
        x[LANE ^ 1],
        np.where(LANE < 16, low + 3, high),
        x[31 - LANE],
        (x[31 - LANE] * 3 + LANE)[LANE ^ 1],
    ]


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_lanes_exchange_what_the_programming_guide_says(build: Build) -> None:
    x = np.random.default_rng(1).integers(-1000, 1000, 32, np.int32)
    for order in Order:
        device = opened(build, order)
        arguments: list[Passed] = [x, unwritten((20, 32), np.int32)]
        _, y = launch(
            device, instantiation("warps.cu", "shuffles"), (1, 1, 1), (32, 1, 1), arguments
        )
        for row, (got, expected) in enumerate(zip(y, _expected(x), strict=False)):
            assert got.tolist() == expected.tolist(), f"row {row}, {device.name}"
        assert y[18, :20].tolist() == x[LANE ^ 1][:20].tolist()
        # Others than the lane itself may have returned, or not.
        assert (y[19, :20] & 1 << LANE[:20] != 0).all()
        assert (y[19, :20] < 1 << 20).all()
        assert (y[18:, 20:] == -1).all()
        device.close()


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_atomic_operations_of_many_threads_add_up(build: Build) -> None:
    x = np.random.default_rng(2).integers(0, 1000, 3 * 128, np.int32)
    y = np.array([0, 0, -1, 5000, 0, -1, 0, 0, 0, 0], np.int32)
    device = opened(build, Order.RANDOM)
    arguments: list[Passed] = [x, y, np.zeros(1, np.float32)]
    _, y, total = launch(
        device, instantiation("warps.cu", "atomics"), (3, 1, 1), (128, 1, 1), arguments
    )
    every_bit, common_bits = np.bitwise_or.reduce(x), np.bitwise_and.reduce(x)
    expected = [x.sum(), -x.sum(), x.max(), x.min(), every_bit, common_bits, 384 % 100, x.sum(), 1]
    assert y.tolist() == [*expected, 1]
    assert total == x.sum()  # exact: far below 2^24
    device.close()


def test_barriers_count_their_predicates_among_threads_that_have_not_returned() -> None:
    device = opened()
    kernel = instantiation("barriers.cu", "predicates")
    for x, expected in (
        ([1, -1, 1, 1], [2, 1, 0]),
        ([-1, -1, -1, 1], [0, 0, 0]),
        ([1, 1, 1, -1], [3, 1, 1]),
    ):
        arguments: list[Passed] = [np.array(x, np.float32), unwritten(3, np.int32)]
        _, y = launch(device, kernel, (1, 1, 1), (4, 1, 1), arguments)
        assert y.tolist() == expected
    device.close()


@pytest.mark.parametrize("size", [4, 8, 16])
def test_asynchronous_copies_of_every_size_write_zeros_where_told(size: int) -> None:
    device = opened()
    x = np.random.default_rng(3).integers(0, POISON, (64, size), np.uint8)
    kernel = instantiation("copies.cu", "copy_even", bytes=size)
    arguments: list[Passed] = [x, unwritten(x.shape, np.uint8)]
    _, y = launch(device, kernel, (1, 1, 1), (64, 1, 1), arguments)
    assert (y[::2] == x[::2]).all()
    assert (y[1::2] == 0).all()
    device.close()


@pytest.mark.parametrize("size", [4, 8, 16])
def test_asynchronous_copies_of_a_part_fill_the_rest_with_zeros(size: int) -> None:
    device = opened()
    x = np.random.default_rng(3).integers(1, POISON, (64, size), np.uint8)
    kernel = instantiation("copies.cu", "copy_parts", bytes=size)
    arguments: list[Passed] = [x, unwritten(x.shape, np.uint8)]
    _, y = launch(device, kernel, (1, 1, 1), (64, 1, 1), arguments)
    read = np.arange(64)[:, None] % (size + 1)
    assert (y == np.where(np.arange(size) < read, x, 0)).all()
    device.close()
