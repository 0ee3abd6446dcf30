"""Measures a convolution with Convoy, with PyTorch and with cuDNN. Each of these is called a
side."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.kernels.baselines_cudnn import Cudnn
from benchmarks.kernels.baselines_torch import (
    CudaRuntime,
    Tensors,
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
from kernels.convolution.algorithms import ConvChoice, choices
from kernels.device.device import Device
from kernels.problems.conv import ConvProblem
from kernels.tuning.autotune import Search, autotune
from kernels.tuning.bench import Bench, Timer, WrongResultError
from kernels.tuning.heuristic import heuristic
from kernels.tuning.search import by_name, ranking
from kernels.tuning.store import TuningStore
from kernels.tuning.timing import time_launches


class ConvoySide:
    """Measures the algorithm that Convoy chooses for a convolution. As in an engine, Convoy makes
    one choice for both states of the L2 cache.

    With a tuning store, Convoy measures its algorithms as `convoy tune` does, adds the measurements
    to the store and chooses the fastest algorithm. Without a store, the heuristic chooses. The
    convolution includes a bias, as in a network.
    """

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
        """Return the times of the algorithm that Convoy chooses. Raises DeviceError or
        TuningStoreError."""
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
        """Free the GPU memory that the measurements used."""
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


@dataclass(frozen=True, slots=True)
class ContestSide:
    """Measures a library. The result has the times of the library's fastest candidate, for each
    state of the L2 cache."""

    name: str
    candidates: Callable[[ConvProblem], Iterable[Candidate]]
    effort: Effort

    def measure(self, problem: ConvProblem) -> Outcome:
        """Return the times of the library's fastest candidate for each state of the cache."""
        try:
            candidates = self.candidates(problem)
        except CandidateError as error:
            return Outcome({}, 0, {self.name: str(error)})
        return contest(candidates, self.effort)


BASELINES = ("torch", "im2col", "cudnn")  # cuDNN is last, because one of its plans may fault


def baseline(name: str, device: Device, effort: Effort) -> ContestSide:
    """Return an object that measures one of the libraries in BASELINES. Raises BaselineError if the
    library is missing.

    The baselines are PyTorch's convolution, explicit im2col with PyTorch's unfold and cuBLAS, and
    cuDNN on PyTorch's tensors.
    """
    runtime = CudaRuntime()
    candidates_of: dict[str, Callable[[Device, Tensors], Iterable[Candidate]]] = {
        "torch": torch_candidates,
        "im2col": im2col_candidates,
    }
    of = candidates_of.get(name) or Cudnn().candidates
    return ContestSide(name, lambda problem: of(device, tensors_of(runtime, problem)), effort)
