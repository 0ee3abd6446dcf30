"""Loops and paths of made-up machine code."""

from kernels.tuning.control_flow import Loop, leading_to, loops, path
from tests.support.kernels.machine_code import listed


def test_a_branch_back_is_a_loop_and_one_over_the_end_is_a_return() -> None:
    code = listed("FFMA", "@P0 BRA 0", "@P1 EXIT", "FADD", "BRA 2", "EXIT", "BAR", "BRA 5")
    assert loops(code) == [Loop(0, 1), Loop(2, 4)]


def test_a_return_from_code_out_of_line_is_no_loop() -> None:
    code = listed("@P0 BRA 5", "FADD", "STG", "@P1 EXIT", "BRA 2", "FADD", "BRA 1")
    assert loops(code) == [Loop(2, 4)]


def test_a_path_is_the_way_with_the_most_weight() -> None:
    code = listed("@P0 BRA 3", "STG", "FADD", "@P1 BRA 0")
    assert path(code, Loop(0, 3), lambda _: (-1,)) == [0, 3]
    assert path(code, Loop(0, 3), lambda i: (code[i].base == "STG", -1)) == [0, 1, 2, 3]


def test_a_way_that_leaves_may_end_at_an_exit_inside_a_loop() -> None:
    code = listed("STG", "@P0 EXIT", "@P1 BRA 0", "FADD", "EXIT")
    assert path(code, Loop(0, 4), lambda _: (-1,), leaving=True) == [0, 1]
    assert path(code, Loop(0, 4), lambda _: (-1,)) == [0, 1, 2, 3, 4]


def test_what_leads_to_an_instruction_is_every_way_ahead_to_it() -> None:
    code = listed("@P0 BRA 3", "ATOMG", "FADD", "STG", "EXIT")
    assert leading_to(code, Loop(0, 4), lambda each: each.base == "ATOMG") == {0, 1}


def test_without_a_way_to_the_last_instruction_there_is_no_path() -> None:
    code = listed("FADD", "EXIT", "FADD")
    assert path(code, Loop(0, 2), lambda _: (0,)) == []
