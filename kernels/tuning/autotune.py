"""Finds the fastest algorithm and configuration of each convolution, by checking and timing
candidates on a device.

    candidates ─ examine ─> right ─ screen: a few runs ─> finalists ─ time: warm, cold ─┬─> store
                    └ wrong, refused, does not compile: reported, stored, never chosen  │
                                 winners, once all are known ─ time in a row: trigger ──┘

Measurements in the store are not repeated, so an interrupted run continues where it stopped. The
device must do no other work during the measurements.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from kernels.convolution.algorithms import ConvChoice
from kernels.device.device import (
    CompileError,
    Device,
    FaultError,
    Instantiation,
    LaunchError,
    OutOfMemoryError,
    Trigger,
)
from kernels.problems.conv import ConvProblem
from kernels.tuning.bench import Bench, Candidate, Timer, WrongResultError
from kernels.tuning.search import (
    conditions_of,
    finalists,
    instantiations,
    keys,
    ranking,
    shortlist,
)
from kernels.tuning.store import Outcome, Outcomes, Times, TuningStore
from kernels.tuning.timing import COPIES, time_launches

GRAPH_US = 1000
"""The longest time of a graph of copies, unless one copy alone takes longer."""

SCREEN_REPLAYS = 5

TIMING_US = 50_000
"""The approximate time of a finalist's replays with a warm cache, and again with a cold cache."""

MIN_REPLAYS, MAX_REPLAYS = 10, 100

MAX_REASON = 1000
"""The most characters of a failure that are kept, because a compiler's log may be long."""

Progress = Callable[[str, int, int], None]
"""A function that is called with the task, the number of finished items, and the total number."""

TOP_CANDIDATES = 24
"""The number of candidates that are measured for each problem by default."""

Candidates = Mapping[str, ConvChoice]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Search:
    """Sets which candidates of a convolution are measured: the `top` candidates with the lowest
    estimated cost, or all candidates if `top` is None.

    All of them are timed in a few runs. The `finalists` fastest candidates, and the fastest
    candidate of each algorithm, are then timed in many runs. If `anew`, measurements in the store
    are repeated.
    """

    top: int | None = TOP_CANDIDATES
    finalists: int = 4
    anew: bool = False


def autotune(
    device: Device,
    problems: Sequence[ConvProblem],
    store: TuningStore,
    search: Search,
    *,
    progress: Progress,
    timer: Timer = time_launches,
    threads: int = 0,
) -> dict[ConvProblem, Outcomes]:
    """Check and time the candidates that have no outcome in `store`, and store their outcomes.
    Return the outcomes of all candidates of each problem.

    All kernels are compiled before the first measurement, on `threads` threads (0: one per core).
    Completed measurements stay in the store, even after Ctrl-C. Raises TuningStoreError or
    DeviceError. If a candidate breaks the device, FaultError is raised, and the next call skips
    this candidate.
    """
    key_of = keys(conditions_of(device))
    stored = {} if search.anew else store.read()
    known = {problem: dict(stored.get(key_of(problem), {})) for problem in problems}
    every = {
        problem: shortlist(problem, device, search.top, outcomes)
        for problem, outcomes in known.items()
    }

    def compile_all(kernels: Iterable[Instantiation]) -> None:
        wanted = dict.fromkeys(kernels)
        for done, _ in enumerate(device.compile(wanted, threads)):
            progress("compiling kernels", done, len(wanted))

    def measure_all(measure: _Measure, todo: Sequence[ConvProblem], how: str, anew: bool) -> None:
        for done, problem in enumerate(todo):
            progress(f"measuring {problem}{how}", done, len(todo))
            found: dict[str, Outcome] = {}
            try:
                for name, outcome in measure(bench, problem, every[problem], known[problem]):
                    found[name] = known[problem][name] = outcome
                    if outcome.failure is not None:
                        _log.error("%s is not used for %s: %s", name, problem, outcome.failure)
            finally:
                if found:
                    store.add(key_of(problem), found, anew=anew)

    todo = [
        problem
        for problem, candidates in every.items()
        if _unscreened(candidates, known[problem]) or _untimed(candidates, known[problem], search)
    ]
    compile_all(
        kernel
        for problem in todo
        for name in _unscreened(every[problem], known[problem])
        for kernel in instantiations(problem, every[problem][name])
    )
    with _bench(device, timer) as bench:
        measure_all(partial(_measure, search), todo, "", search.anew)
        todo = [
            problem
            for problem, candidates in every.items()
            if device.overlaps and _untriggered(candidates, known[problem])
        ]
        compile_all(
            kernel
            for problem in todo
            for name in _untriggered(every[problem], known[problem])
            for trigger in Trigger
            for kernel in instantiations(problem, every[problem][name]._replace(trigger=trigger))
        )
        measure_all(_measure_triggers, todo, " in a row", anew=False)
    progress("measured", len(every), len(every))
    return dict(known)


