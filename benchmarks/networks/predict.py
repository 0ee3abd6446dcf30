"""What a model of time expects of whole networks on an H200: predictions, none of them measured.

Convolutions take what the cost model says (kernels/tuning/heuristic.py), all else its bytes or
operations at the data sheet's peaks, and every launch GAP_US more: a captured graph's nodes start
one after another. Beside that stands the batch as the engine runs it, by models/schedule/time.py.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import fsum
from pathlib import Path

from rich.table import Table

from benchmarks.kernels.predict import CLOCK_HZ, DEVICE
from benchmarks.networks.light import NETWORKS, classifier
from benchmarks.rows import Row
from kernels.problems.precision import Precision
from kernels.tuning.heuristic import H200, estimated_cycles, heuristic
from models.classifier import Classifier
from models.reports.plan_report import GPUS, plan_report
from models.schedule.time import GAP_US
from models.tuning.measured import conv_problems

BATCHES = (1, 8)
PREDICTED = ("VGG-19", "ResNet-50", "GoogLeNet", "SqueezeNet")


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of a network for n images, in µs; a launch's gap is in neither part."""

    launches: int
    convolutions_us: float
    others_us: float
    overlapped_us: float  # the batch as the engine runs it: branches and launches overlap
    gaps_us: float  # of that, while nothing runs

    @property
    def us(self) -> float:
        """From the first launch to the last one's end, one after another, none overlapping."""
        return self.convolutions_us + self.others_us + GAP_US * self.launches


def predict(network: Classifier, n: int) -> Prediction:
    """At the classifier's precision, by the heuristic's choices."""
    choose = heuristic(H200)
    problems = conv_problems(network.rewritten.graph, [n])
    convolutions = {name for names in problems.values() for name in names}
    plan = plan_report(network, n, GPUS["h200"])
    cycles = fsum(
        len(names) * estimated_cycles(problem, choose(problem), H200)
        for problem, names in problems.items()
    )
    others = fsum(step.roofline_us for step in plan.steps if step.name not in convolutions)
    convolutions_us = 1e6 * cycles / CLOCK_HZ
    return Prediction(len(plan.steps), convolutions_us, others, plan.us, plan.gaps_us)


def rows(names: Iterable[str], batches: Iterable[int], at: str) -> Iterator[Row]:
    """A row a network, precision and N."""
    batches = tuple(batches)
    for name in names:
        network = classifier(name, NETWORKS[name]())
        for precision, n in product(Precision, batches):
            prediction = predict(replace(network, precision=precision), n)
            yield {
                "kind": "prediction",
                "commit": at,
                "device": DEVICE,
                "network": name,
                "precision": precision.value,
                "n": n,
                "launches": prediction.launches,
                "convolutions_us": round(prediction.convolutions_us, 1),
                "us": round(prediction.us, 1),
                "overlapped_us": round(prediction.overlapped_us, 1),
                "gaps_us": round(prediction.gaps_us, 1),
            }


def run(out: Path, names: Iterable[str], batches: Iterable[int], at: str) -> list[Row]:
    """Predict, and write OUT/network_predictions.jsonl anew."""
    made = list(rows(names, batches, at))
    out.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in made)
    (out / "network_predictions.jsonl").write_text(text)
    return made


def table(made: Iterable[Row]) -> Table:
    """Rows to read."""
    shown = Table(title="PREDICTED, not measured: µs on an H200", title_justify="left")
    columns = (
        *("network", "precision", "n", "launches"),
        *("convolutions_us", "us", "overlapped_us", "gaps_us"),
    )
    for heading in columns:
        shown.add_column(heading, justify="left" if heading in columns[:2] else "right")
    for row in made:
        shown.add_row(*(str(row[column]) for column in columns))
    return shown
