"""Checks the results of a convolution's candidates (algorithms and configurations) on a device, and
times the candidates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kernels.convolution.algorithms import ConvChoice
from kernels.device.device import Buffer, Device
from kernels.device.launch import Launch
from kernels.layout.operands import Filter, padded
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import BYTE, FLOAT, HALF, Storage
from kernels.tuning.examination import Exam, exam_of
from kernels.tuning.search import measured_launches
from kernels.tuning.timing import Addresses, Timing, launcher, operand_sets, set_bytes, sets_needed

_POISON = 0xFF  # a float of such bytes is NaN


class WrongResultError(Exception):
    """Raised when a candidate's result is wrong; describes the error."""


class Timer(Protocol):
    """The type of `kernels.tuning.timing.time_launches`, and of functions that replace it in
    tests."""

    def __call__(
        self,
        device: Device,
        launches: Sequence[Launch],
        operands: Sequence[Addresses],
        *,
        copies: int = ...,
        replays: int = ...,
        dependent: bool = ...,
    ) -> Timing:
        """Time launches, as `time_launches` does."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """Holds the choice of an algorithm and a configuration for a problem, and all data that a run
    needs, such as the launches and each operand's size in bytes."""

    problem: ConvProblem
    exam: Exam
    launches: tuple[Launch, ...]
    weight: Filter
    read: Mapping[str, int]
    written: Mapping[str, int]
    counter_bytes: int


