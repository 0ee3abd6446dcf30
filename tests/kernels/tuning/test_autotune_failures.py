"""Failures while measuring: wrong candidates, interruptions, a missing compiler."""

import logging
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cusim.device import CusimDevice
from kernels.convolution import algorithms
from kernels.convolution.algorithms import ConvChoice
from kernels.device.device import FaultError, OutOfMemoryError
from kernels.device.nvrtc import CompilerNotFoundError
from kernels.tuning.autotune import Search, autotune
from kernels.tuning.search import conditions_of, finder, ranking, shortlist
from kernels.tuning.store import Outcome, Outcomes, TuningStore
from tests.support.kernels import tuning_fakes
from tests.support.kernels.tuning_fakes import (
    FEW,
    LAYER,
    PROBLEMS,
    SEARCH,
    BrokenConv,
    Clock,
    by_length,
    clock,
    silent,
)

pytestmark = pytest.mark.usefixtures("few_algorithms")

BROKEN: dict[type, str] = {
    tuning_fakes.TurnsFilter: "WrongResultError: .* of image 0 are wrong; the first",
    tuning_fakes.ForgetsBias: "WrongResultError: .* of image 0 are wrong; the first",
    tuning_fakes.ForgetsLastBlock: "WrongResultError: .* the first, .* is nan instead of",
    tuning_fakes.LeavesCounters: (
        "WrongResultError: the launch did not reset its counters to zero"
    ),
    tuning_fakes.RefusesToLaunch: "LaunchError: cannot launch conv_direct.*2048",
    tuning_fakes.DoesNotCompile: "CompileError: conv_indirect of implicit_gemm.cu does not compile",
    tuning_fakes.TooLarge: "ValueError: 4294967296 is beyond 32 bits",
}


@pytest.fixture
def broken(
    few_algorithms: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> ConvChoice:
    """An additional algorithm and its configuration."""
    algorithm: BrokenConv = request.param()
    monkeypatch.setattr(algorithms, "ALGORITHMS", (*FEW, algorithm))
    return ConvChoice(algorithm, tuning_fakes.TILE)


@pytest.mark.parametrize("broken", BROKEN, indirect=True)
def test_a_candidate_that_is_wrong_is_never_timed_nor_chosen_and_is_reported(
    device: CusimDevice, store: TuningStore, broken: ConvChoice, caplog: pytest.LogCaptureFixture
) -> None:
    problem = LAYER.with_batch(3)
    candidates = shortlist(problem, device, SEARCH.top)
    right = [choice for name, choice in candidates.items() if name != str(broken)]
    clock_ = Clock.of({problem: right}, by_length)
    with caplog.at_level(logging.ERROR):
        (outcomes,) = autotune(
            device, [problem], store, SEARCH, progress=silent, timer=clock_
        ).values()
    failure = outcomes[str(broken)].failure
    assert failure is not None
    assert re.match(BROKEN[type(broken.algorithm)], failure), failure
    assert f"{broken} is not used for {problem}: {failure}" in caplog.text
    assert str(broken) in candidates
    assert clock_.asked  # nor does the clock know the broken one
    assert str(finder(store.read(), conditions_of(device))(problem)).startswith("direct")
    (stored,) = store.read().values()
    assert stored[str(broken)] == Outcome(failure=failure)


@pytest.mark.parametrize("broken", [tuning_fakes.LeavesCounters], indirect=True)
def test_counters_that_one_leaves_are_not_those_that_others_find(
    device: CusimDevice, store: TuningStore, broken: ConvChoice
) -> None:
    def us(name: str, cold: bool) -> float:
        return 10.0 if "/2" in name else 20.0  # split, and so with counters

    search = Search(None, 1)
    *_, last = shortlist(LAYER, device)
    assert last == str(broken)
    clock_ = clock(device, us, search)  # looks at the counters
    (outcomes,) = autotune(device, [LAYER], store, search, progress=silent, timer=clock_).values()
    assert outcomes[str(broken)].failure is not None
    assert all("/2" in name for name, _ in ranking(outcomes))


@pytest.mark.parametrize("broken", [tuning_fakes.WritesElsewhere], indirect=True)
def test_a_candidate_that_takes_the_device_with_it_is_left_out_the_next_time(
    store: TuningStore, broken: ConvChoice
) -> None:
    lost, fresh = CusimDevice(), CusimDevice()
    candidates = {LAYER: list(shortlist(LAYER, lost).values())}
    first, second = Clock.of(candidates, by_length), Clock.of(candidates, by_length)

    with pytest.raises(FaultError) as caught:
        autotune(lost, [LAYER], store, SEARCH, progress=silent, timer=first)
    before = caught.value.__context__
    while before is not None:
        assert not isinstance(before, FaultError)  # nothing more was asked of the lost device
        before = before.__context__
    (outcomes,) = store.read().values()
    assert outcomes.keys() == {name for _, name, _ in first.asked} | {str(broken)}
    assert outcomes[str(broken)].failure == f"FaultError: {caught.value}"

    autotune(fresh, [LAYER], store, SEARCH, progress=silent, timer=second)
    assert str(finder(store.read(), conditions_of(fresh))(LAYER)).startswith("direct")
    assert len(first.asked) == 4  # screened,
    assert len(second.asked) == 4  # and not again: two finalists, warm and cold
    lost.close()
    fresh.close()


@pytest.mark.parametrize("broken", [tuning_fakes.TakesAllMemory], indirect=True)
def test_what_finds_no_room_now_is_left_out_but_not_for_good(
    device: CusimDevice, store: TuningStore, broken: ConvChoice, caplog: pytest.LogCaptureFixture
) -> None:
    clock_ = Clock.of({LAYER: list(shortlist(LAYER, device).values())}, by_length)
    (outcomes,) = autotune(device, [LAYER], store, SEARCH, progress=silent, timer=clock_).values()
    assert str(broken) not in outcomes
    assert f"{broken} is not measured on {LAYER}: out of device memory" in caplog.text
    assert len(ranking(outcomes)) == 2


def test_a_finalist_that_finds_no_room_makes_room_for_the_next(
    device: CusimDevice, store: TuningStore
) -> None:
    first, second, *_ = sorted(
        shortlist(LAYER, device, SEARCH.top), key=lambda name: by_length(name, False)
    )

    def us(name: str, cold: bool) -> float:
        if name == first and cold:
            raise OutOfMemoryError(1, 0)
        return by_length(name, cold)

    (outcomes,) = autotune(
        device, [LAYER], store, Search(4, 1), progress=silent, timer=clock(device, us)
    ).values()
    assert [name for name, _ in ranking(outcomes)] == [second]


@pytest.mark.parametrize("after", [1, 4, 7])
def test_one_that_is_interrupted_goes_on_where_it_was(
    device: CusimDevice, store: TuningStore, after: int
) -> None:
    whole, other = clock(device), TuningStore(store.path.with_name("whole.json"))
    autotune(device, PROBLEMS, other, SEARCH, progress=silent, timer=whole)

    def us(name: str, cold: bool) -> float:
        if len(first.asked) > after:
            raise KeyboardInterrupt
        return by_length(name, cold)

    first, second = clock(device, us), clock(device)
    with pytest.raises(KeyboardInterrupt):
        autotune(device, PROBLEMS, store, SEARCH, progress=silent, timer=first)
    autotune(device, PROBLEMS, store, SEARCH, progress=silent, timer=second)
    assert store.read() == other.read()
    # Nothing is done twice but for what was cut short, perhaps between warm and cold.
    *done, _ = first.asked
    assert len(done) + len(second.asked) - len(whole.asked) in (0, 1)


def _timed(outcomes: Outcomes) -> Iterator[tuple[str, Outcome]]:
    """Return the known outcomes of candidates before the first is timed in a chain of launches."""
    for name, outcome in outcomes.items():
        yield name, replace(outcome, trigger=None)


_KILLED = """
import sys, time
from pathlib import Path
from kernels.tuning.autotune import autotune
from kernels.tuning.store import TuningStore
from cusim.device import CusimDevice
from kernels.convolution import algorithms
from tests.support.kernels.tuning_fakes import FEW, PROBLEMS, SEARCH, by_length, clock, silent

def us(name, cold):
    time.sleep(0.02)
    print(name, flush=True)
    return by_length(name, cold)

algorithms.ALGORITHMS = FEW
device = CusimDevice()
store = TuningStore(Path(sys.argv[1]))
autotune(device, PROBLEMS, store, SEARCH, progress=silent, timer=clock(device, us))
"""


def test_one_that_is_killed_has_lost_no_problem_that_was_done(
    device: CusimDevice, store: TuningStore
) -> None:
    whole, other = clock(device), TuningStore(store.path.with_name("whole.json"))
    autotune(device, PROBLEMS, other, SEARCH, progress=silent, timer=whole)
    of_first = sum(problem == str(LAYER) for problem, _, _ in whole.asked)
    killed = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(store.path)], stdout=subprocess.PIPE, text=True
    )
    assert killed.stdout is not None
    for _ in range(of_first + 2):
        assert killed.stdout.readline()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL

    kept = store.read()
    assert {key.problem for key in kept} >= {str(LAYER)}
    assert kept.items() <= {key: dict(_timed(each)) for key, each in other.read().items()}.items()
    again = clock(device)
    autotune(device, PROBLEMS, store, SEARCH, progress=silent, timer=again)
    assert str(LAYER) not in {problem for problem, _, _ in again.asked}
    assert store.read() == other.read()


