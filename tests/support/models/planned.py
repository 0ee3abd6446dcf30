"""Computes digests of the plans of the nine networks. A digest covers the launches, their operands
and their order.

    python -m tests.support.models.planned    # writes the table again

A digest distinguishes launches by their machine code (the instantiation), geometry and numbers, and
by the positions of their operands. It does not depend on the names of nodes and weights, because
libraries choose these names.
"""

import csv
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from hashlib import sha256
from pathlib import Path

from kernels.device.gpus import H200
from kernels.problems.precision import Precision
from kernels.tuning.heuristic import heuristic
from models.plan import Plan, build_plan
from tests.support.models.engines import network_of
from tests.support.networks import LIGHT_NETWORKS, light_network

TABLE = Path(__file__).with_suffix(".tsv")
PRECISIONS = Precision.FP32, Precision.FP16
BATCHES = 1, 8


@dataclass(frozen=True)
class Planned:
    """Holds a row of the table."""

    network: str
    precision: str
    n: int
    launches: int
    digest: str


def planned(name: str) -> Iterator[Planned]:
    """Yield the rows of one of the nine networks, planned for an H200 with the cost model."""
    network = network_of(name, light_network(name))
    for precision in PRECISIONS:
        classifier = replace(network, precision=precision)
        for n in BATCHES:
            plan = build_plan(
                classifier.rewritten.graph, classifier.preprocessing, n, heuristic(H200)
            )
            yield Planned(name, precision.value, n, len(plan.steps), digest(plan))


def digest(plan: Plan) -> str:
    """Return the digest of a plan."""
    weights: dict[str | None, int] = {}  # numbered in the order of use
    said = sha256()
    for step, after in zip(plan.steps, plan.after, strict=True):
        operands = [
            (
                name,
                at.region.value,
                at.offset,
                at.weight and weights.setdefault(at.weight, len(weights)),
            )
            for name, at in sorted(step.operands.items())
        ]
        said.update(repr((step.launch, operands, sorted(after))).encode())
    said.update(repr((plan.arena_bytes, plan.input_bytes, plan.output_bytes)).encode())
    return said.hexdigest()[:16]


def table() -> list[Planned]:
    """Return the committed rows."""
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return [
        Planned(
            row["network"], row["precision"], int(row["n"]), int(row["launches"]), row["digest"]
        )
        for row in rows
    ]


def main() -> None:
    """Write the table."""
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(Planned.__annotations__)
        for name in LIGHT_NETWORKS:
            writer.writerows(astuple(row) for row in planned(name))


if __name__ == "__main__":
    main()
