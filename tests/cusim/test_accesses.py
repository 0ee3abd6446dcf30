"""The rules for counting accesses, and the records of a kernel's profile."""

import numpy as np
import pytest

from cusim import build
from cusim.accesses import (
    LANES,
    Access,
    Addresses,
    instructions,
    least_sectors,
    least_wavefronts,
    sectors,
    wavefronts,
)
from cusim.build import PROFILE
from cusim.profile import over_banks
from tests.cusim.selftest.launching import (
    KERNELS,
    Passed,
    instantiation,
    launch,
    opened,
    unwritten,
)


def apart(distance: int, repeat: int = 1, lanes: int = LANES) -> Addresses:
    """Return addresses that are `bytes` apart, each for `repeat` neighbouring lanes."""
    return tuple(lane // repeat * distance if lane < lanes else None for lane in range(LANES))


@pytest.mark.parametrize(
    ("addresses", "size", "access", "expected"),
    [
        (apart(4), 4, Access.LOAD, 1),
        (apart(0), 4, Access.LOAD, 1),  # one word for all
        (apart(8), 4, Access.LOAD, 2),
        (apart(128), 4, Access.LOAD, 32),
        (apart(128, lanes=5), 4, Access.LOAD, 5),
        (apart(2), 2, Access.STORE, 1),
        (apart(8), 8, Access.LOAD, 2),
        (apart(8, repeat=2), 8, Access.LOAD, 1),
        (apart(8, repeat=2), 8, Access.STORE, 2),
        (apart(16), 16, Access.LOAD, 4),
        (apart(16, repeat=2), 16, Access.LOAD, 2),
        (apart(16, repeat=2), 16, Access.STORE, 4),
        (tuple(lane % 2 * 16 + lane // 4 * 32 for lane in range(LANES)), 16, Access.LOAD, 2),
        # The case of the thread that the rule is from: pairs differ, so nothing is served at once.
        (tuple(lane % 4 * 16 for lane in range(LANES)), 16, Access.LOAD, 4),
        (apart(128), 16, Access.LOAD, 32),
        (apart(32), 16, Access.COPY_TO, 8),
        (apart(16), 16, Access.MATRIX, 4),
        (apart(144), 16, Access.MATRIX, 4),
        (apart(128), 16, Access.MATRIX, 32),
        (apart(16, lanes=16), 16, Access.MATRIX, 2),
    ],
)
def test_wavefronts(addresses: Addresses, size: int, access: Access, expected: int) -> None:
    assert wavefronts(addresses, size, access) == expected
    assert least_wavefronts(addresses, size, access) <= expected


def test_the_least_is_as_many_as_the_different_bytes_fill() -> None:
    assert least_wavefronts(apart(128), 4, Access.LOAD) == 1
    assert least_wavefronts(apart(128), 16, Access.STORE) == 4
    assert least_wavefronts(apart(0), 16, Access.LOAD) == 2  # no load of 16 bytes is faster
    assert least_sectors(apart(64), 4, Access.LOAD) == 4


def test_sectors_are_those_touched() -> None:
    assert sectors(apart(4), 4, Access.LOAD) == 4
    assert sectors(apart(32), 4, Access.LOAD) == 32
    assert sectors(apart(0), 4, Access.LOAD) == 1
    assert sectors(apart(16), 16, Access.LOAD) == 16
    assert sectors((24,) + (None,) * 31, 16, Access.LOAD) == 2


def test_a_profile_names_lines_lanes_and_addresses() -> None:
    device = opened(PROFILE)
    x = np.arange(32 * 8, dtype=np.uint16)
    rows = np.arange(32, dtype=np.int32)
    kernel = instantiation("matrices.cu", "load", count=4, trans=False)
    arguments: list[Passed] = [x, rows, unwritten((32, 4), np.uint32), np.int32(0)]
    launch(device, kernel, (1, 1, 1), (32, 1, 1), arguments)
    found = instructions(device.recorded, build.kernel(PROFILE, kernel, KERNELS))
    device.close()
    (matrix,) = (each for each in found if each.access is Access.MATRIX)
    assert matrix.place.startswith("matrices.cu:")
    assert (matrix.executed, matrix.size, matrix.needed) == (1, 16, 4)
    first = matrix.worst[0]
    assert first is not None
    assert matrix.worst == tuple(first + each for each in apart(16) if each is not None)
    (read,) = (each for each in found if each.access is Access.LOAD and each.size == 4)
    assert (read.space, read.worst, read.needed) == ("global", apart(4), 4)
    shown = over_banks(read)
    assert shown[1].endswith("#" + "." * 31)
    assert shown[2].endswith(".#" + "." * 30)
    assert all(line.count("#") == 4 for line in over_banks(matrix)[1:])