def _unscreened(candidates: Candidates, known: Outcomes) -> list[str]:
    return [name for name in candidates if name not in known]


def _untimed(candidates: Candidates, known: Outcomes, search: Search) -> list[str]:
    return [
        name for name in finalists(candidates, known, search.finalists) if known[name].times is None
    ]


def _untriggered(candidates: Candidates, known: Outcomes) -> list[str]:
    """Return the name of the fastest candidate, in a list, if its best trigger is still unknown.
    Otherwise return an empty list."""
    winners = [name for name, _ in ranking(known)[:1] if name in candidates]
    return [name for name in winners if known[name].trigger is None]


_Measure = Callable[[Bench, ConvProblem, Candidates, Outcomes], Iterator[tuple[str, Outcome]]]
"""Yields outcomes. The caller adds each outcome to the known outcomes before it asks for the
next."""


def _measure(
    search: Search, bench: Bench, problem: ConvProblem, candidates: Candidates, known: Outcomes
) -> Iterator[tuple[str, Outcome]]:
    """Check all candidates and time each in a few runs. Then time the fastest candidates in many
    runs. Yield every outcome with its candidate's name."""
    for name in _unscreened(candidates, known):
        yield from _attempt(bench, problem, name, candidates[name], _screen)
    running = dict(candidates)
    while waiting := _untimed(running, known, search):
        name = waiting[0]
        timed = partial(_time, known[name])
        yield from _attempt(bench, problem, name, candidates[name], timed)
        if known[name].times is None:
            del running[name]  # it failed, or did not fit into memory: try another one


def _measure_triggers(
    bench: Bench, problem: ConvProblem, candidates: Candidates, known: Outcomes
) -> Iterator[tuple[str, Outcome]]:
    """Find the best trigger of the fastest candidate, and yield its outcome with this trigger."""
    for name in _untriggered(candidates, known):
        best = partial(_trigger, known[name], problem, candidates[name])
        yield from _attempt(bench, problem, name, candidates[name], best)


def _attempt(
    bench: Bench,
    problem: ConvProblem,
    name: str,
    choice: ConvChoice,
    measure: Callable[[Bench, Candidate], Outcome],
) -> Iterator[tuple[str, Outcome]]:
    """Call `measure` with the candidate, and yield the outcome. If the device has too little free
    memory, yield nothing."""
    try:
        outcome = measure(bench, bench.candidate(problem, choice))
    except OutOfMemoryError as error:
        _log.warning("%s is not measured on %s: %s", name, problem, error)
    except FaultError as error:
        yield name, Outcome(failure=_reason(error))
        raise
    except (CompileError, LaunchError, WrongResultError, ValueError) as error:
        yield name, Outcome(failure=_reason(error))
    else:
        yield name, outcome


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_REASON]


def _screen(bench: Bench, candidate: Candidate) -> Outcome:
    at_most_us = bench.examine(candidate)
    timing = bench.warm(candidate, copies=_copies(at_most_us), replays=SCREEN_REPLAYS)
    return Outcome(screened_us=timing.p50_us)


def _time(known: Outcome, bench: Bench, candidate: Candidate) -> Outcome:
    return replace(known, times=_times(known, bench, candidate))


def _trigger(
    known: Outcome, problem: ConvProblem, choice: ConvChoice, bench: Bench, _: Candidate
) -> Outcome:
    """Return `known` with the fastest trigger, which is the point at which a kernel lets the next
    launch begin. To find it, measure overlapping launches with each trigger."""

    def us(trigger: Trigger) -> float:
        candidate = bench.candidate(problem, choice._replace(trigger=trigger))
        return _times(known, bench, candidate, dependent=True).us

    return replace(known, trigger=min(Trigger, key=us))


def _times(known: Outcome, bench: Bench, candidate: Candidate, dependent: bool = False) -> Times:
    us = known.screened_us or 0.0
    copies = _copies(us)
    replays = min(MAX_REPLAYS, max(MIN_REPLAYS, int(TIMING_US / max(copies * us, 1.0))))
    return Times(
        *(
            measure(candidate, copies=copies, replays=replays, dependent=dependent)
            for measure in (bench.warm, bench.cold)
        )
    )


def _copies(us: float) -> int:
    return min(COPIES, ceil(GRAPH_US / max(us, 1.0)))


@contextmanager
def _bench(device: Device, timer: Timer) -> Iterator[Bench]:
    bench = Bench(device, timer)
    try:
        yield bench
    except FaultError:
        raise  # a broken device cannot free memory
    except BaseException:
        bench.close()
        raise
    bench.close()
