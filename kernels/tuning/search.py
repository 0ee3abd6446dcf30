"""Chooses the candidates to measure for a convolution, and finds the fastest measured candidate
(the winner). No function here runs a kernel.

problem ─ shortlist ─> candidates ─ autotune ─> outcomes ─ ranking ─> winner
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache

from kernels.convolution.algorithms import ConvChoice, choices
from kernels.device.compile import source_digest
from kernels.device.device import Device, Instantiation
from kernels.device.launch import Launch
from kernels.layout.operands import ConvTensors, padded
from kernels.layout.pixels import Pixels
from kernels.problems.conv import ConvProblem
from kernels.tuning.heuristic import DeviceFacts, estimated_cycles
from kernels.tuning.store import Conditions, Key, Measurements, Outcomes, Times

Find = Callable[[ConvProblem], ConvChoice | None]


def conditions_of(device: Device) -> Conditions:
    """Return the conditions of a measurement: the device, its driver and its compiler."""
    return Conditions(device.name, device.architecture, device.driver, device.compiler)


def measured_launches(problem: ConvProblem, choice: ConvChoice) -> tuple[Launch, ...]:
    """Return the launches with which a choice for a problem is measured.

    The launches have a bias, and a residual only if it is projected. They have no prologue and no
    activation, and y is not a part of another tensor. The omitted operations take about the same
    time with every candidate. Raises ValueError if an index exceeds 32 bits.
    """
    problem = replace(problem, prologue=None)
    stored = problem.precision.stored

    def pixels(channels: int) -> Pixels:
        return Pixels(channels, padded(channels, 16 // stored.itemsize), stored=stored)

    residual = pixels(problem.projected) if problem.projection else None
    launches = choice.algorithm.launches(
        problem,
        choice.config,
        ConvTensors(pixels(problem.c), pixels(problem.k), residual, bias=True),
    )
    return choice.triggered(launches)


def instantiations(problem: ConvProblem, choice: ConvChoice) -> set[Instantiation]:
    """Return the kernels that a choice for a problem launches, or no kernels if it cannot be
    launched."""
    try:
        launches = measured_launches(problem, choice)
    except ValueError:  # reported where the choice is measured
        return set()
    return {launch.instantiation for launch in launches}


def by_name(candidates: Iterable[ConvChoice]) -> dict[str, ConvChoice]:
    """Return a dictionary of a problem's candidates. The keys are the candidates' names (`str`),
    which are unique."""
    return {str(choice): choice for choice in candidates}


def keys(conditions: Conditions) -> Callable[[ConvProblem], Key]:
    """Return a function from a problem to its key in the tuning store, for measurements under these
    conditions.

    The key's digest covers the sources of all candidates, because the fastest candidate may change
    if a source changes or a candidate is added. The digest does not cover Python code.
    """

    @cache
    def digest(layer: ConvProblem) -> str:
        kernels = (
            instantiation
            for choice in choices(layer)
            for instantiation in instantiations(layer, choice)
        )
        return source_digest(sorted({kernel.source for kernel in kernels}))

    return lambda problem: Key(
        conditions, problem.precision.value, digest(problem.with_batch(1)), str(problem)
    )


def shortlist(
    problem: ConvProblem,
    device: DeviceFacts,
    top: int | None = None,
    known: Collection[str] = (),
) -> dict[str, ConvChoice]:
    """Return the candidates to measure: the `top` candidates with the lowest estimated cost, or all
    candidates if `top` is None.

    Also return all candidates with known outcomes, and the best `top` / 4 candidates of each
    algorithm, because estimates of different algorithms are harder to compare.
    """
    every = sorted(
        choices(problem, device.max_shared_bytes, device.architecture),
        key=lambda choice: estimated_cycles(problem, choice, device),
    )
    if top is None:
        return by_name(every)
    kept = {*map(str, every[:top]), *known}
    kept |= {str(choice) for choice in _first_of_each_algorithm(every, -(-top // 4))}
    return by_name(choice for choice in every if str(choice) in kept)


def finalists(candidates: Mapping[str, ConvChoice], outcomes: Outcomes, count: int) -> list[str]:
    """Return the candidates to time in many runs. These are the `count` candidates that were
    fastest in a few runs, and the fastest candidate of each algorithm."""
    screened = {
        name: outcome.screened_us
        for name, outcome in outcomes.items()
        if name in candidates and outcome.failure is None and outcome.screened_us is not None
    }
    ordered = sorted(screened, key=screened.__getitem__)
    best = _first_of_each_algorithm([candidates[name] for name in ordered], 1)
    return list(dict.fromkeys([*ordered[:count], *map(str, best)]))


def _first_of_each_algorithm(candidates: Iterable[ConvChoice], count: int) -> list[ConvChoice]:
    kept: dict[str, list[ConvChoice]] = {}
    for choice in candidates:
        kept.setdefault(choice.algorithm.name, []).append(choice)
    return [choice for ranking in kept.values() for choice in ranking[:count]]


def ranking(outcomes: Outcomes) -> list[tuple[str, Times]]:
    """Return the candidates that computed the right result and were timed, from the fastest to the
    slowest."""
    timed = (
        (name, outcome.times)
        for name, outcome in outcomes.items()
        if outcome.times is not None and outcome.failure is None
    )
    return sorted(timed, key=lambda pair: pair[1].us)


def finder(measurements: Measurements, conditions: Conditions) -> Find:
    """Return a function that returns a problem's fastest measured candidate (the winner), or None
    if it is unknown.

    The winner is unknown in two cases: the problem was not measured under these conditions and with
    the current sources, or the winner's configuration no longer exists.
    """
    problems = {key.problem for key in measurements if key.conditions == conditions}
    key_of = keys(conditions)

    @cache
    def find(problem: ConvProblem) -> ConvChoice | None:
        if str(problem) not in problems:
            return None
        outcomes = measurements.get(key_of(problem), {})
        ranked = ranking(outcomes)
        choice = by_name(choices(problem)).get(ranked[0][0]) if ranked else None
        if choice is None:
            return None
        return choice._replace(trigger=outcomes[str(choice)].trigger or choice.trigger)

    return find


def tuned(
    find: Find, fallback: Callable[[ConvProblem], ConvChoice]
) -> Callable[[ConvProblem], ConvChoice]:
    """Return a function that chooses a problem's fastest measured candidate or, if `find` does not
    know it, the choice of `fallback`."""
    return lambda problem: find(problem) or fallback(problem)
