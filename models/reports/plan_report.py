"""Creates the report of `convoy inspect --plan`: each kernel launch, and the least time that it can
take (its roofline)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernels.convolution.algorithms import ConvChoice, candidates, choices
from kernels.device.device import Instantiation
from kernels.device.gpus import Gpu
from kernels.image.place import Kind
from kernels.problems.conv import ConvProblem
from kernels.tuning.heuristic import choose as least_cost
from kernels.tuning.heuristic import estimated_cycles, heuristic
from kernels.tuning.profile_table import UnprofiledKernelError, profile_of
from kernels.tuning.search import Find, tuned
from models.classifier import Classifier
from models.errors import EngineError
from models.plan import Plan, Step, build_plan
from models.schedule import time
from models.schedule.timeline import Bar, Timeline
from models.tuning.measured import conv_problems, find_on


@dataclass(frozen=True, slots=True)
class CodeReport:
    """Reports limits on a kernel's speed. They are derived from its machine code, not measured.

    `products` and both ceilings describe the kernel's main loop, and are None if the kernel has no
    main loop.
    """

    registers: int
    blocks: int  # the blocks that fit on a multiprocessor
    products: float | None  # the share of multiply-adds (FFMA, mma) in the instructions
    issue_ceiling: float | None  # the share of the peak rate that the instruction rate allows
    shared_ceiling: float | None  # the share of it that the shared memory allows


@dataclass(frozen=True, slots=True)
class StepReport:
    """Reports on a kernel launch. `roofline_us` is the least possible time at the GPU's peak rates.

    It is the larger of two times: the time for the arithmetic and the time for the memory traffic.
    """

    name: str
    kernel: str
    chosen: str  # a Conv's algorithm and configuration
    measured: bool  # whether `chosen` was measured, not estimated
    precision: str  # the precision of its arithmetic
    grid: tuple[int, int, int]
    threads: int
    flops: int
    bytes: int
    roofline_us: float
    bound: str  # "FLOPs" or "bytes"
    code: CodeReport | None  # None if the kernel is not profiled for the GPU's architecture
    start_us: float  # by the cost model (models/schedule/time.py)
    end_us: float
    after: tuple[int, ...]  # the indices of the launches for which it waits


@dataclass(frozen=True, slots=True)
class Loser:
    """Describes an algorithm that could compute a convolution but was not chosen, with the
    reason."""

    node: str
    algorithm: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Reports on the kernel launches of a network on a GPU. All times are estimates or come from
    the data sheet."""

    name: str
    n: int
    gpu: Gpu
    steps: tuple[StepReport, ...]
    losers: tuple[Loser, ...]
    arena_bytes: int
    input_bytes: int
    output_bytes: int
    counter_bytes: int

    @property
    def roofline_us(self) -> float:
        """Return the sum of the rooflines of all launches, in µs."""
        return sum(step.roofline_us for step in self.steps)

    @property
    def timeline(self) -> Timeline:
        """Return the estimated start and end of each launch, according to the cost model."""
        bars = [Bar(step.name, step.start_us, step.end_us, step.after) for step in self.steps]
        return Timeline(self.name, self.n, self.gpu.name, bars)


