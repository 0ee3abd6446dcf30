"""Whole networks in strict float32: Convoy's engine beside PyTorch, at N = 1 and 8.

    python -m benchmarks.networks [--network NAME] [--n N] [--switches] [--budget-s S]

VGG-19, ResNet-50, GoogLeNet, SqueezeNet and C3D with seeded weights. PyTorch runs the same
rewritten graph, channels last, TF32 off: node by node with cudnn.benchmark, in a CUDA graph, and
by torch.compile (max-autotune). Scores are compared before anything is timed. Two times of each:

    device       from pixels on the device to scores there, runs queued one behind the other;
                 Convoy's from pinned memory and back, for its graph holds the copies
    end to end   from the host's pixels to the host's scores, one request at a time

With `--switches` Convoy is also measured without each part of its engine that can be left out.
`--estimate` measures nothing: it writes what a model of time expects of an H200.

The convolutions are tuned first, for those N, unless --heuristic is given. Rows go to
OUT/networks.jsonl; those that are there of the same device and commit are not measured again.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.kernels.__main__ import of_place, where
from benchmarks.kernels.baselines_torch import BaselineError, CudaRuntime
from benchmarks.kernels.report import CONVOY
from benchmarks.networks import estimate
from benchmarks.networks.light import NETWORKS, classifier
from benchmarks.networks.sides import (
    WAYS,
    ConvoyNetwork,
    NetworkSide,
    TorchNetwork,
    warm_up,
)
from benchmarks.networks.switches import SWITCHES, switched
from benchmarks.rows import RESULTS, Row, append, commit, now, read
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import Device, DeviceError
from kernels.tuning.autotune import Search, autotune
from kernels.tuning.heuristic import heuristic
from kernels.tuning.search import conditions_of, finder, tuned
from kernels.tuning.store import TuningStore
from kernels.tuning.timing import Timing
from models.classifier import Classifier
from models.engines.engine import Images, Scores
from models.lowering import Choose
from models.tuning.measured import conv_problems

RUNS = 200

MOST_DIFFERENCE = 1e-3
"""Of a score from Convoy's, relative to the image's largest."""

Make = Callable[[], NetworkSide]


class DifferentScoresError(Exception):
    """A side that computes something else."""


def images_of(network: Classifier, n: int, seed: int = 0) -> Images:
    """n images, or clips, in coarse squares."""
    *spatial, channels = network.preprocessing.image_shape
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, *[4] * len(spatial), channels), np.uint8)
    for axis, size in enumerate(spatial, 1):
        images = images.take(np.arange(size) * 4 // size, axis)
    return images


def chosen(
    device: Device, network: Classifier, n: int, store: TuningStore | None, search: Search
) -> Choose:
    """The tuner's choices for N = n, measured now where the store has none; or the heuristic's."""
    if store is None:
        return heuristic(device)
    problems = list(conv_problems(network.rewritten.graph, [n]))
    autotune(device, problems, store, search, progress=lambda *_: None)
    return tuned(finder(store.read(), conditions_of(device)), heuristic(device))


def times_of(side: NetworkSide, images: Images, runs: int) -> dict[str, Timing]:
    """Both times, by metric."""
    warm_up(lambda: side.run(images))
    end_to_end = []
    for _ in range(runs):
        begin = time.perf_counter()
        side.run(images)
        end_to_end.append(1e6 * (time.perf_counter() - begin))
    return {"device": Timing.of(side.queued_us(runs)), "end to end": Timing.of(end_to_end)}


def check(name: str, scores: Scores, expected: Scores) -> None:
    """Raise DifferentScoresError unless both say the same of every image."""
    difference = np.abs(scores - expected).max(axis=1) / np.abs(expected).max(axis=1)
    if not difference.max() <= MOST_DIFFERENCE:  # NaN is a difference too
        raise DifferentScoresError(f"{name} gives other scores: off by {difference.max():.1e}")


def measure(
    network: str,
    n: int,
    makers: Mapping[str, Make],
    images: Images,
    known: Iterable[Row],
    runs: int,
) -> Iterator[list[Row]]:
    """Rows of each side that has none yet; Convoy's scores are what all others' must be."""
    there = {row["side"] for row in known if (row["network"], row["n"]) == (network, n)}
    missing = [name for name in makers if name not in there]
    if not missing:
        return
    reference = makers[CONVOY]()
    expected = reference.run(images).scores
    for name in missing:
        side = reference if name == CONVOY else makers[name]()
        check(name, side.run(images).scores, expected)
        times = times_of(side, images, runs)
        if side is not reference:
            side.close()
        yield [
            {
                "network": network,
                "n": n,
                "side": name,
                "metric": metric,
                "p20_us": round(timing.p20_us, 2),
                "p50_us": round(timing.p50_us, 2),
                "p80_us": round(timing.p80_us, 2),
                "runs": runs,
            }
            for metric, timing in times.items()
        ]
    reference.close()


def show(rows: Sequence[Row], console: Console) -> None:
    """A table a metric: medians, and how many times as fast Convoy is as the fastest other."""
    for metric in ("device", "end to end"):
        times: dict[tuple[str, int], dict[str, float]] = {}
        for row in rows:
            if row["metric"] == metric:
                times.setdefault((row["network"], row["n"]), {})[row["side"]] = row["p50_us"]
        sides = list(dict.fromkeys(side for each in times.values() for side in each))
        table = Table(title=f"{metric}, µs, float32", title_justify="left")
        for heading in ("", "N", *sides, "speed-up"):
            table.add_column(heading, justify="right" if heading else "left")
        for (network, n), by_side in times.items():
            cells = [f"{by_side[side]:.1f}" if side in by_side else "" for side in sides]
            others = [us for side, us in by_side.items() if not side.startswith(CONVOY)]
            ratio = f"{min(others) / by_side[CONVOY]:.2f}" if others and CONVOY in by_side else ""
            table.add_row(network, str(n), *cells, ratio)
        if times:
            console.print(table)
    for network in ("VGG-19", "ResNet-50"):
        for n in (1, 8):
            console.print(f"{goal(rows, network, n)}: {network} at N = {n}, ahead of torch.compile")


def goal(rows: Sequence[Row], network: str, n: int) -> str:
    """Whether Convoy's device time is less than torch.compile's."""
    times = {
        row["side"]: row["p50_us"]
        for row in rows
        if (row["network"], row["n"], row["metric"]) == (network, n, "device")
    }
    if CONVOY not in times or "torch.compile" not in times:
        return "not measured"
    return "met" if times[CONVOY] < times["torch.compile"] else "NOT MET"


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks",
        description="Measure whole networks beside PyTorch, on a GPU.",
    )
    parser.add_argument(
        "--network", action="append", choices=tuple(NETWORKS), help="again for more (all)"
    )
    parser.add_argument("--n", action="append", type=int, help="again for more (1 and 8)")
    parser.add_argument("--heuristic", action="store_true", help="do not tune: take its choices")
    parser.add_argument(
        "--without", action="append", choices=[way.name for way in WAYS], default=[],
        help="leave out a way to run PyTorch",
    )  # fmt: skip
    parser.add_argument(
        "--switches", action="store_true",
        help=f"measure Convoy also without each of: {', '.join(SWITCHES)}",
    )  # fmt: skip
    parser.add_argument(
        "--top", type=int, default=Search().top, help="as of benchmarks.kernels.__main__"
    )
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="seconds to spend")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (%(default)s)")
    parser.add_argument("--commit", help="where the checkout is not one of git's")
    parser.add_argument("--report", action="store_true", help="only show what is there")
    parser.add_argument(
        "--estimate", action="store_true", help="what a model of time expects, no measurement"
    )
    return parser.parse_args(arguments)


def main(command_line: Sequence[str] | None = None) -> None:
    """Measure, show, and write down."""
    arguments = parse_arguments(command_line)
    console = Console(highlight=False, markup=False)
    if arguments.estimate:
        names, batches = arguments.network or estimate.ESTIMATED, arguments.n or estimate.BATCHES
        rows = estimate.run(arguments.out, names, batches, arguments.commit or commit())
        console.print(estimate.table(rows))
        return
    file = arguments.out / "networks.jsonl"
    if arguments.report:
        rows = read(file)
        show(of_place(rows, rows[-1]) if rows else [], console)
        return
    try:
        device = CudaDevice()
    except DeviceError as error:
        raise SystemExit(f"networks are measured on a GPU: {error}") from error
    place = where(device, arguments.commit or commit())
    runtime: CudaRuntime | None = None
    try:
        runtime = CudaRuntime()
    except BaselineError as error:
        console.print(f"PyTorch is not measured: {error}")
    store = None if arguments.heuristic else TuningStore(arguments.out / "tuning.json")
    search = Search(top=arguments.top or None)
    deadline = time.monotonic() + arguments.budget_s
    built: dict[str, Classifier] = {}  # the last one alone: they are large
    for name, n in product(arguments.network or NETWORKS, arguments.n or (1, 8)):
        if time.monotonic() > deadline:
            console.print("the budget is spent; the same command goes on from here")
            break
        console.print(f"{name} at N = {n}")
        if name not in built:
            built = {name: classifier(name, NETWORKS[name]())}
        network = built[name]
        choose = chosen(device, network, n, store, search)
        makers: dict[str, Make] = {CONVOY: partial(ConvoyNetwork, network, device, n, choose)}
        for switch in SWITCHES if arguments.switches else ():
            makers[switched(switch)] = partial(ConvoyNetwork, network, device, n, choose, switch)
        for way in WAYS:
            if runtime is not None and way.name not in arguments.without:
                makers[way.name] = partial(TorchNetwork, way.name, runtime, network, n, way.prepare)
        known = of_place(read(file), place)
        for rows in measure(name, n, makers, images_of(network, n), known, RUNS):
            append(file, ({"date": now(), **place, **row} for row in rows))
            for row in rows:
                console.print(f"{name} N{n} {row['side']}, {row['metric']}: {row['p50_us']} µs")
    show(of_place(read(file), place), console)


if __name__ == "__main__":
    main()
