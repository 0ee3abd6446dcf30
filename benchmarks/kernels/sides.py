"""Measures problems by each side: Convoy's choice, PyTorch, and the best of cuDNN's plans."""

from collections.abc import Callable, Iterable
from typing import Protocol

from benchmarks.kernels.baselines_cudnn import Cudnn
from benchmarks.kernels.baselines_torch import (
    CudaRuntime,
    im2col_candidates,
    tensors_of,
    torch_candidates,
)
from benchmarks.kernels.contest import (
    Cache,
    Candidate,
    CandidateError,
    Effort,
    Outcome,
    Winner,
    contest,
)
from benchmarks.kernels.report import CONVOY
from kernels.convolution.algorithms import ConvChoice, choices
from kernels.device.device import Device
from kernels.problems.conv import ConvProblem
from kernels.tuning.autotune import Search, autotune
from kernels.tuning.bench import Bench, Timer, WrongResultError
from kernels.tuning.heuristic import heuristic
from kernels.tuning.search import by_name, ranking
from kernels.tuning.store import TuningStore
from kernels.tuning.timing import time_launches


class Side(Protocol):
    """Measures problems by one of the libraries that are compared."""

    @property
    def name(self) -> str:
        """Return the name used in rows."""

    def measure(self, problem: ConvProblem) -> Outcome:
        """Return the side's best times for a problem, warm and cold."""

    def close(self) -> None:
        """Free the side's memory on the device."""


class ConvoySide:
    """Measures Convoy's choice, which as in an engine is the same for both states of the cache.

    With a store the choice is the winner of what `convoy tune` does, which continues the store;
    without one it is the heuristic's. A bias is added too, as in a network.
    """

    name = CONVOY

    def __init__(
        self,
        device: Device,
        effort: Effort,
        store: TuningStore | None,
        search: Search,
        timer: Timer = time_launches,
    ) -> None:
        self._device, self._effort, self._store, self._search = device, effort, store, search
        self._timer, self._bench = timer, Bench(device, timer)

    def measure(self, problem: ConvProblem) -> Outcome:
        """Return the choice's times. Raises DeviceError, TuningStoreError."""
        if self._store is None:
            return self._timed(problem, heuristic(self._device)(problem), 1, {})
        (outcomes,) = autotune(
            self._device,
            [problem],
            self._store,
            self._search,
            progress=lambda *_: None,
            timer=self._timer,
        ).values()
        refused = {
            name: outcome.failure
            for name, outcome in outcomes.items()
            if outcome.failure is not None
        }
        ranked = ranking(outcomes)
        if not ranked:
            return Outcome({}, len(outcomes), refused)
        winner = by_name(choices(problem))[ranked[0][0]]
        return self._timed(problem, winner, len(outcomes), refused)

    def close(self) -> None:
        """Free the bench's memory."""
        self._bench.close()

    def _timed(
        self, problem: ConvProblem, choice: ConvChoice, tried: int, refused: dict[str, str]
    ) -> Outcome:
        candidate = self._bench.candidate(problem, choice)
        try:
            self._bench.examine(candidate)
        except WrongResultError as error:
            return Outcome({}, tried, {**refused, str(choice): str(error)})
        winners = {}
        workspace = sum(choice.algorithm.workspace(problem, choice.config).values())
        for cache, measure in ((Cache.WARM, self._bench.warm), (Cache.COLD, self._bench.cold)):
            timing = measure(candidate, copies=self._effort.copies, replays=self._effort.replays)
            winners[cache] = Winner(str(choice), timing, workspace)
        return Outcome(winners, tried, refused)


class ContestSide:
    """Measures a library by the fastest of its candidates, one for each state of the cache."""

    def __init__(
        self, name: str, candidates: Callable[[ConvProblem], Iterable[Candidate]], effort: Effort
    ) -> None:
        self.name = name
        self._candidates, self._effort = candidates, effort

    def measure(self, problem: ConvProblem) -> Outcome:
        """Return the winners of a contest between the library's candidates."""
        try:
            candidates = self._candidates(problem)
        except CandidateError as error:
            return Outcome({}, 0, {self.name: str(error)})
        return contest(candidates, self._effort)

    def close(self) -> None:
        """Do nothing, because the memory is freed with the tensors."""


def torch_side(device: Device, effort: Effort) -> ContestSide:
    """Return PyTorch as a side of the contest. Raises BaselineError where it is not installed."""
    runtime = CudaRuntime()
    return ContestSide(
        "torch", lambda problem: torch_candidates(device, tensors_of(runtime, problem)), effort
    )


def im2col_side(device: Device, effort: Effort) -> ContestSide:
    """Return explicit im2col, by PyTorch's unfold and cuBLAS, as a side of the contest. Raises
    BaselineError where PyTorch is not installed."""
    runtime = CudaRuntime()
    return ContestSide(
        "im2col", lambda problem: im2col_candidates(device, tensors_of(runtime, problem)), effort
    )


def cudnn_side(device: Device, effort: Effort) -> ContestSide:
    """Return cuDNN, run on PyTorch's tensors, as a side of the contest. Raises BaselineError."""
    runtime, library = CudaRuntime(), Cudnn()
    return ContestSide(
        "cudnn", lambda problem: library.candidates(device, tensors_of(runtime, problem)), effort
    )


BASELINES: dict[str, Callable[[Device, Effort], ContestSide]] = {
    "torch": torch_side,
    "im2col": im2col_side,
    "cudnn": cudnn_side,  # last: one of its plans may fault, and then the device is lost
}