def plan_report(
    classifier: Classifier,
    n: int,
    gpu: Gpu,
    tuning: Path | None = None,
    takes: Kind = Kind.PIXELS,
) -> PlanReport:
    """Return the report of a classifier's plan on a GPU for n images. The plan accepts images of
    the kind `takes`, and of all earlier kinds in `Kind`.

    If the file `tuning` is given, its measurements choose the algorithms of convolutions.
    Otherwise, the heuristic chooses them. Raises EngineError if the file cannot be read or has no
    measurements of this GPU, or if the GPU does not support the precision.
    """
    if not gpu.tflops(classifier.precision):
        raise EngineError(
            f"{gpu.name} has no tensor cores for {classifier.precision.value}; "
            "use --precision fp32 or fp16"
        )
    graph = classifier.rewritten.graph
    find: Find = find_on(gpu.name.split()[0], tuning) if tuning else lambda _: None
    choose = tuned(find, heuristic(gpu))
    meaning = classifier.preprocessing
    plan: Plan = build_plan(
        graph,
        meaning,
        n,
        choose,
        kind=meaning.batch_kinds(takes)[-1] if takes > Kind.TENSOR else Kind.PIXELS,
        pays=partial(time.pays, machine=gpu),
    )
    gaps = time.gaps(plan.after, overlaps=gpu.overlaps)
    spans = time.spans([time.estimate(step, gpu) for step in plan.steps], plan.after, gaps)
    losers = tuple(
        Loser(name, algorithm, reason)
        for problem, names in conv_problems(graph, [n]).items()
        for algorithm, reason in _losers(
            problem, choose(problem), gpu, measured=find(problem) is not None
        )
        for name in names
    )
    return PlanReport(
        name=classifier.name,
        n=n,
        gpu=gpu,
        steps=tuple(
            _step(step, gpu, find, span, after)
            for step, span, after in zip(plan.steps, spans, plan.after, strict=True)
        ),
        losers=losers,
        arena_bytes=plan.arena_bytes,
        input_bytes=plan.input_bytes,
        output_bytes=plan.output_bytes,
        counter_bytes=plan.counter_bytes,
    )


def _losers(
    problem: ConvProblem, chosen: ConvChoice, gpu: Gpu, *, measured: bool
) -> Iterator[tuple[str, str]]:
    """Yield the algorithms that can compute the convolution but were not chosen, each with the
    reason.

    The reason may compare estimated times. An algorithm's time is estimated in the configuration
    that the heuristic would choose for it.
    """
    offered = choices(problem, gpu.max_shared_bytes, gpu.architecture)

    def us(choice: ConvChoice) -> float:
        return 1e6 * estimated_cycles(problem, choice, gpu) / gpu.clock_hz

    for algorithm in candidates(problem):
        if algorithm == chosen.algorithm:
            continue
        configured = [choice for choice in offered if choice.algorithm == algorithm]
        if not configured:
            exist = algorithm.configs(problem)
            none = f"no kernel for the {gpu.name}" if exist else "no configuration for this problem"
            yield algorithm.name, none
        elif measured:
            yield algorithm.name, f"{chosen} was measured to be the fastest"
        else:
            best = least_cost(problem, configured, gpu)
            times = f"{us(best):.1f} us by the cost model; {chosen} takes {us(chosen):.1f} us"
            if us(best) >= us(chosen):
                yield algorithm.name, times
            elif len(algorithm.work(problem, best.config)) > 1:
                yield algorithm.name, f"{times}, in fewer launches"
            else:
                yield algorithm.name, f"{times}, about the same time, and fills the GPU"


def _step(step: Step, gpu: Gpu, find: Find, span: time.Span, after: frozenset[int]) -> StepReport:
    precision, chosen = time.precision_of(step), step.chosen
    arithmetic = step.cost.flops / (gpu.tflops(precision) * 1e6)
    memory = step.cost.bytes / (gpu.gb_per_s * 1e3)
    x, y, z = step.launch.block
    return StepReport(
        name=step.name,
        kernel=str(step.launch.instantiation),
        chosen=str(chosen.choice) if chosen else "",
        measured=chosen is not None and find(chosen.problem) is not None,
        precision=precision.value,
        grid=step.launch.grid,
        threads=x * y * z,
        flops=step.cost.flops,
        bytes=step.cost.bytes,
        roofline_us=max(arithmetic, memory),
        bound="FLOPs" if arithmetic > memory else "bytes",
        code=_code(step.launch.instantiation, gpu.architecture),
        start_us=span.start_us,
        end_us=span.end_us,
        after=tuple(sorted(after)),
    )


def _code(kernel: Instantiation, architecture: str) -> CodeReport | None:
    try:
        profile = profile_of(kernel, architecture)
    except UnprofiledKernelError:
        return None
    return CodeReport(
        registers=profile.registers,
        blocks=profile.blocks,
        products=profile.share,
        issue_ceiling=profile.ceiling,
        shared_ceiling=profile.shared_ceiling,
    )