def test_progress_is_told_kernel_by_kernel_and_problem_by_problem(
    device: CusimDevice, store: TuningStore
) -> None:
    heard: list[tuple[str, int, int]] = []
    autotune(
        device,
        PROBLEMS,
        store,
        SEARCH,
        progress=lambda *told: heard.append(told),
        timer=clock(device),
    )
    for how in ("", " in a row"):
        count = heard[0][2]
        compiled, heard = heard[:count], heard[count:]
        assert compiled == [("compiling kernels", done, count) for done in range(count)]
        measured, heard = heard[: len(PROBLEMS)], heard[len(PROBLEMS) :]
        expected = ((f"measuring {problem}{how}", done, 3) for done, problem in enumerate(PROBLEMS))
        assert measured == list(expected)
    assert heard == [("measured", 3, 3)]


def test_without_a_compiler_nothing_is_held_against_the_candidates(
    device: CusimDevice, store: TuningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiling(*_: object) -> Path:
        raise CompilerNotFoundError("NVRTC was not found")

    monkeypatch.setattr("cusim.build.kernel", compiling)
    heard: list[str] = []
    with pytest.raises(CompilerNotFoundError):
        autotune(
            device,
            PROBLEMS,
            store,
            SEARCH,
            progress=lambda what, done, total: heard.append(what),
            timer=clock(device),
        )
    assert heard == []  # nothing was compiled, nor measured
    assert store.read() == {}


def test_the_devices_memory_is_given_back(device: CusimDevice, store: TuningStore) -> None:
    before = device.memory().free
    autotune(device, PROBLEMS, store, SEARCH, progress=silent, timer=clock(device))

    def us(name: str, cold: bool) -> float:
        raise KeyboardInterrupt

    anew = Search(4, 2, anew=True)
    with pytest.raises(KeyboardInterrupt):
        autotune(device, PROBLEMS, store, anew, progress=silent, timer=clock(device, us))
    assert device.memory().free == before
