"""Counts in machine code: classes of instructions, usual paths, ends, ceilings."""

from collections import Counter
from dataclasses import replace

import pytest

from kernels.convolution.work import NO_INNER_LOOPS, Trips
from kernels.device.machine_code import Instruction
from kernels.tuning.control_flow import Loop, path
from kernels.tuning.static_profile import (
    SCHEDULERS,
    StaticProfile,
    Stretch,
    hot_loop,
    iteration,
    kind,
    profile_of_code,
    resident,
    weight,
)
from tests.support.kernels.machine_code import listed


def usual(code: list[Instruction], last: int) -> list[int]:
    """Return the usual path through a loop that begins with the code."""
    return path(code, Loop(0, last), lambda i: weight(code[i]))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("FFMA", "FFMA"),
        ("HMMA.16816.F32", "tensor"),
        ("HGMMA.64x128x16.F32 R24,gdesc[UR20],R24", "HGMMA.128"),
        ("HGMMA.64x16x16.F32 R24,gdesc[UR20],R24", "HGMMA.16"),
        ("HGMMA.64x32x8.F32.TF32 R24,R60,gdesc[UR16],R24", "HGMMA.R32"),
        ("IGMMA.64x64x32.U8.S8 R24,gdesc[UR20],R24", "IGMMA.64"),
        ("WARPGROUP.ARRIVE", "sync"),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT", "sync"),
        ("UTMALDG.4D.IM2COL", "UTMALDG"),
        ("LDS.128", "LDS.128"),
        ("LDS", "LDS.32"),
        ("LDS.U.64", "LDS.64"),
        ("@!PT LDS", "LDS.none"),
        ("LDGSTS.E.BYPASS.LTC128B.128", "LDGSTS"),
        ("LDGSTS.E.LTC128B", "LDGSTS.narrow"),
        ("IMAD.MOV.U32", "move"),
        ("IMAD", "integer"),
        ("HADD2.F32", "float"),
        ("UIADD3", "uniform"),
        ("BAR.SYNC.DEFER_BLOCKING", "sync"),
        ("STG.E.128", "STG"),
        ("BRA 0", "branch"),
    ],
)
def test_instructions_have_classes(line: str, expected: str) -> None:
    (instruction,) = listed(line)
    assert kind(instruction) == expected


def test_an_opcode_without_a_class_is_an_error() -> None:
    (instruction,) = listed("UTMAPF.L2")
    with pytest.raises(LookupError, match=r"UTMAPF\.L2 has no class"):
        kind(instruction)


def test_the_hot_loop_multiplies_most_and_neither_stores_nor_activates() -> None:
    code = listed(
        *["FFMA", "LDS.128", "FFMA", "@P0 BRA 0"],
        *["FFMA"] * 5,
        *["MUFU.EX2", "@P1 BRA 4"],
        *["FFMA"] * 5,
        *["STG.E", "@P2 BRA 11"],
    )
    assert hot_loop(code) == Loop(0, 3)
    assert hot_loop(listed("FADD", "@P0 BRA 0")) is None


def test_a_loop_of_tensor_cores_that_loads_in_an_unknown_way_is_an_error() -> None:
    with pytest.raises(LookupError, match="does not know the opcodes that load"):
        hot_loop(listed("HGMMA.64x64x16.F32", "BRA 0", "EXIT"))


def test_the_usual_path_copies_16_bytes_at_a_time() -> None:
    wide = listed("@P0 BRA 3", "LDGSTS", "BRA 4", "LDGSTS.128", "FFMA", "@P1 BRA 0")
    assert usual(wide, 5) == [0, 3, 4, 5]
    narrow_skipped = listed("@P0 BRA 2", "LDGSTS", "FFMA", "@P1 BRA 0")
    assert usual(narrow_skipped, 3) == [0, 2, 3]


def test_a_copy_that_a_predicate_chooses_between_is_on_the_usual_path() -> None:
    code = listed("@P2 BRA 3", "@P0 LDGSTS.128", "@!P0 LDGSTS", "FFMA", "@P1 BRA 0")
    assert usual(code, 4) == [0, 1, 2, 3, 4]
    halves = listed("@P0 LDGSTS.64", "@P0 BRA 4", "@P2 LDG.U16", "STS.U16", "HMMA", "@P1 BRA 0")
    assert usual(halves, 5) == [0, 1, 4, 5]


def test_the_usual_path_waits_and_stays_with_the_warp() -> None:
    waits = listed("@P0 BRA 2", "BAR.SYNC", "FFMA", "@P1 BRA 0")
    assert usual(waits, 3) == [0, 1, 2, 3]
    parted = listed("BRA.DIV 3", "FFMA", "@P1 BRA 0", "FFMA", "FFMA", "BRA 1")
    assert usual(parted, 2) == [0, 1, 2]


