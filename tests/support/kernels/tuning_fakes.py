"""Contains fakes for tests of tuning: a clock that returns prescribed times, and wrong
algorithms."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cusim.device import CusimDevice
from kernels.convolution.algorithms import ConvChoice
from kernels.convolution.depthwise import DepthwiseConv
from kernels.convolution.direct import DirectConv
from kernels.convolution.implicit_gemm import TILES, Tile
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.work import Work
from kernels.device.device import Device, Instantiation, Trigger
from kernels.device.launch import Launch
from kernels.layout.operands import ConvTensors, Filter
from kernels.layout.strided import StridedTensor
from kernels.operations.elementwise import fill_launch
from kernels.problems.conv import ConvProblem
from kernels.tuning.autotune import Search
from kernels.tuning.search import measured_launches, shortlist
from kernels.tuning.timing import Addresses, Timing
from tests.support.kernels.windows import conv_problem, window

DIRECT = DirectConv()
TILE = TileConfig(Tile(bm=16, bn=32, bk=32, tm=4, tn=4, stages=3))
"""The configuration of the broken algorithms. Direct convolution does not have it, because a clock
distinguishes candidates by their launches."""

LAYER = conv_problem(1, 8, 12, window((5, 6), (3, 3), pads=(1, 1, 1, 1)))
POINTWISE = conv_problem(1, 8, 12, window((5, 6), (1, 1)))
GROUPED = conv_problem(1, 6, 6, LAYER.window, 6)
IN_3D = conv_problem(1, 8, 8, window((3, 4, 5), (3, 3, 3), pads=(1,) * 6))
WIDE = conv_problem(1, 8, 8, window((6, 6), (5, 5), pads=(2,) * 4))
PROBLEMS = (LAYER, LAYER.with_batch(2), GROUPED)
SEARCH = Search(top=4, finalists=2)
FEW = (DIRECT, DepthwiseConv())

Us = Callable[[str, bool], float]

_RANDOM = {"fp16": (np.float16, 1), "int8": (np.int8, 32)}
"""For problems at these precisions, the type and the approximate deviation of inputs. All other
inputs are float32."""


@dataclass
class Clock:
    """A Timer that runs nothing. It returns `us(name, cold)` as the time of each candidate of the
    problems.

    `asked` records the problem and the candidate of every measurement, and whether the cache was
    cold. `runs` records the numbers of operand sets, copies and replays. The operands are checked:
    inputs must be ordinary floats, and counters must be zero. For overlapping launches, the time is
    the entry of `trigger_us` for their trigger, and `triggers` records the measurement.
    """

    candidates: Mapping[tuple[Launch, ...], tuple[str, str]]
    us: Us
    asked: list[tuple[str, str, bool]] = field(default_factory=list)
    runs: list[tuple[int, int, int]] = field(default_factory=list)
    trigger_us: Mapping[Trigger, float] = field(default_factory=dict)
    triggers: list[tuple[str, str, Trigger]] = field(default_factory=list)

    @classmethod
    def of(cls, problems: Mapping[ConvProblem, Sequence[ConvChoice]], us: Us) -> "Clock":
        return cls(
            {
                _plain(measured_launches(problem, choice)): (str(problem), str(choice))
                for problem, choices in problems.items()
                for choice in choices
            },
            us,
        )

    def __call__(
        self,
        device: Device,
        launches: Sequence[Launch],
        operands: Sequence[Addresses],
        *,
        copies: int = 0,
        replays: int = 0,
        dependent: bool = False,
    ) -> Timing:
        trigger = launches[0].instantiation.trigger
        problem, name = self.candidates[_plain(launches)]
        cold = len(operands) > 1
        if dependent:
            self.triggers.append((problem, name, trigger))
            us = self.trigger_us.get(trigger, 10.0)
            return Timing(us, us, us)
        self.asked.append((problem, name, cold))
        self.runs.append((len(operands), copies, replays))
        used = {operand for launch in launches for operand in launch.operands}
        for each in (operands[0], operands[-1]):
            stored, size = next(
                (each for end, each in _RANDOM.items() if problem.endswith(end)), (np.float32, 1)
            )
            x, counters = np.empty(64, stored), np.zeros(1, np.uint32)
            stream = device.stream()
            device.download(x, each["x"], stream)
            if "counters" in used:
                device.download(counters, each["counters"], stream)
            stream.synchronize()
            assert 0.5 * size < x.astype(np.float64).std() < 2 * size
            assert not counters.any()
        us = self.us(name, cold)
        return Timing(us - 1, us, us + 1)


def _plain(launches: Iterable[Launch]) -> tuple[Launch, ...]:
    """Return the launches with the default trigger."""
    return tuple(
        replace(each, instantiation=replace(each.instantiation, trigger=Trigger.START))
        for each in launches
    )


def by_length(name: str, cold: bool) -> float:
    """Return a time that depends on the candidate's name, and so differs between candidates."""
    return 10.0 + len(name) + hash_of(name) / 1000 + 5 * cold


