"""Measuring on the simulator: candidates are checked, timed, stored, reported and resumed."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cusim.device import CusimDevice
from kernels.convolution import algorithms
from kernels.convolution.algorithms import ALGORITHMS, Algorithm
from kernels.convolution.gemm import GemmConv
from kernels.convolution.tensor_gemm import TensorConv
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import Instantiation, Kernel, Trigger
from kernels.problems.conv import ConvProblem, Projection
from kernels.problems.precision import Precision
from kernels.problems.prologue import Prologue
from kernels.tuning.autotune import Search, autotune
from kernels.tuning.search import conditions_of, finder, instantiations, ranking, shortlist
from kernels.tuning.store import TuningStore
from tests.support.kernels.tuning_fakes import (
    GROUPED,
    IN_3D,
    LAYER,
    POINTWISE,
    PROBLEMS,
    SEARCH,
    WIDE,
    by_length,
    clock,
    silent,
)
from tests.support.kernels.windows import conv_problem, window

pytestmark = pytest.mark.usefixtures("few_algorithms")


def test_candidates_are_screened_finalists_timed_and_the_best_is_found(
    device: CusimDevice, store: TuningStore
) -> None:
    clock_ = clock(device)
    known = autotune(device, PROBLEMS, store, SEARCH, progress=silent, timer=clock_)
    find = finder(store.read(), conditions_of(device))
    for problem in PROBLEMS:
        candidates = shortlist(problem, device, SEARCH.top)
        expected = min(candidates, key=lambda name: by_length(name, False))
        assert str(find(problem)) == expected
        name, times = ranking(known[problem])[0]
        assert (name, times.us) == (expected, by_length(expected, False) + 2.5)
        assert known[problem].keys() == candidates.keys()
        timed = [name for name, outcome in known[problem].items() if outcome.times is not None]
        assert 2 <= len(timed) < len(candidates) or len(candidates) <= 3
        asked = [(name, cold) for where, name, cold in clock_.asked if where == str(problem)]
        assert sorted(asked) == sorted(
            [(name, False) for name in candidates]
            + [(name, cold) for name in timed for cold in (False, True)]
        )


@pytest.mark.parametrize("fastest", Trigger)
def test_the_winners_trigger_is_measured_once_where_launches_overlap(
    device: CusimDevice, store: TuningStore, fastest: Trigger
) -> None:
    clock_ = clock(device)
    clock_.trigger_us = {trigger: 5.0 if trigger is fastest else 9.0 for trigger in Trigger}
    for _ in range(2):
        autotune(device, PROBLEMS, store, SEARCH, progress=silent, timer=clock_)
    find = finder(store.read(), conditions_of(device))
    for problem in PROBLEMS:
        found = find(problem)
        assert found is not None
        assert found.trigger is fastest
        asked = [trigger for where, *_, trigger in clock_.triggers if where == str(problem)]
        assert asked == [trigger for trigger in Trigger for _ in ("warm", "cold")]


def test_the_winners_other_triggers_are_compiled_at_once_once_all_winners_are_known(
    device: CusimDevice, store: TuningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_ = clock(device)
    asked: list[tuple[set[Instantiation], int, int]] = []
    compiling, load = device.compile, device.load
    loaded: set[Instantiation] = set()

    def compile_(kernels: Collection[Instantiation], threads: int) -> Iterator[Instantiation]:
        asked.append((set(kernels), len(clock_.asked), len(clock_.triggers)))
        assert threads == 2
        return compiling(kernels, threads)

    def load_(instantiation: Instantiation) -> Kernel:
        loaded.add(instantiation)
        return load(instantiation)

    monkeypatch.setattr(device, "compile", compile_)
    monkeypatch.setattr(device, "load", load_)
    known = autotune(device, PROBLEMS, store, SEARCH, progress=silent, timer=clock_, threads=2)
    (first, *when), (second, *later) = asked
    assert when == [0, 0]
    assert later == [len(clock_.asked), 0]
    assert {kernel.trigger for kernel in first} == {Trigger.START}
    winners = {
        kernel
        for problem, outcomes in known.items()
        for kernel in instantiations(
            problem, shortlist(problem, device, SEARCH.top)[ranking(outcomes)[0][0]]
        )
    }
    assert second == {replace(kernel, trigger=trigger) for kernel in winners for trigger in Trigger}
    assert loaded <= first


def test_no_trigger_is_measured_where_launches_do_not_overlap(
    device: CusimDevice, store: TuningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "overlaps", False, raising=False)
    clock_ = clock(device)
    known = autotune(device, PROBLEMS, store, SEARCH, progress=silent, timer=clock_)
    assert clock_.triggers == []
    assert {each.trigger for outcomes in known.values() for each in outcomes.values()} == {None}


def test_a_real_clock_times_real_launches(device: CusimDevice, store: TuningStore) -> None:
    search = Search(top=1, finalists=1)
    (outcomes,) = autotune(device, [LAYER], store, search, progress=silent).values()
    (outcome,) = outcomes.values()
    assert outcome.times is not None
    for timing in (outcome.times.warm, outcome.times.cold):
        assert 0 < timing.p20_us <= timing.p50_us <= timing.p80_us
    assert store.read() != {}


@pytest.mark.gpu
def test_a_gpu_measures_layers_of_a_network(
    cuda_device: CudaDevice, store: TuningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithms, "ALGORITHMS", ALGORITHMS)
    seen = window((28, 28), (3, 3), pads=(1,) * 4)
    layers = [conv_problem(n, 128, 128, seen) for n in (1, 8)]
    layers += [
        conv_problem(1, 512, 128, window((28, 28), (1, 1))),
        conv_problem(2, 64, 64, seen, 64),
    ]
    known = autotune(cuda_device, layers, store, Search(), progress=silent)
    for outcomes in known.values():
        assert {outcome.failure for outcome in outcomes.values()} == {None}
        for _, times in ranking(outcomes):
            assert 0 < times.warm.p20_us <= times.warm.p50_us <= times.warm.p80_us
            assert times.cold.p50_us > 0.8 * times.warm.p50_us
    find = finder(store.read(), conditions_of(cuda_device))
    assert all(find(problem) for problem in layers)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
def test_every_algorithm_passes_its_exam(
    device: CusimDevice,
    store: TuningStore,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: Algorithm[Any],
) -> None:
    monkeypatch.setattr(algorithms, "ALGORITHMS", (algorithm,))
    layers = (LAYER, POINTWISE, GROUPED, IN_3D, WIDE)
    at_precisions = [
        replace(layer, n=n, precision=precision)
        for precision, n in (
            (Precision.FP32, 3),
            (Precision.TF32X3, 3),
            (Precision.FP16, 17),
            (Precision.INT8, 17),
        )
        for layer in layers
    ]
    problem = next(each for each in at_precisions if algorithm.supports(each) is None)
    _passes(device, store, problem)


@pytest.mark.parametrize("precision", [Precision.TF32, Precision.FP16], ids=lambda p: p.value)
def test_every_precision_passes_its_exam(
    device: CusimDevice,
    store: TuningStore,
    monkeypatch: pytest.MonkeyPatch,
    precision: Precision,
) -> None:
    monkeypatch.setattr(algorithms, "ALGORITHMS", (TensorConv(),))
    _passes(device, store, replace(LAYER, n=17, precision=precision))
    projection = Projection(12, tuple(2 * size for size in POINTWISE.window.output), (2, 2))
    _passes(device, store, replace(POINTWISE, n=3, precision=precision, projection=projection))


def test_a_convolution_with_a_prologue_is_measured(
    device: CusimDevice, store: TuningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithms, "ALGORITHMS", (GemmConv(),))
    _passes(device, store, replace(POINTWISE, prologue=Prologue(1e-6)))


def _passes(device: CusimDevice, store: TuningStore, problem: ConvProblem) -> None:
    search = Search(2, 1)
    clock_ = clock(device, search=search, problems=[problem])
    (outcomes,) = autotune(device, [problem], store, search, progress=silent, timer=clock_).values()
    assert outcomes
    assert {outcome.failure for outcome in outcomes.values()} == {None}


@pytest.mark.parametrize(
    ("us", "copies", "replays"), [(3.0, 20, 100), (400.0, 3, 41), (90_000.0, 1, 10)]
)
def test_long_runs_are_repeated_less(
    device: CusimDevice, store: TuningStore, us: float, copies: int, replays: int
) -> None:
    clock_ = clock(device, lambda name, cold: us)
    autotune(device, [LAYER], store, Search(4, 1), progress=silent, timer=clock_)
    *screened, warm, cold = clock_.runs
    assert {(sets, replays) for sets, _, replays in screened} == {(1, 5)}
    assert all(1 <= copies <= 20 for _, copies, _ in screened)
    assert warm == (1, copies, replays)
    # As many sets as are ever run, all the same layer being small: none is used twice.
    assert cold == (copies * (replays + 1), copies, replays)


def test_operands_that_are_to_be_cold_lie_further_apart_than_any_cache_is_large(
    device: CusimDevice, store: TuningStore
) -> None:
    large = conv_problem(1, 4, 4, window((500, 700), (1, 1)))
    clock_ = clock(device, problems=[large])
    autotune(device, [large], store, Search(1, 1), progress=silent, timer=clock_)
    sets = clock_.runs[-1][0]
    nbytes = 2 * 4 * 4 * 500 * 700
    assert (sets - 1) * nbytes > 180e6 > (sets - 3) * nbytes


def test_two_layers_whose_filters_have_one_form_do_not_share_them(
    device: CusimDevice, store: TuningStore
) -> None:
    problems = [LAYER, conv_problem(1, 8, 12, window((4, 4), (3, 3)))]
    known = autotune(
        device, problems, store, SEARCH, progress=silent, timer=clock(device, problems=problems)
    )
    assert {each.failure for outcomes in known.values() for each in outcomes.values()} == {None}


def test_what_is_cold_is_compared_too(device: CusimDevice, store: TuningStore) -> None:
    candidates = list(shortlist(LAYER, device, SEARCH.top))
    hot, steady = candidates[:2]

    def us(name: str, cold: bool) -> float:
        return {hot: 50.0 if cold else 10.0, steady: 22.0 if cold else 20.0}.get(name, 90.0)

    (outcomes,) = autotune(
        device, [LAYER], store, SEARCH, progress=silent, timer=clock(device, us)
    ).values()
    ranked = [(name, times.us) for name, times in ranking(outcomes)]
    assert ranked[:2] == [(steady, 21.0), (hot, 30.0)]


def test_nothing_is_measured_twice_unless_it_is_to_be(
    device: CusimDevice, store: TuningStore
) -> None:
    def measure(search: Search) -> int:
        clock_ = clock(device, search=search)
        autotune(device, PROBLEMS, store, search, progress=silent, timer=clock_)
        return len(clock_.asked)

    first = measure(SEARCH)
    assert measure(SEARCH) == 0
    wider = Search(top=7, finalists=2)
    assert 0 < measure(wider) < measure(Search(top=7, finalists=2, anew=True))
    assert measure(SEARCH) == 0  # though what it would have timed is not what was
    assert measure(Search(top=4, finalists=2, anew=True)) == first
    kept = {key.problem: outcomes for key, outcomes in store.read().items()}
    for problem in PROBLEMS:
        assert kept[str(problem)].keys() == shortlist(problem, device, 4).keys()


def test_another_device_or_driver_measures_for_itself(
    device: CusimDevice, store: TuningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    autotune(device, [LAYER], store, SEARCH, progress=silent, timer=clock(device))
    monkeypatch.setattr(CusimDevice, "driver", "cusim 2")
    clock_ = clock(device)
    autotune(device, [LAYER], store, SEARCH, progress=silent, timer=clock_)
    assert clock_.asked
    assert len({key.conditions for key in store.read()}) == 2