class Bench:
    """Checks and times candidates on a device. A Bench allocates device memory as needed, and
    `close` frees all of this memory."""

    def __init__(self, device: Device, timer: Timer) -> None:
        self.device = device
        self._timer = timer
        self._stream = device.stream()
        # What no kernel writes may be read before a launch waits for the one ahead of it.
        self._x, self._weight = (_Room(device, constant=True) for _ in range(2))
        self._written, self._counters = (_Room(device) for _ in range(2))
        # Timed on ordinary numbers: whole ones take less power, so clocks would be higher.
        self._random = {
            stored: _Room(device, partial(self._randomise, stored), constant=True)
            for stored in (FLOAT, HALF, BYTE)
        }
        self._uploaded: tuple[Exam, int] | None = None  # the layer of x, and N
        self._filters: tuple[Exam, dict[str, Filter]] | None = None

    def close(self) -> None:
        """Free all device memory."""
        rooms = self._x, self._weight, self._written, self._counters, *self._random.values()
        for room in rooms:
            room.free()

    def candidate(self, problem: ConvProblem, choice: ConvChoice) -> Candidate:
        """Return the candidate for a choice of algorithm and configuration. Raises ValueError if
        the choice cannot be launched."""
        algorithm, config = choice.algorithm, choice.config
        launches = measured_launches(problem, choice)
        exam = exam_of(problem.with_batch(1))
        if self._filters is None or self._filters[0] is not exam:
            self._filters = exam, {}
        forms, form = self._filters[1], algorithm.filter_form(problem, config)
        if form not in forms:
            forms[form] = np.ascontiguousarray(
                algorithm.prepare_filter(exam.weight, problem, config)
            )
        y_shape, stored = _y_shape(problem), problem.precision.stored
        return Candidate(
            problem=problem,
            exam=exam,
            launches=launches,
            weight=forms[form],
            read={
                **{name: problem.n * image.nbytes for name, image in exam.images.items()},
                **{name: numbers.nbytes for name, numbers in exam.of_filters.items()},
                "weight": forms[form].nbytes,
            },
            written={
                "y": stored.itemsize * prod(y_shape),
                **algorithm.workspace(problem, config),
            },
            counter_bytes=algorithm.counter_bytes(problem, config),
        )

    def examine(self, candidate: Candidate) -> float:
        """Run the candidate twice and check the second result. Return an upper bound of the
        candidate's time in µs.

        Raises WrongResultError or DeviceError.
        """
        device, stream = self.device, self._stream
        addresses = {**self._upload(candidate), **self._clear(candidate)}
        run = launcher(device, candidate.launches, [addresses])
        began, ended = device.event(), device.event()
        for _ in range(2):  # the first run has one-time costs, and must reset the counters
            began.record(stream)
            run(stream, 0)
            ended.record(stream)
        problem = candidate.problem
        y = np.empty(_y_shape(problem), problem.precision.stored)
        device.download(y, addresses["y"], stream)
        counters = np.zeros(candidate.counter_bytes, np.uint8)
        if candidate.counter_bytes:
            device.download(counters, addresses["counters"], stream)
        stream.synchronize()
        if fault := candidate.exam.fault(y):
            raise WrongResultError(fault)
        if counters.any():
            raise WrongResultError("the launch did not reset its counters to zero")
        return ended.elapsed_ms(began) * 1e3

    def warm(
        self, candidate: Candidate, *, copies: int, replays: int, dependent: bool = False
    ) -> Timing:
        """Time the candidate repeatedly on the same operands. Raises DeviceError.

        If `dependent`, each launch may begin before the previous launch has ended.
        """
        return self._time(candidate, 1, copies, replays, dependent)

    def cold(
        self, candidate: Candidate, *, copies: int, replays: int, dependent: bool = False
    ) -> Timing:
        """Time the candidate on operands that are not in the second-level cache. Raises
        DeviceError."""
        nbytes = set_bytes({**candidate.read, **candidate.written})
        sets = sets_needed(nbytes, copies=copies, replays=replays)
        return self._time(candidate, sets, copies, replays, dependent)

    def _time(
        self, candidate: Candidate, sets: int, copies: int, replays: int, dependent: bool
    ) -> Timing:
        random = self._random[candidate.problem.precision.stored]
        read = random.at_least(sets * set_bytes(candidate.read))
        written = self._written.at_least(sets * set_bytes(candidate.written))
        counters = self._counters.at_least(candidate.counter_bytes)
        if candidate.counter_bytes:
            self.device.fill(counters, candidate.counter_bytes, 0, self._stream)
        self._stream.synchronize()
        operands = [
            {**inputs, **outputs, "counters": counters}
            for inputs, outputs in zip(
                operand_sets(read, candidate.read, sets),
                operand_sets(written, candidate.written, sets),
                strict=True,
            )
        ]
        return self._timer(
            self.device,
            candidate.launches,
            operands,
            copies=copies,
            replays=replays,
            dependent=dependent,
        )

    def _upload(self, candidate: Candidate) -> dict[str, int]:
        """Upload the inputs of the check to the device, and return their addresses. Inputs that all
        candidates of a problem share are uploaded only once."""
        exam, n = candidate.exam, candidate.problem.n
        of_filters = exam.of_filters
        inputs = {name: candidate.read[name] for name in (*exam.images, *of_filters)}
        (at,) = operand_sets(self._x.at_least(set_bytes(inputs)), inputs, 1)
        at["weight"] = self._weight.at_least(candidate.weight.nbytes)
        self.device.upload(at["weight"], candidate.weight, self._stream)
        if self._uploaded != (exam, n):
            operands = {**exam.inputs(n), **of_filters}
            for name, operand in operands.items():
                self.device.upload(at[name], operand, self._stream)
            self._stream.synchronize()  # before they are freed
            self._uploaded = exam, n
        return at

    def _clear(self, candidate: Candidate) -> dict[str, int]:
        """Fill the candidate's output operands with NaN, and its counters with zeros. Return the
        addresses of these outputs and counters."""
        nbytes = set_bytes(candidate.written)
        begin = self._written.at_least(nbytes)
        self.device.fill(begin, nbytes, _POISON, self._stream)
        counters = self._counters.at_least(candidate.counter_bytes)
        if candidate.counter_bytes:
            self.device.fill(counters, candidate.counter_bytes, 0, self._stream)
        (at,) = operand_sets(begin, candidate.written, 1)
        return {**at, "counters": counters}

    def _randomise(self, stored: Storage, address: int, nbytes: int) -> None:
        """Fill memory with copies of one block of normally distributed numbers."""
        floats = np.random.default_rng(0).standard_normal(min(nbytes // 4, 1 << 20), np.float32)
        numbers = floats.astype(stored.dtype) if stored != BYTE else (32 * floats).astype(np.int8)
        octets: NDArray[np.uint8] = numbers.view(np.uint8)
        for begin in range(0, nbytes, len(octets)):
            part = octets[: nbytes - begin]
            self.device.upload(address + begin, part, self._stream)
        self._stream.synchronize()


def _y_shape(problem: ConvProblem) -> tuple[int, ...]:
    """Return the shape of y, N×P×Q×K with K padded to 16 bytes."""
    k = padded(problem.k, 16 // problem.precision.stored.itemsize)
    return (problem.n, *problem.window.output, k)


class _Room:
    """Holds one buffer in device memory. If more memory is needed, the buffer is replaced by a
    larger buffer, whose contents `fill` writes."""

    def __init__(
        self,
        device: Device,
        fill: Callable[[int, int], None] | None = None,
        *,
        constant: bool = False,
    ) -> None:
        self._device, self._fill, self._constant = device, fill, constant
        self._buffer: Buffer | None = None

    def at_least(self, nbytes: int) -> int:
        """Return the address of a buffer of at least `nbytes` bytes. If a larger buffer must be
        allocated, the old contents are lost. Raises OutOfMemoryError."""
        if self._buffer is None or self._buffer.nbytes < nbytes:
            self.free()
            self._buffer = self._device.allocate(max(nbytes, 1), constant=self._constant)
            if self._fill is not None:
                self._fill(self._buffer.address, nbytes)
        return self._buffer.address

    def free(self) -> None:
        """Free the memory."""
        if self._buffer is not None:
            buffer, self._buffer = self._buffer, None
            self._device.synchronize()
            buffer.free()
