"""What is counted in machine code: classes, loops, usual paths, ceilings."""

from collections import Counter

import pytest

from kernels.device.machine_code import Instruction
from kernels.tuning.static_profile import (
    Loop,
    ceiling,
    hot_loop,
    kind,
    loops,
    resident,
    tensor_ceiling,
    turn,
    usual_path,
)


def listed(*lines: str) -> list[Instruction]:
    """Instructions from lines as "@P0 BRA 3": a predicate if any, an opcode, a target if any."""
    code = []
    for line in lines:
        words = line.split()
        predicate = words.pop(0) if words[0].startswith("@") else ""
        target = int(words[1]) if len(words) > 1 else None
        code.append(Instruction(words[0], "", predicate, target, 1, waits=False))
    return code


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("FFMA", "FFMA"),
        ("HMMA.16816.F32", "tensor"),
        ("LDS.128", "LDS.128"),
        ("LDS", "LDS.32"),
        ("LDS.U.64", "LDS.64"),
        ("@!PT LDS", "LDS.none"),
        ("LDGSTS.E.BYPASS.LTC128B.128", "LDGSTS"),
        ("LDGSTS.E.LTC128B", "LDGSTS.narrow"),
        ("IMAD.MOV.U32", "move"),
        ("IMAD", "integer"),
        ("UIADD3", "uniform"),
        ("BAR.SYNC.DEFER_BLOCKING", "sync"),
        ("STG.E.128", "STG"),
        ("BRA 0", "branch"),
    ],
)
def test_instructions_have_classes(line: str, expected: str) -> None:
    (instruction,) = listed(line)
    assert kind(instruction) == expected


def test_a_branch_back_is_a_loop_and_one_over_the_end_is_a_return() -> None:
    code = listed("FFMA", "@P0 BRA 0", "@P1 EXIT", "FADD", "BRA 2", "EXIT", "BAR", "BRA 5")
    assert loops(code) == [Loop(0, 1), Loop(2, 4)]


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


def test_the_usual_path_copies_16_bytes_at_a_time() -> None:
    wide = listed("@P0 BRA 3", "LDGSTS", "BRA 4", "LDGSTS.128", "FFMA", "@P1 BRA 0")
    assert usual_path(wide, Loop(0, 5)) == [0, 3, 4, 5]
    halves = listed("@P0 BRA 4", "LDG.E.U16", "STS.U16", "BRA 5", "LDGSTS.128", "@P1 BRA 0")
    assert usual_path(halves, Loop(0, 5)) == [0, 4, 5]
    # Where both are written out, under opposite predicates, the copy is not left out.
    together = listed("@P0 BRA 3", "@P1 LDGSTS.128", "@!P1 LDGSTS", "FFMA", "@P2 BRA 0")
    assert usual_path(together, Loop(0, 4)) == [0, 1, 2, 3, 4]
    narrow_skipped = listed("@P0 BRA 2", "LDGSTS", "FFMA", "@P1 BRA 0")
    assert usual_path(narrow_skipped, Loop(0, 3)) == [0, 2, 3]


def test_the_usual_path_waits_and_stays_with_the_warp() -> None:
    waits = listed("@P0 BRA 2", "BAR.SYNC", "FFMA", "@P1 BRA 0")
    assert usual_path(waits, Loop(0, 3)) == [0, 1, 2, 3]
    parted = listed("BRA.DIV 3", "FFMA", "@P1 BRA 0", "FFMA", "FFMA", "BRA 1")
    assert usual_path(parted, Loop(0, 2)) == [0, 1, 2]


def test_a_loop_inside_counts_as_often_as_it_is_said_to_run() -> None:
    code = listed("FFMA", "LDGSTS.128", "@P0 BRA 1", "@P1 BRA 0")
    assert turn(code, Loop(0, 3), {})["LDGSTS"] == 1
    assert turn(code, Loop(0, 3), {"LDGSTS": 4}) == Counter(FFMA=1, LDGSTS=4, branch=5)


def test_the_busiest_scheduler_bounds_the_rate() -> None:
    multiply, data = Counter(FFMA=80, integer=20), Counter(float=150)
    assert ceiling([multiply] * 4, []) == pytest.approx(0.8)
    assert ceiling([multiply] * 8, []) == pytest.approx(0.8)
    assert ceiling([multiply] * 2, []) == pytest.approx(0.4)  # two schedulers have nothing to do
    # One scheduler has 100 + 150 to issue, where 80 on average multiply.
    assert ceiling([multiply] * 4, [data]) == pytest.approx(80 / 250)


def test_tensor_cores_wait_for_what_feeds_them() -> None:
    few = Counter(tensor=64, LDSM=16, LDGSTS=8, integer=100)
    assert tensor_ceiling(few, 2.0) == 1.0
    # 24 loads and 8 copies of 4 wavefronts; 128 of 2 clocks would be hidden.
    loads = Counter(tensor=64, LDSM=24, LDGSTS=8)
    assert tensor_ceiling(loads, 1.6) == pytest.approx(64 * 1.6 / 128)
    issued = Counter(tensor=64, integer=4 * 128 - 64)
    assert tensor_ceiling(issued, 1.6) == pytest.approx(64 * 1.6 / 128)


def test_blocks_fit_by_registers_shared_memory_warps_and_number() -> None:
    room = 228 << 10
    assert resident(96, 640, 100 << 10, room) == 1  # 20 warps of 96 x 32 in 65536
    assert resident(127, 160, 40 << 10, room) == 3
    assert resident(32, 1024, 0, room) == 2
    assert resident(32, 32, 0, room) == 32
    assert resident(32, 128, 75 << 10, room) == 3
