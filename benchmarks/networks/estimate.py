"""What a model of time expects of whole networks on an H200: estimates, none of them measured.

Convolutions take what the cost model says (kernels/tuning/heuristic.py), all else its bytes or
operations at the data sheet's peaks and OTHER_US. Every launch has the gap before it: a captured
graph's nodes start one after another. Weights that fit in the second-level cache all together stay
there from run to run. Beside that stands the batch as the engine runs it, with launches that
overlap, by models/schedule/time.py.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import fsum
from pathlib import Path

from rich.table import Table

from benchmarks.kernels.estimate import DEVICE
from benchmarks.networks.light import NETWORKS, classifier
from benchmarks.rows import Row
from kernels.device.gpus import H200, Gpu
from kernels.problems.precision import Precision
from kernels.tuning.constants import ASSUMED, CLOCK_HZ
from kernels.tuning.heuristic import heuristic, parts
from models.classifier import Classifier
from models.reports.plan_report import plan_report
from models.schedule.time import GAP_US, OTHER_US
from models.tuning.measured import conv_problems

BATCHES = (1, 2, 4, 8)
ESTIMATED = ("VGG-19", "ResNet-50", "GoogLeNet", "SqueezeNet")


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of a network for n images; all times have their launches' gaps."""

    launches: int
    cached: bool  # whether its weights stay in the second-level cache
    convolutions_us: float
    others_us: float
    overlapped_us: float  # the batch as the engine runs it: branches and launches overlap
    gaps_us: float  # of that, while nothing runs
    parts_us: Mapping[str, float]  # what the convolutions' is spent on
    floor_us: float  # a gap and the roofline of each node, one launch by its chosen algorithm

    @property
    def us(self) -> float:
        """From the first launch to the last one's end, one after another, none overlapping."""
        return self.convolutions_us + self.others_us


def estimate(network: Classifier, n: int, gpu: Gpu = H200) -> Estimate:
    """Estimate a network at its precision, by the heuristic's choices."""
    choose = heuristic(gpu)
    graph = network.rewritten.graph
    plan = plan_report(network, n, gpu)
    chosen = {
        problem: (choose(problem), names) for problem, names in conv_problems(graph, [n]).items()
    }
    convolutions = {name for _, names in chosen.values() for name in names}
    others = [step for step in plan.steps if step.name not in convolutions]
    weight_bytes = sum(step.bytes for step in others if step.kernel.startswith("linear"))
    launches = len(others)
    for problem, (choice, names) in chosen.items():
        works = choice.algorithm.work(problem, choice.config)
        launches += len(names) * len(works)
        weight_bytes += len(names) * sum(work.weight_bytes for work in works)
    cached = weight_bytes <= gpu.l2_mb << 20
    steps = {step.name: step for step in plan.steps}
    rooflines = {name: step.roofline_us for name, step in steps.items()}
    for problem, (choice, names) in chosen.items():
        for name in names:
            flops_per_us = 1e6 * gpu.tflops(Precision(steps[name].precision))
            arithmetic_us = 2 * choice.algorithm.multiplications(problem) / flops_per_us
            rooflines[name] = max(arithmetic_us, steps[name].bytes / (1e3 * gpu.gb_per_s))
    cycles: defaultdict[str, float] = defaultdict(float)
    for problem, (choice, names) in chosen.items():
        for work in choice.algorithm.work(problem, choice.config):
            for part, each in {"gaps": ASSUMED.launch_cycles, **parts(work, H200, cached)}.items():
                cycles[part] += len(names) * each
    return Estimate(
        launches=launches,
        cached=cached,
        convolutions_us=1e6 * fsum(cycles.values()) / CLOCK_HZ,
        others_us=fsum(step.roofline_us + OTHER_US + GAP_US for step in others),
        overlapped_us=plan.timeline.us,
        gaps_us=plan.timeline.gaps_us,
        floor_us=fsum(us + GAP_US for us in rooflines.values()),
        parts_us={part: 1e6 * each / CLOCK_HZ for part, each in cycles.items()},
    )


def rows(names: Iterable[str], batches: Iterable[int], at: str) -> Iterator[Row]:
    """A row a network, precision and N."""
    batches = tuple(batches)
    for name in names:
        network = classifier(name, NETWORKS[name]())
        for precision, n in product(Precision, batches):
            found = estimate(replace(network, precision=precision), n)
            yield {
                "kind": "estimate",
                "commit": at,
                "device": DEVICE,
                "network": name,
                "precision": precision.value,
                "n": n,
                "launches": found.launches,
                "cached": found.cached,
                "convolutions_us": round(found.convolutions_us, 1),
                "us": round(found.us, 1),
                "overlapped_us": round(found.overlapped_us, 1),
                "gaps_us": round(found.gaps_us, 1),
                "floor_us": round(found.floor_us, 1),
                "parts_us": {part: round(us, 1) for part, us in found.parts_us.items()},
            }


def run(out: Path, names: Iterable[str], batches: Iterable[int], at: str) -> list[Row]:
    """Estimate, and write OUT/network_estimates.jsonl anew."""
    made = list(rows(names, batches, at))
    out.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in made)
    (out / "network_estimates.jsonl").write_text(text)
    return made


def table(made: Iterable[Row]) -> Table:
    """Rows to read."""
    shown = Table(title="ESTIMATED, not measured: µs on an H200", title_justify="left")
    columns = (
        *("network", "precision", "n", "launches", "cached"),
        *("convolutions_us", "us", "overlapped_us", "gaps_us", "floor_us"),
    )
    for heading in columns:
        shown.add_column(heading, justify="left" if heading in columns[:2] else "right")
    for row in made:
        shown.add_row(*(str(row[column]) for column in columns))
    return shown