def test_a_loop_inside_counts_as_often_as_it_is_said_to_run() -> None:
    code = listed("FFMA", "LDGSTS.128", "@P0 BRA 1", "@P1 BRA 0")
    assert iteration(code, Loop(0, 3), {})["LDGSTS"] == 1
    assert iteration(code, Loop(0, 3), {"LDGSTS": 4}) == Counter(FFMA=1, LDGSTS=4, branch=5)
    pairs = listed("FFMA", "STS.64", "@P0 BRA 1", "@P1 BRA 0")
    trips = {"STS": 4, "STS.64": 2}
    assert iteration(pairs, Loop(0, 3), trips) == Counter({"FFMA": 1, "STS.64": 2, "branch": 3})


KERNEL = StaticProfile(
    registers=64, blocks=1, warps=4, code_bytes=0, loop={"FFMA": 80, "integer": 20}
)


def test_the_busiest_scheduler_bounds_the_rate() -> None:
    assert KERNEL.ceiling == pytest.approx(0.8)
    assert replace(KERNEL, warps=8).ceiling == pytest.approx(0.8)
    # Two schedulers have nothing to do, until another block takes them.
    assert replace(KERNEL, warps=2).ceiling == pytest.approx(0.4)
    assert replace(KERNEL, warps=2, blocks=2).ceiling == pytest.approx(0.8)
    # One scheduler has 100 + 150 to issue, where 80 on average multiply.
    data = replace(KERNEL, warps=5, data_warps=1, data_loop={"float": 150})
    assert data.ceiling == pytest.approx(80 / 250)
    assert replace(KERNEL, blocks=0).ceiling is None
    assert replace(KERNEL, loop={}).ceiling is None


def test_an_mma_takes_four_cycles_of_a_scheduler() -> None:
    tensor = replace(KERNEL, loop={"tensor": 16, "integer": 112, "LDSM": 8})
    assert tensor.ceiling == pytest.approx(4 * 16 / 136)
    assert tensor.shared_ceiling == pytest.approx(4 * 16 / (4 * 8 * 4))


def test_a_wgmma_takes_half_a_cycle_of_a_scheduler_for_each_filter() -> None:
    """128 pixels x 128 filters x 64 halves by two warpgroups take 384 cycles of shared memory and
    512 of products."""
    tile = replace(KERNEL, warps=8, blocks=1, loop={"HGMMA.128": 4, "integer": 28})
    assert tile.products == 4
    assert tile.tensor_cycles * 8 / SCHEDULERS == 512
    assert tile.wavefronts == 384
    assert tile.ceiling == pytest.approx(512 / (2 * 32))
    assert tile.shared_ceiling == pytest.approx(512 / 384)
    of_registers = replace(tile, loop={"HGMMA.R128": 4, "integer": 28})
    assert of_registers.tensor_cycles == tile.tensor_cycles
    assert of_registers.wavefronts == 256
    # With filters as rows: 64 of them, and 16 pixels.
    of_filters = replace(tile, warps=4, loop={"HGMMA.16": 4, "integer": 28})
    assert of_filters.tensor_cycles * 4 / SCHEDULERS == 32
    assert of_filters.wavefronts == 4 * (64 + 16) * 32 / 128
    # Where a warp copies whole tiles, shared memory takes as many rows of 128 bytes: 128 + 128.
    copying = replace(tile, warps=9, data_warps=1, data_loop={"UTMALDG": 2, "uniform": 50})
    assert copying.wavefronts == 384 + 256
    assert copying.shared_ceiling == pytest.approx(512 / 640)
    assert replace(copying, loop=of_registers.loop).wavefronts == 256 + 256
    # mma.sync reaches 62% of that rate.
    assert replace(KERNEL, loop={"tensor": 10}).tensor_cycles == pytest.approx(40 / 0.625)


def test_shared_memory_bounds_the_rate_by_128_bytes_a_cycle() -> None:
    loads = replace(KERNEL, loop={"FFMA": 512, "LDS.128": 64, "LDGSTS": 6, "LDS.none": 9})
    assert loads.wavefronts == 4 * (64 * 2 + 6 * 4)
    assert loads.shared_ceiling == pytest.approx(512 / loads.wavefronts)
    conflicts = replace(loads, load_wavefronts=4)
    assert conflicts.wavefronts == 4 * (64 * 4 + 6 * 4)
    of_8_bytes = replace(loads, loop={"FFMA": 512, "LDS.64": 8, "STS.64": 6, "STS": 3})
    assert of_8_bytes.wavefronts == 4 * (8 * 2 + 6 * 2 + 3)
    assert KERNEL.shared_ceiling is None  # it accesses none


