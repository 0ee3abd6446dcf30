"""The machine code says of speed what the committed table says, within 2%."""

import pytest

from kernels.device.machine_code import DisassemblerNotFoundError
from kernels.tuning import profile_table
from tests.support.kernels import profiles, resources


def _compare(arch: str, only: tuple[str, ...] | None) -> None:
    made_with, committed = profile_table.read()
    if made_with != resources.compiler():
        pytest.skip(f"the table is {made_with}'s; this is {resources.compiler()}")
    wanted = profiles.profiled(arch, only)
    try:
        made = profiles.table_of(arch, wanted)
    except DisassemblerNotFoundError as missing:
        pytest.skip(str(missing))
    assert len(made) == (len(only) if only else len(wanted))
    if only is None:
        assert made.keys() == {key for key in committed if key[0] == arch}
    changed = {
        name: found
        for (_, name), row in made.items()
        if (found := profiles.differences(committed[arch, name], row))
    }
    assert not changed, "if this is meant: python -m tests.support.kernels.profiles"


def test_the_main_kernels_have_the_profile_of_the_committed_table() -> None:
    _compare("90a", profiles.MAIN)


@pytest.mark.slow
@pytest.mark.parametrize("arch", profiles.ARCHITECTURES)
def test_every_kernel_has_the_profile_of_the_committed_table(arch: str) -> None:
    _compare(arch, None)


# Clocks of a multiprocessor for an mma.sync of 2048 products: A100's data sheet; 62% of H100's.
_MMA_CLOCKS = {"80": 2.0, "90a": 1.6}


@pytest.mark.parametrize(("arch", "clocks"), _MMA_CLOCKS.items())
def test_the_largest_tile_keeps_tensor_cores_busy(arch: str, clocks: float) -> None:
    """Instructions and shared memory leave 85% of mma.sync's rate; ceilings are of one clock."""
    _, table = profile_table.read()
    largest = [row for key, row in table.items() if key[0] == arch and _is_largest(key[1])]
    assert largest
    for row in largest:
        profile = profile_table.profile_in(row)
        assert profile.ceiling is not None
        assert profile.shared_ceiling is not None
        assert min(profile.ceiling, profile.shared_ceiling) * clocks >= 0.85


def _is_largest(kernel: str) -> bool:
    """Of those that copy 16 bytes at once, which all but odd numbers of channels allow."""
    whole = "FP16, 8, " in kernel or "TF32" in kernel
    return whole and "conv_tensor<" in kernel and ", 128, 128, " in kernel


def test_a_change_of_more_than_two_percent_is_a_difference() -> None:
    row = dict.fromkeys(("share", "ceiling"), "100") | {"loop": "FFMA 512 LDS.128 32"}
    assert profiles.differences(row, row) == []
    assert profiles.differences(row, row | {"share": "98.5"}) == []
    assert profiles.differences(row, row | {"share": "97.5"}) == ["share: 100 -> 97.5"]
    assert profiles.differences(row, row | {"loop": "FFMA 512 LDS.128 33"})
    assert profiles.differences(row, row | {"loop": "FFMA 512"})
    assert profiles.differences(row, row | {"ceiling": "-"})
