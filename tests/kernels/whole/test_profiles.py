"""The machine code says of speed what the committed table says, within 2%."""

import pytest

from kernels.device.machine_code import DisassemblerNotFoundError
from tests.support.kernels import profiles, resources


def _compare(arch: str, only: tuple[str, ...] | None) -> None:
    made_with, committed = profiles.read()
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


def test_the_largest_tile_keeps_tensor_cores_busy() -> None:
    _, table = profiles.read()
    largest = {key: row for key, row in table.items() if "conv_tensor<" in key[1]}
    largest = {key: row for key, row in largest.items() if ", 128, 128, " in key[1]}
    assert {arch for arch, _ in largest} == set(profiles.ARCHITECTURES)
    assert min(float(row["ceiling"]) for row in largest.values()) >= 85


def test_a_change_of_more_than_two_percent_is_a_difference() -> None:
    row = dict.fromkeys(profiles.COLUMNS, "100") | {"loop": "FFMA 512 LDS.128 32"}
    assert profiles.differences(row, row) == []
    assert profiles.differences(row, row | {"share": "98.5"}) == []
    assert profiles.differences(row, row | {"share": "97.5"}) == ["share: 100 -> 97.5"]
    assert profiles.differences(row, row | {"loop": "FFMA 512 LDS.128 33"})
    assert profiles.differences(row, row | {"loop": "FFMA 512"})
    assert profiles.differences(row, row | {"ceiling": "-"})