def test_a_way_is_counted_from_the_start_to_the_end() -> None:
    code = listed(
        *["S2R", "IMAD", "LDGSTS.128", "BAR"],
        *["FFMA", "LDS.128", "@P0 BRA 4"],
        *["FADD", "@P1 EXIT"],
        *["LDS.128", "@P2 BRA 13", "STG", "BRA 14", "STG.128", "@P3 BRA 9"],
        *["EXIT"],
    )
    profile = profile_of_code(code, 32, 1, 128, NO_INNER_LOOPS)
    assert profile.start.instructions == 3  # with the copy
    assert profile.fill.instructions == 2  # the copy and the barrier
    assert profile.loop == Counter({"FFMA": 1, "LDS.128": 1, "branch": 1})
    # In the loop a load, a branch to the store of 16 bytes, that, and the branch back.
    assert profile.vector == Stretch(instructions=4, stalls=4)
    assert profile.finish.instructions == 3


def test_a_warp_that_copies_tiles_has_a_loop_of_its_own_and_others_start_with_its_first() -> None:
    products = "HGMMA.64x128x16.F32 R24,gdesc[UR20],R24"
    code = listed(
        *["S2R", "@P0 BRA 11", "SYNCS.PHASECHK.TRANS64.TRYWAIT", products, products],
        *["@P4 BRA 7", "SYNCS.ARRIVE.TRANS64", "@P1 BRA 2"],  # all iterations but the last release
        *["LDG.128", "STG.128", "EXIT"],
        *["UMOV", "UTMALDG.2D"],  # the weights of the first chunk
        *["@P2 BRA 16", "SYNCS.PHASECHK.TRANS64.TRYWAIT", "UTMALDG.2D"],  # of others, behind a wait
        *["UTMALDG.2D", "@P3 BRA 13", "EXIT"],
    )
    trips = Trips({}, {}, data_warps=1, products=2)
    profile = profile_of_code(code, 32, 1, 288, trips)
    assert profile.start.instructions == 4  # to the first tile, past a load of 16 bytes
    assert profile.fill.instructions == 3  # to the last tile of the first chunk, without a wait
    assert profile.loop == Counter({"sync": 2, "HGMMA.128": 2, "branch": 2})
    assert profile.data_loop == Counter({"sync": 1, "UTMALDG": 2, "branch": 2})
    assert profile.products == 2


def test_of_several_loops_that_write_the_shortest_with_whole_vectors_is_the_end() -> None:
    code = listed(
        *["LDG.128", "@P0 EXIT", "@P1 BRA 8", "@P2 BRA 14"],
        *["FADD", "STG", "@P3 EXIT", "BRA 4"],
        *["FADD", "FADD", "FADD", "STG.128", "@P3 EXIT", "BRA 8"],
        *["FADD", "STG.128", "@P3 EXIT", "BRA 14"],
    )
    profile = profile_of_code(code, 32, 1, 128, NO_INNER_LOOPS)
    assert profile.vector == Stretch(instructions=4, stalls=4)  # 14 to 17
    assert profile.finish.instructions == 4  # 0 to 3


def test_the_usual_way_may_end_in_a_loop_that_stores_vectors() -> None:
    code = listed(
        *["LDGSTS.128", "FFMA", "LDS.128", "@P0 BRA 1"],
        *["@P1 BRA 10", "LDS.128", "STG.128", "@P2 EXIT", "IADD3", "BRA 5"],
        *["FADD", "FADD", "LDS.128", "FADD", "STG.128", "@P3 BRA 10", "EXIT"],
    )
    profile = profile_of_code(code, 32, 1, 128, NO_INNER_LOOPS)
    assert profile.vector.instructions == 5  # 5 to 9, not the long loop


def test_a_loop_that_is_left_in_its_middle_goes_on_behind_that() -> None:
    code = listed(
        *["LDGSTS.128", "FFMA", "LDS.128", "@P0 BRA 1", "S2R"],
        *["IADD3", "@P1 BRA 10", "LDS.128", "STG.128", "BRA 5", "EXIT"],
    )
    profile = profile_of_code(code, 32, 1, 128, NO_INNER_LOOPS)
    assert profile.vector.instructions == 5  # 5 to 9
    assert profile.finish.instructions == 2  # before the loop, and the end


def test_blocks_fit_by_registers_shared_memory_warps_and_number() -> None:
    assert resident(96, 640, 100 << 10, "90a") == 1  # 20 warps of 96 x 32 in 65536
    assert resident(127, 160, 40 << 10, "90a") == 3
    assert resident(32, 1024, 0, "90a") == 2
    assert resident(32, 32, 0, "90a") == 32
    assert resident(32, 128, 75 << 10, "90a") == 3