def hash_of(name: str) -> int:
    return sum(index * ord(letter) for index, letter in enumerate(name)) % 997


def clock(
    device: CusimDevice,
    us: Us = by_length,
    search: Search = SEARCH,
    problems: Sequence[ConvProblem] = PROBLEMS,
) -> Clock:
    return Clock.of({p: list(shortlist(p, device, search.top).values()) for p in problems}, us)


def silent(what: str, done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class BrokenConv(DirectConv):
    """Computes a direct convolution. Each subclass adds a mistake."""

    name: str = "broken"

    def configs(self, problem: ConvProblem) -> tuple[TileConfig[Tile], ...]:
        return (TILE,)

    def work(self, problem: ConvProblem, config: TileConfig[Tile]) -> tuple[Work]:
        (work,) = DIRECT.work(problem, replace(config, tile=TILES[-1]))  # one with a profile
        return (replace(work, products=100 * work.products),)  # so it is tried last


class TurnsFilter(BrokenConv):
    def prepare_filter(self, weight: Filter, *rest: Any) -> Filter:
        return DIRECT.prepare_filter(np.ascontiguousarray(weight[:, :, ::-1]), *rest)

    def filter_form(self, problem: ConvProblem, config: TileConfig[Tile]) -> str:
        return "turned"


class _Launches(BrokenConv):
    def launches(self, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        launches = DIRECT.launches(*arguments, **named)
        return self.change(launches[0], *arguments, **named)

    def change(self, launch: Launch, *arguments: Any, **named: Any) -> tuple[Launch, ...]:
        raise NotImplementedError


class ForgetsBias(BrokenConv):
    def launches(self, problem: ConvProblem, config: Any, tensors: ConvTensors) -> tuple[Launch]:
        return DIRECT.launches(problem, config, tensors._replace(bias=False))


class ForgetsLastBlock(_Launches):
    def change(self, launch: Launch, *arguments: Any, **named: Any) -> tuple[Launch, ...]:
        return (replace(launch, grid=(launch.grid[0] - 1, *launch.grid[1:])),)


class LeavesCounters(_Launches):
    def counter_bytes(self, problem: ConvProblem, config: TileConfig[Tile]) -> int:
        return 16

    def change(self, launch: Launch, *arguments: Any, **named: Any) -> tuple[Launch, ...]:
        fill = fill_launch(StridedTensor.contiguous((1,)), 1.0)
        names = tuple("counters" if each == "y" else each for each in fill.arguments)
        return launch, replace(fill, arguments=names)


class RefusesToLaunch(_Launches):
    def change(self, launch: Launch, *arguments: Any, **named: Any) -> tuple[Launch, ...]:
        return (replace(launch, block=(2048, 1, 1)),)


class DoesNotCompile(_Launches):
    def change(self, launch: Launch, *arguments: Any, **named: Any) -> tuple[Launch, ...]:
        return (replace(launch, instantiation=Instantiation("implicit_gemm.cu", "conv_indirect")),)


class TooLarge(BrokenConv):
    def launches(self, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        raise ValueError("4294967296 is beyond 32 bits")


class WritesElsewhere(_Launches):
    """Writes outside its operands, so that the device fails."""

    def change(self, launch: Launch, *arguments: Any, **named: Any) -> tuple[Launch, ...]:
        fill = fill_launch(StridedTensor.contiguous((1 << 20,)), 1.0)
        return launch, fill


class TakesAllMemory(_Launches):
    def workspace(self, problem: ConvProblem, config: TileConfig[Tile]) -> Mapping[str, int]:
        return {"workspace": 1 << 50}

    def change(self, launch: Launch, *arguments: Any, **named: Any) -> tuple[Launch, ...]:
        return (launch,)
