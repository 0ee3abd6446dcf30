"""Prints estimated times of networks on a GPU. The cost model computes them; they are not measured.

    python -m benchmarks.networks.estimates [--gpu h200] [--precision fp16] [NETWORK ...]

As in a graph on that GPU, branches run in parallel and launches overlap. The number in brackets is
the roofline, a sum over all launches. Each launch contributes the longer of two times at the GPU's
peak rates: the time of its arithmetic, and the time of its memory traffic.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.networks.light import NETWORKS, classifier
from kernels.device.gpus import GPUS, Gpu
from kernels.problems.precision import Precision
from models.classifier import Classifier
from models.reports.plan_report import plan_report

BATCHES = (1, 8)


def estimate_us(network: Classifier, precision: Precision, n: int, gpu: Gpu) -> float:
    """Return the estimated time of a batch of n images on a GPU, in µs. Raises EngineError if the
    GPU does not support the precision."""
    return plan_report(replace(network, precision=precision), n, gpu).timeline.us


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of estimated times, with a row for each network and each precision that the GPU
    supports."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.networks.estimates")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--gpu", choices=GPUS, default="h200")
    floating = [each.value for each in Precision if each is not Precision.INT8]
    parser.add_argument("--precision", choices=floating, action="append")
    options = parser.parse_args(arguments)
    if unknown := set(options.networks) - NETWORKS.keys():
        parser.error(
            f"unknown networks: {', '.join(unknown)}; the networks are {', '.join(NETWORKS)}"
        )
    gpu = GPUS[options.gpu]
    columns = (f"N = {n}, µs (roofline)" for n in BATCHES)
    table = Table("network", "precision", "launches", *columns, title=gpu.name)
    asked = [
        (name, Precision(precision))
        for name in options.networks or NETWORKS
        for precision in options.precision or floating
        if gpu.tflops(Precision(precision))
    ]
    for name, precision in track(asked, "estimating", transient=True):
        network = classifier(name, NETWORKS[name]())
        found = [plan_report(replace(network, precision=precision), n, gpu) for n in BATCHES]
        launches = sorted({len(each.steps) for each in found})
        times = (f"{each.timeline.us:.1f} ({each.roofline_us:.1f})" for each in found)
        table.add_row(name, precision.value, " to ".join(map(str, launches)), *times)
    Console().print(table)


if __name__ == "__main__":
    main()
