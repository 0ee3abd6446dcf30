"""Loops and paths of made-up machine code."""

from kernels.device.machine_code import Instruction
from kernels.tuning.control_flow import Loop, Weight, loops, path
from tests.support.kernels.machine_code import listed


def test_a_branch_back_is_a_loop_and_one_over_the_end_is_a_return() -> None:
    code = listed("FFMA", "@P0 BRA 0", "@P1 EXIT", "FADD", "BRA 2", "EXIT", "BAR", "BRA 5")
    assert loops(code) == [Loop(0, 1), Loop(2, 4)]


def test_a_path_is_the_way_with_the_most_weight() -> None:
    def fewest(_: Instruction) -> Weight:
        return (-1,)

    def stores_first(instruction: Instruction) -> Weight:
        return (instruction.base == "STG", -1)

    code = listed("@P0 BRA 3", "STG", "FADD", "@P1 BRA 0")
    assert path(code, Loop(0, 3), fewest) == [0, 3]
    assert path(code, Loop(0, 3), stores_first) == [0, 1, 2, 3]


def test_without_a_way_to_the_last_instruction_there_is_no_path() -> None:
    code = listed("FADD", "EXIT", "FADD")
    assert path(code, Loop(0, 2), lambda _: (0,)) == []
