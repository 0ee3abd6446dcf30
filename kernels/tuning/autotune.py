"""Finds the fastest algorithm and configuration on a device by checking and timing each.

    candidates ─ examine ─> right ─ screen: a few runs ─> finalists ─ time: warm, cold ─┬─> store
                    └ wrong, refused, does not compile: reported, stored, never chosen  │
                                             winner ─ time in a row: its best trigger ──┘

Measurements in the store are not repeated, so an interrupted run continues where it stopped.
The device must do no other work meanwhile.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
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
"""The longest time of a graph of copies, unless a single copy takes longer."""

SCREEN_REPLAYS = 5

TIMING_US = 50_000
"""The approximate time of a finalist's replays, spent once more with a cold cache."""

MIN_REPLAYS, MAX_REPLAYS = 10, 100

MAX_REASON = 1000
"""The most characters of a failure that are kept, as a compiler's log is longer."""

Progress = Callable[[str, int, int], None]
"""Called with the task, the number of its items that are done, and their total number."""

TOP_CANDIDATES = 24
"""The number of candidates that are measured for each problem by default."""

Candidates = Mapping[str, ConvChoice]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Search:
    """Says how much to measure: the `top` candidates by estimated cost, or all if it is None.

    The `finalists` fastest and the best of each algorithm are timed thoroughly. If `anew`,
    measurements in the store are repeated.
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
) -> dict[ConvProblem, Outcomes]:
    """Return the outcomes of each problem, after measuring those that the store did not have.

    Raises TuningStoreError, and DeviceError: a candidate that broke the device (FaultError) is left
    out the next time. Earlier measurements stay in the store, also after Ctrl-C.
    """
    key_of = keys(conditions_of(device))
    stored = {} if search.anew else store.read()
    known = {problem: dict(stored.get(key_of(problem), {})) for problem in problems}
    every = {
        problem: shortlist(problem, device, search.top, outcomes)
        for problem, outcomes in known.items()
    }
    todo = {
        problem: candidates
        for problem, candidates in every.items()
        if _unscreened(candidates, known[problem])
        or _untimed(candidates, known[problem], search)
        or (device.overlaps and _untriggered(candidates, known[problem]))
    }
    _compile(device, todo, known, progress)
    with _bench(device, timer) as bench:
        for done, (problem, candidates) in enumerate(todo.items()):
            progress(f"measuring {problem}", done, len(todo))
            found: dict[str, Outcome] = {}
            try:
                for name, outcome in _measure(bench, problem, candidates, known[problem], search):
                    found[name] = known[problem][name] = outcome
                    if outcome.failure is not None:
                        _log.error("%s is not used for %s: %s", name, problem, outcome.failure)
            finally:
                if found:
                    store.add(key_of(problem), found, anew=search.anew)
    progress("measured", len(todo), len(todo))
    return dict(known)


def _unscreened(candidates: Candidates, known: Outcomes) -> list[str]:
    return [name for name in candidates if name not in known]


def _untimed(candidates: Candidates, known: Outcomes, search: Search) -> list[str]:
    return [
        name for name in finalists(candidates, known, search.finalists) if known[name].times is None
    ]


def _untriggered(candidates: Candidates, known: Outcomes) -> list[str]:
    """Return the winner's name if its best trigger is not yet known, else none."""
    winners = [name for name, _ in ranking(known)[:1] if name in candidates]
    return [name for name in winners if known[name].trigger is None]


def _measure(
    bench: Bench, problem: ConvProblem, candidates: Candidates, known: Outcomes, search: Search
) -> Iterator[tuple[str, Outcome]]:
    """Yield outcomes; the caller adds each to `known` before it asks for the next."""
    for name in _unscreened(candidates, known):
        yield from _attempt(bench, problem, name, candidates[name], _screen)
    running = dict(candidates)
    while waiting := _untimed(running, known, search):
        name = waiting[0]
        timed = partial(_time, known[name])
        yield from _attempt(bench, problem, name, candidates[name], timed)
        if known[name].times is None:
            del running[name]  # it failed, or did not fit into memory: try another one
    for name in _untriggered(candidates, known) if bench.device.overlaps else ():
        best = partial(_trigger, known[name], problem, candidates[name])
        yield from _attempt(bench, problem, name, candidates[name], best)


def _attempt(
    bench: Bench,
    problem: ConvProblem,
    name: str,
    choice: ConvChoice,
    measure: Callable[[Bench, Candidate], Outcome],
) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcome of one measurement, or nothing if memory for it is missing now."""
    try:
        outcome = measure(bench, bench.candidate(problem, choice))
    except OutOfMemoryError as error:
        _log.warning("%s is left out for %s: %s", name, problem, error)
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
    """Return `known` with the trigger that makes overlapping launches in a row take the least
    time."""

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


def _compile(
    device: Device,
    todo: Mapping[ConvProblem, Candidates],
    known: Mapping[ConvProblem, Outcomes],
    progress: Progress,
) -> None:
    """Load every kernel that will be run, on all cores. Compile errors are reported later."""
    wanted: dict[Instantiation, None] = {}
    for problem, candidates in todo.items():
        for name in _unscreened(candidates, known[problem]):
            wanted |= dict.fromkeys(instantiations(problem, candidates[name]))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = [pool.submit(device.load, instantiation) for instantiation in wanted]
        try:
            for done, future in enumerate(as_completed(running)):
                progress("compiling kernels", done, len(running))
                error = future.exception()
                if error is not None and not isinstance(error, CompileError):
                    raise error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


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
