"""The candidates to measure, and conclusions from measurements, without a device."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.convolution import algorithms
from kernels.convolution.algorithms import ConvChoice, choices
from kernels.device.compile import source_digest
from kernels.device.device import Trigger
from kernels.device.gpus import H200
from kernels.problems.activation import RELU
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.problems.prologue import Prologue
from kernels.tuning.heuristic import Facts, choose, estimated_cycles, heuristic
from kernels.tuning.search import (
    by_name,
    finalists,
    finder,
    keys,
    measured_launches,
    ranking,
    shortlist,
    tuned,
)
from kernels.tuning.store import Conditions, Key, Outcome, Times
from kernels.tuning.timing import Timing
from tests.support.kernels.tuning_fakes import DIRECT, TILE, BrokenConv
from tests.support.kernels.windows import conv_problem, window

HERE = Conditions("NVIDIA H200", "90a", "CUDA 13.0", "NVRTC 13.0")
_3x3 = conv_problem(1, 64, 64, window((28, 28), (3, 3), pads=(1,) * 4))
_1x1 = conv_problem(1, 256, 64, window((28, 28), (1, 1)))
_DEPTHWISE = conv_problem(1, 64, 64, _3x3.window, 64)
_3D = conv_problem(1, 64, 64, window((4, 14, 14), (3, 3, 3), pads=(1,) * 6))
_NORMALISED = replace(_1x1, prologue=Prologue(1e-6))
LAYERS = (_3x3, _1x1, _DEPTHWISE, _3D, _NORMALISED)


def timed(warm: float, cold: float) -> Outcome:
    return Outcome(warm, Times(Timing(warm, warm, warm), Timing(cold, cold, cold)))


@pytest.mark.parametrize("problem", LAYERS, ids=str)
@pytest.mark.parametrize("n", [1, 8])
def test_candidates_are_told_apart_by_what_is_printed(problem: ConvProblem, n: int) -> None:
    every = choices(problem.with_batch(n))
    assert len(by_name(every)) == len(every)


@st.composite
def alike(draw: st.DrawFn) -> ConvProblem:
    """Problems of which any two have many properties in common."""

    def some(*sizes: int) -> tuple[int, ...]:
        return tuple(draw(st.permutations(sizes)))

    n, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    size, kernel = some(7, 8), some(1, 3)
    strides, dilations, pads = some(1, 2), some(1, 2), some(0, 0, 0, 1)
    seen = window(size, kernel, strides=strides, dilations=dilations, pads=pads)
    c, k = some(2, 4)
    prologue = draw(st.sampled_from((None, Prologue(), Prologue(1e-6), Prologue(1e-6, RELU))))
    return replace(conv_problem(n, c, k, seen, groups), prologue=prologue)


@settings(max_examples=300)
@given(alike(), alike())
def test_problems_are_told_apart_by_what_is_printed(one: ConvProblem, other: ConvProblem) -> None:
    assert (str(one) == str(other)) == (one == other)


def test_a_convolution_is_measured_without_its_prologue_under_a_key_of_its_own() -> None:
    for choice in choices(_NORMALISED):
        assert measured_launches(_NORMALISED, choice) == measured_launches(_1x1, choice)
    assert keys(HERE)(_NORMALISED) != keys(HERE)(_1x1)


@pytest.mark.parametrize("problem", LAYERS, ids=str)
def test_the_shortlist_has_the_cheapest_and_some_of_each_algorithm(problem: ConvProblem) -> None:
    every = choices(problem, H200.max_shared_bytes)
    names = {choice.algorithm.name for choice in every}
    short = shortlist(problem, H200, 8)
    assert choose(problem, every, H200) in short.values()
    assert 8 <= len(short) <= 8 + 2 * (len(names) - 1) or len(every) < 8
    for name in names:
        of_it = [choice for choice in every if choice.algorithm.name == name]
        kept = [choice for choice in short.values() if choice.algorithm.name == name]
        assert len(kept) >= min(2, len(of_it))
        assert choose(problem, of_it, H200) in kept
    assert len(shortlist(problem, H200)) == len(every)
    known = max(every, key=lambda choice: estimated_cycles(problem, choice, H200))
    also = shortlist(problem, H200, 8, [str(known), "one that there was before"])
    assert also.keys() == short.keys() | {str(known)}
    assert list(also) == [name for name in shortlist(problem, H200) if name in also]


def test_what_a_device_has_no_shared_memory_for_is_no_candidate() -> None:
    small = Facts(multiprocessors=132, max_shared_bytes=20 << 10)
    few = shortlist(_3x3, small)
    assert few.keys() == by_name(choices(_3x3, small.max_shared_bytes)).keys()
    assert few.keys() < shortlist(_3x3, H200).keys()


def test_finalists_are_the_fastest_and_the_fastest_of_each_algorithm() -> None:
    direct = [ConvChoice(DIRECT, config) for config in DIRECT.configs(_3x3)[:5]]
    other = ConvChoice(BrokenConv(), TILE)
    a, b, c, d, e = map(str, direct)
    candidates = by_name([*direct, other])
    outcomes = {
        a: Outcome(30.0),
        b: Outcome(10.0),
        c: Outcome(20.0),
        d: Outcome(1.0, failure="wrong"),
        str(other): Outcome(99.0),
        "one that there was before": Outcome(1.0),
    }
    assert finalists(candidates, outcomes, 2) == [b, c, str(other)]
    assert finalists(candidates, outcomes, 9) == [b, c, a, str(other)]
    assert finalists(candidates, {e: Outcome(failure="wrong")}, 2) == []


def test_the_winner_is_the_fastest_of_those_that_were_timed() -> None:
    outcomes = {
        "screened": Outcome(1.0),
        "wrong": replace(timed(1.0, 1.0), failure="wrong"),
        "fast when warm": timed(10.0, 30.0),
        "steady": timed(18.0, 18.5),
    }
    ranked = [(name, times.us) for name, times in ranking(outcomes)]
    assert ranked == [("steady", 18.25), ("fast when warm", 20.0)]


def test_what_was_measured_is_found_where_everything_is_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = keys(HERE)(_3x3)
    winner, loser = (str(choice) for choice in choices(_3x3)[3:5])
    outcomes = {loser: timed(3.0, 3.0), winner: timed(1.0, 2.0)}
    find = finder({key: outcomes}, HERE)
    assert str(find(_3x3)) == winner
    assert find(_3x3.with_batch(2)) is None
    assert find(_1x1) is None
    halves = replace(_3x3, precision=Precision.FP16)
    assert keys(HERE)(halves).precision == "fp16" != key.precision
    driver = Conditions(HERE.device, HERE.architecture, "CUDA 13.1", HERE.compiler)
    assert finder({key: outcomes}, driver)(_3x3) is None
    assert finder({Key(HERE, "fp32", "another", key.problem): outcomes}, HERE)(_3x3) is None
    assert finder({key: {"one that was": timed(0.0, 0.0), **outcomes}}, HERE)(_3x3) is None
    assert finder({key: {loser: Outcome(3.0)}}, HERE)(_3x3) is None


def test_the_winner_has_the_trigger_that_was_measured() -> None:
    winner = choices(_3x3)[3]
    launches = {each.instantiation.trigger for each in measured_launches(_3x3, winner)}
    assert launches == {Trigger.START}
    for trigger in Trigger:
        outcome = replace(timed(1.0, 1.0), trigger=trigger)
        found = finder({keys(HERE)(_3x3): {str(winner): outcome}}, HERE)(_3x3)
        assert found == winner._replace(trigger=trigger)
        launches = {each.instantiation.trigger for each in measured_launches(_3x3, found)}
        assert launches == {trigger}


def test_where_nothing_is_found_the_fallback_chooses() -> None:
    winner = choices(_3x3)[3]
    find = finder({keys(HERE)(_3x3): {str(winner): timed(1.0, 1.0)}}, HERE)
    choose_ = tuned(find, heuristic(H200))
    assert choose_(_3x3) == winner
    assert choose_(_1x1) == heuristic(H200)(_1x1)


def test_a_key_changes_with_a_new_algorithm_of_other_sources_for_the_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = keys(HERE)(_3x3)
    monkeypatch.setattr(algorithms, "ALGORITHMS", (DIRECT,))
    without = keys(HERE)(_3x3), keys(HERE)(_1x1)
    assert without[0] != before
    assert without[0].sources == without[1].sources
    monkeypatch.setattr(algorithms, "ALGORITHMS", (DIRECT, BrokenConv()))
    assert keys(HERE)(_3x3) == without[0]  # of the same sources


def test_a_digest_is_of_all_that_is_included(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text('#include "b.cuh"\n')
    (tmp_path / "b.cuh").write_text('#include "c.cuh"\n')
    (tmp_path / "c.cuh").write_text("int x;\n")
    (tmp_path / "d.cu").write_text("int y;\n")
    before = source_digest(["a.cu"], tmp_path)
    assert source_digest(["a.cu", "d.cu"], tmp_path) != before
    (tmp_path / "d.cu").write_text("int z;\n")
    assert source_digest(["a.cu"], tmp_path) == before
    (tmp_path / "c.cuh").write_text("int z;\n")
    assert source_digest(["a.cu"], tmp_path) != before
