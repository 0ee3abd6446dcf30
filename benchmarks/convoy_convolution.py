"""Convoy's side of a contest: each choice of a problem, on a device, ready to be run and timed."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

from benchmarks.contest import Cache, CandidateError
from benchmarks.memory import Arena, Operands
from benchmarks.truth import Data, Truth, upload_form
from kernels.algorithms import ConvChoice
from kernels.conv_operands import padded
from kernels.device import CompileError, Device, LaunchError, OutOfMemoryError
from kernels.launch import Launch
from kernels.pixels import Pixels
from kernels.timing import Addresses, Copies, launch_copies, launcher

NAN = 0xFF
"""Each byte of a float that nothing was written to."""


class Workbench:
    """One problem's data on a device, and what its choices share of it.

    Activations lie as in a network: pixels one after another, filled up to whole vectors.
    """

    def __init__(self, device: Device, data: Data, truth: Truth, arena: Arena) -> None:
        problem = data.problem
        self.device, self.data, self.truth, self.arena = device, data, truth, arena
        self.x, self.y = (Pixels(size, padded(size)) for size in (problem.c, problem.k))
        self.sizes = {
            "x": 4 * problem.n * prod(problem.window.input) * self.x.pitch,
            "y": 4 * problem.n * problem.window.output_volume * self.y.pitch,
        }
        self._operands = Operands(device)
        self._operands.put("x", upload_form(data.x, self.x))
        self._operands.room("y", self.sizes["y"])

    def candidate(self, choice: ConvChoice) -> "ChoiceCandidate":
        """The choice, to be run here."""
        return ChoiceCandidate(self, choice)

    def close(self) -> None:
        """Free the data; candidates are no good any more."""
        self._operands.close()

    def filter_form(self, choice: ConvChoice) -> str:
        """Which of the operands is the filter in the choice's form: it is there from then on."""
        problem, (algorithm, config) = self.data.problem, choice
        form = algorithm.filter_form(problem, config)
        if form not in self.sizes:
            prepared = algorithm.prepare_filter(self.data.weight, problem, config)
            self._operands.put(form, prepared)
            self.sizes[form] = prepared.nbytes
        return form

    def operands(self, choice: ConvChoice) -> Addresses:
        """Where everything lies that the choice's launches ask for."""
        problem, (algorithm, config) = self.data.problem, choice
        scratch = {
            **algorithm.workspace(problem, config),
            "counters": algorithm.counter_bytes(problem, config),
        }
        for name, nbytes in scratch.items():
            if self.sizes.get(name, 0) < nbytes:
                address = self._operands.room(name, nbytes)
                self.sizes[name] = nbytes
                stream = self.device.stream()
                # Counters are to be zero; workspaces hold NaN, which a result would show.
                value = 0 if name == "counters" else NAN
                self.device.fill(address, nbytes, value, stream)
                stream.synchronize()
        form = self.filter_form(choice)
        addresses = self._operands.addresses
        return {**addresses, "weight": addresses[form]}


class ChoiceCandidate:
    """One choice; see contest.Candidate."""

    def __init__(self, bench: Workbench, choice: ConvChoice) -> None:
        self._bench, self._choice = bench, choice
        self.name = str(choice)

    def error(self) -> float:
        """See contest.Candidate."""
        bench = self._bench
        with refusals():
            launches, operands = self._launches(), bench.operands(self._choice)
            stream = bench.device.stream()
            bench.device.fill(operands["y"], bench.sizes["y"], NAN, stream)
            launcher(bench.device, launches, [operands])(stream, 0)
            stream.synchronize()
        return bench.truth.error(operands["y"], bench.y)

    def copies(self, cache: Cache, copies: int) -> Copies:
        """See contest.Candidate. What is cold are x, the filter and y."""
        bench = self._bench
        with refusals():
            launches, operands = self._launches(), bench.operands(self._choice)
            sets = [operands]
            if cache is Cache.COLD:
                weight = bench.sizes[bench.filter_form(self._choice)]
                cold = bench.arena.sets(
                    {"x": bench.sizes["x"], "weight": weight}, {"y": bench.sizes["y"]}
                )
                sets = [{**operands, **each} for each in cold]
            return launch_copies(bench.device, launches, sets, copies=copies)

    def _launches(self) -> tuple[Launch, ...]:
        bench, (algorithm, config) = self._bench, self._choice
        return algorithm.launches(bench.data.problem, config, bench.x, bench.y)


@contextmanager
def refusals() -> Iterator[None]:
    """What a device refuses, and may, as CandidateError; a fault is a fault."""
    try:
        yield
    except (CompileError, LaunchError, OutOfMemoryError, ValueError) as error:
        raise CandidateError(str(error)) from error
