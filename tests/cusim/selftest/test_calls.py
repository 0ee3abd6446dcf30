"""Kernels receive the arguments with which they are launched."""

import numpy as np
import pytest

from cusim.device import POISON, CusimDevice, Order
from kernels.device.device import CompileError, Instantiation, LaunchError
from tests.cusim.selftest.launching import Passed, instantiation, launch, opened, unwritten

MIXED = np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2", 3), ("d", "u8")], align=True)


def test_arguments_of_every_kind_arrive(device: CusimDevice) -> None:
    stream = device.stream()
    numbers = device.allocate(8)
    device.upload(numbers.address, np.array([1.5, 2.5], np.float32), stream)
    mixed = np.zeros((), MIXED)
    mixed[()] = (-3, 0.1, (1, 2, -7), numbers.address)
    arguments: list[Passed] = [
        mixed.tobytes(),
        np.int32(-4),
        np.uint32(2**32 - 1),
        np.int64(-(2**40)),
        np.float32(0.5),
        np.uint8(1),  # type: ignore[list-item]  # an enumeration as small as this is in no kernel
        np.array([8, 9], np.int32),
        unwritten(10, np.float64),
    ]
    stream.synchronize()
    y = launch(device, instantiation("calls.cu", "arguments"), (1, 1, 1), (1, 1, 1), arguments)[-1]
    assert y.tolist() == [-3, 0.1, -7, 2.5, -4, 2**32 - 1, -(2**40), 0.5, 1, 9]
    numbers.free()


@pytest.mark.parametrize(
    "arguments",
    [
        [0, np.int32(1)],
        [0, np.int32(1), np.float32(2)],
        [0, np.int32(1), 3],
        [0, np.int64(1), np.int32(2)],
        [0, np.int32(1), b"1234"],
        [0, np.int32(1), np.int32(2), np.int32(3)],
    ],
    ids=["too few", "float", "address", "wide", "struct", "too many"],
)
def test_arguments_of_the_wrong_kind_are_refused(
    device: CusimDevice, arguments: list[Passed]
) -> None:
    kernel = device.load(Instantiation("bounds.cu", "twice"))
    with pytest.raises(LaunchError, match=r"cannot launch twice: the arguments .*p8.*p8.*i4.*i4"):
        launch(device, kernel.instantiation, (1, 1, 1), (1, 1, 1), [0, *arguments])


def test_every_thread_of_a_grid_runs_once_with_its_coordinates(device: CusimDevice) -> None:
    grid, block = (2, 3, 4), (5, 2, 3)
    y = unwritten((*grid[::-1], *block[::-1], 12), np.uint32)
    (y,) = launch(device, instantiation("calls.cu", "coordinates"), grid, block, [y])
    z, y_, x = np.meshgrid(*map(np.arange, grid[::-1]), indexing="ij")
    assert (y[..., :3] == np.stack([x, y_, z], -1)[:, :, :, None, None, None]).all()
    z, y_, x = np.meshgrid(*map(np.arange, block[::-1]), indexing="ij")
    assert (y[..., 3:6] == np.stack([x, y_, z], -1)).all()
    assert (y[..., 6:] == [*grid, *block]).all()


def _turns(device: CusimDevice) -> list[int]:
    arguments: list[Passed] = [unwritten(2 * 3 * 40, np.int32), np.zeros(1, np.int32)]
    y, _ = launch(device, instantiation("calls.cu", "turns"), (3, 1, 1), (40, 1, 1), arguments)
    return [int(thread) for thread in y]


def test_threads_take_turns_in_the_order_asked_for() -> None:
    block = list(range(40))
    expected = [40 * b + i for b in range(3) for i in block * 2]
    assert _turns(opened(order=Order.FORWARD)) == expected
    assert _turns(opened(order=Order.REVERSED)) == [
        40 * b + i for b in (2, 1, 0) for i in block[::-1] * 2
    ]


def test_random_turns_differ_from_launch_to_launch_and_come_again_with_the_seed() -> None:
    first, again, other = (opened(order=Order.RANDOM, seed=seed) for seed in (1, 1, 2))
    turns = [_turns(first), _turns(first)]
    assert turns[0] != turns[1]
    assert [_turns(again), _turns(again)] == turns
    assert _turns(other) != turns[0]
    # Blocks, the threads of each at its start, and after its barrier.
    blocks = [turns[0][i : i + 40] for i in range(0, 240, 40)]
    assert blocks[0] != sorted(blocks[0])
    assert blocks[1] != blocks[0]
    assert sorted(turns[0]) == sorted(list(range(120)) * 2)


def test_shared_memory_holds_poison_at_the_start_of_every_block(device: CusimDevice) -> None:
    kernel = instantiation("calls.cu", "shared", bytes=32)
    (y,) = launch(device, kernel, (1, 1, 1), (32, 1, 1), [np.zeros(64, np.uint8)], 32)
    assert (y == POISON).all()
    (y,) = launch(device, kernel, (3, 1, 1), (32, 1, 1), [np.zeros(64, np.uint8)], 32)
    assert (y == POISON).all()


def test_too_much_static_shared_memory_does_not_compile(device: CusimDevice) -> None:
    assert device.load(instantiation("calls.cu", "shared", bytes=48 << 10))
    with pytest.raises(CompileError, match="shared memory"):
        device.load(instantiation("calls.cu", "shared", bytes=(48 << 10) + 256))


@pytest.mark.parametrize("blocks", [0, 2**31])
def test_a_grid_of_no_blocks_or_too_many_is_refused(device: CusimDevice, blocks: int) -> None:
    kernel = instantiation("calls.cu", "turns")
    with pytest.raises(LaunchError, match="grid"):
        launch(device, kernel, (blocks, 1, 1), (64, 1, 1), [0, 0])


def test_template_arguments_are_given_under_the_parameters_names(device: CusimDevice) -> None:
    right = instantiation("calls.cu", "named", first=3, second=True, third="float")
    (y,) = launch(device, right, (1, 1, 1), (1, 1, 1), [unwritten(1)])
    assert y == 3
    for wrong in (
        instantiation("calls.cu", "named", second=True, first=3, third="float"),
        instantiation("calls.cu", "named", first=3, second=True),
        instantiation("calls.cu", "turns", first=3),
    ):
        with pytest.raises(CompileError, match="as declared"):
            device.load(wrong)
