"""The speeds in machine code equal those in the committed table, within 2%."""

import re

import pytest

from kernels.device.compile import compiler
from kernels.device.machine_code import DisassemblerNotFoundError
from kernels.tuning import profile_table, profiles
from kernels.tuning.profile_table import NONE, Row
from kernels.tuning.static_profile import PROFILED
from tests.support.kernels import resources

MAIN = (
    "conv_direct<128, 64, 16, 8, 8, 3, true, Prologue::NONE, Activation::NONE, Finish::CLAMP>",
    "conv_direct<32, 64, 32, 4, 4, 3, false, Prologue::NONE, Activation::NONE, Finish::CLAMP>",
    "conv_winograd<2, 3, 2, Points::INTEGER, 32, 64, 8, 8, 8, 4, 1, Finish::CLAMP>",
    "conv_winograd<4, 3, 2, Points::MIXED, 32, 32, 8, 8, 8, 2, 1, Finish::CLAMP>",
    "conv_coalesced<1, 1, 8, 7, 1, 2, 64, 3, Finish::CLAMP>",
    "conv_coalesced<3, 3, 8, 7, 1, 2, 64, 2, Finish::CLAMP>",
    "linear<float, float, 1, 4, 8, Finish::CLAMP>",
    "conv_tensor<Precision::TF32, true, 4, 64, 64, 32, 16, 64, 4, Finish::CLAMP>",
    "conv_tensor_tma<Precision::FP16, 1, false, 128, 128, 64, 3, Finish::CLAMP>",
    "conv_tensor_tma<Precision::FP16, 2, true, 16, 64, 64, 8, Finish::CLAMP>",
    "conv_tensor_tma<Precision::TF32, 4, false, 64, 32, 32, 6, Finish::CLAMP>",
)
"""The kernels whose rows are compared in every run; longer sweeps compare the others."""


def differences(committed: Row, made: Row, tolerance: float = 0.02) -> list[str]:
    """Return the columns that differ by more than the tolerance, as "ceiling: 81.0 -> 74.2"."""
    found = []
    for column in committed:
        before, after = _numbers(committed[column]), _numbers(made[column])
        if before.keys() != after.keys() or any(
            abs(after[name] - number) > tolerance * number for name, number in before.items()
        ):
            found.append(f"{column}: {committed[column]} -> {made[column]}")
    return found


def _numbers(cell: str) -> dict[str, float]:
    """Return a cell's numbers by the names before them; small counts of a class are added up."""
    words = cell.split()
    if len(words) == 1:
        return {} if cell == NONE else {"": float(cell)}
    return {name: float(count) for name, count in zip(words[::2], words[1::2], strict=True)}


def _compare(arch: str, only: tuple[str, ...] | None) -> None:
    made_with, committed = profile_table.read()
    if made_with != compiler():
        pytest.skip(f"the table is {made_with}'s; this is {compiler()}")
    wanted = [each for each in profiles.profiled(arch) if only is None or each.expression in only]
    try:
        made = profiles.table_of(arch, wanted, resources.CACHE)
    except DisassemblerNotFoundError as missing:
        pytest.skip(str(missing))
    assert len(made) == (len(only) if only else len(wanted))
    if only is None:
        assert made.keys() == {key for key in committed if key[0] == arch}
    changed = {
        name: found
        for (_, name), row in made.items()
        if (found := differences(committed[arch, name], row))
    }
    assert not changed, "if this is meant: python -m kernels.tuning.profiles"


def test_the_main_kernels_have_the_profile_of_the_committed_table() -> None:
    _compare("90a", MAIN)


@pytest.mark.slow
@pytest.mark.parametrize("arch", PROFILED)
def test_every_kernel_has_the_profile_of_the_committed_table(arch: str) -> None:
    _compare(arch, None)


# Clocks of a multiprocessor for an mma.sync of 2048 products: A100's data sheet; 62% of H100's.
_MMA_CLOCKS = {"80": 2.0, "90a": 1.6}


@pytest.mark.parametrize(("arch", "clocks"), _MMA_CLOCKS.items())
def test_the_largest_tile_keeps_tensor_cores_busy(arch: str, clocks: float) -> None:
    """Instructions and shared memory permit at least 85% of mma.sync's rate; ceilings are per
    clock."""
    _, table = profile_table.read()
    largest = [row for key, row in table.items() if key[0] == arch and _is_largest(key[1])]
    assert largest
    for row in largest:
        profile = profile_table.profile_in(row)
        assert profile.ceiling is not None
        assert profile.shared_ceiling is not None
        assert min(profile.ceiling, profile.shared_ceiling) * clocks >= 0.85


def test_the_largest_tile_of_warpgroups_leaves_more_than_mma_sync_reaches() -> None:
    """Shared memory, which wgmma reads directly, permits at least 70% of the peak."""
    _, table = profile_table.read()
    name = "conv_tensor<Precision::FP16, true, 8, 128, 128, "
    (row,) = (row for key, row in table.items() if name in key[1])
    profile = profile_table.profile_in(row)
    assert profile.ceiling is not None
    assert profile.shared_ceiling is not None
    assert min(profile.ceiling, profile.shared_ceiling) >= 0.7


def _is_largest(kernel: str) -> bool:
    """Return whether a kernel copies 16 bytes at once, as all do except for odd numbers of
    channels."""
    whole = "FP16, false, 8, " in kernel or "TF32" in kernel
    return whole and "conv_tensor<" in kernel and ", 128, 128, " in kernel


def test_a_change_of_more_than_two_percent_is_a_difference() -> None:
    row = dict.fromkeys(("share", "ceiling"), "100") | {"loop": "FFMA 512 LDS.128 32"}
    assert differences(row, row) == []
    assert differences(row, row | {"share": "98.5"}) == []
    assert differences(row, row | {"share": "97.5"}) == ["share: 100 -> 97.5"]
    assert differences(row, row | {"loop": "FFMA 512 LDS.128 33"})
    assert differences(row, row | {"loop": "FFMA 512"})
    assert differences(row, row | {"ceiling": "-"})


def test_every_product_of_warpgroups_is_seen_to_write_its_outputs() -> None:
    """If the path to a kernel's end omitted the loop that writes, the outputs would seem to cost
    nothing."""
    _, table = profile_table.read()
    rows = [
        row
        for (_, name), row in table.items()
        if re.search(r" conv_tensor<Precision::\w+, true, ", name)
    ]
    assert rows
    assert all(row["vector"] != NONE for row in rows)
