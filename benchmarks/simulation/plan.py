"""How many replicas a load needs, on paper: `python -m benchmarks.simulation.plan`.

    python -m benchmarks.simulation.plan --rate 20000 --p99 15 --model squeezenet.onnx
    python -m benchmarks.simulation.plan --rate 20000 --p99 15 --latency-ms 1.2,1.3,1.5,1.8

L(n), with decoding, is measured on this machine's CPU with --model, or given in milliseconds.
For each load balancer the plan is the fewest replicas whose p99 is within the bound under Poisson
arrivals. It is then simulated again with 1% and 10% of the replicas failing, with a deployment, and
with a burst of twice the rate; `lost` are the requests inside replicas that fail.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil, inf
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.simulation.fleet import (
    BALANCERS,
    Hardware,
    Outage,
    Outcome,
    Seconds,
    poisson,
    simulate,
    with_burst,
)
from models import DeviceKind, load_classifier, open_engine
from service.batching.latency import measure
from service.images.decode import ImageLimits, prepare_image

# Requests at the start of a run that do not count: queues fill.
_WARM_UP = 0.1

# A failed replica is back after this time. A deployment restarts a tenth of the replicas at a time.
_RESTART_S = 5.0
_DEPLOYED_AT_ONCE = 0.1

_MOST_REPLICAS = 100_000


class Result(NamedTuple):
    """One run; milliseconds, and numbers of requests."""

    p50_ms: float
    p99_ms: float
    refused: int
    lost: int


def result_of(outcome: Outcome) -> Result:
    """The quantiles without the warm-up; inf where nothing was answered."""
    counted = outcome.latencies[int(_WARM_UP * len(outcome.latencies)) :]
    p50, p99 = np.quantile(counted, (0.5, 0.99)) * 1e3 if len(counted) else (inf, inf)
    return Result(float(p50), float(p99), outcome.refused, outcome.lost)


def fewest(meets: Callable[[int], bool], least: int) -> int:
    """The fewest replicas, at least `least`, that meet the bound; more are taken to meet it too.

    ValueError: `_MOST_REPLICAS` do not.
    """
    high = least
    while not meets(high):
        if high >= _MOST_REPLICAS:
            raise ValueError(
                f"{high} replicas do not meet the bound; L(1) and decoding may exceed it"
            )
        least, high = high + 1, ceil(high * 1.25)
    while least < high:
        middle = (least + high) // 2
        least, high = (least, middle) if meets(middle) else (middle + 1, high)
    return high


def scenarios(replicas: int, arrivals: Seconds) -> Iterator[tuple[str, Seconds, list[Outage]]]:
    """What else is simulated: {name, arrivals, outages}; in the middle of the run."""
    middle = float(arrivals[len(arrivals) // 2])
    for share in (0.01, 0.1):
        gone = range(max(1, round(share * replicas)))
        if len(gone) < replicas:
            yield f"{share:.0%} fail", arrivals, [Outage(middle, middle + _RESTART_S, gone, True)]
    step = max(1, int(_DEPLOYED_AT_ONCE * replicas))
    starts = range(0, replicas, step)
    if step < replicas:
        steps = [
            Outage(
                middle + number * _RESTART_S,
                middle + (number + 1) * _RESTART_S,
                range(start, min(replicas, start + step)),
                False,
            )
            for number, start in enumerate(starts)
        ]
        yield "deployment", arrivals, steps
    lasts = float(arrivals[-1]) / 10
    yield "burst ×2", with_burst(arrivals, 2, middle, middle + lasts), []


def measured(
    model: Path, preset: str | None, image: bytes, threads: int, max_batch: int, engines: int = 1
) -> Hardware:
    """What this machine's CPU needs for a batch of n, with the decoding of n times `image`.

    Engine and decode threads share the cores, so decoding is no stage of its own: it makes batches
    longer. Several engines have an equal part of the threads each, and are measured one at a time.
    """
    threads //= engines
    classifier = load_classifier(model, overrides={"preset": preset})
    limits = ImageLimits(max_bytes=len(image), max_pixels=10**8)
    decode = partial(prepare_image, image, classifier.preprocessing, limits)
    pixels = decode().run()
    decode_s = min(_seconds(lambda: decode().run()) for _ in range(20))
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=max_batch, threads=threads)
    try:
        engine.warm_up()
        latency = measure(
            lambda n: _seconds(lambda: engine.run([pixels] * n)), max_batch, budget_s=30
        )
    finally:
        engine.close()
    seconds = (took + n * decode_s / threads for n, took in enumerate(latency.seconds, 1))
    return Hardware(tuple(seconds), decoders=threads * engines, engines=engines)


def _seconds(run: Callable[[], object]) -> float:
    began = perf_counter()
    run()
    return perf_counter() - began


def plan(
    hardware: Hardware,
    rate: float,
    p99_ms: float,
    requests: int,
    *,
    replicas: int | None = None,
    seed: int = 0,
) -> Mapping[str, tuple[int, Mapping[str, Result]]]:
    """For each balancer the fewest replicas, or those given, and the results by scenario."""
    arrivals = poisson(rate, requests, seed)
    least = max(1, ceil(rate / hardware.capacity))

    def run(name: str, replicas: int) -> Result:
        return result_of(simulate(hardware, replicas, arrivals, name, seed=seed))

    def meets(name: str, replicas: int) -> bool:
        result = run(name, replicas)
        return result.p99_ms <= p99_ms and not result.refused

    plans = {}
    for name in BALANCERS:
        count = replicas or fewest(partial(meets, name), least)
        results = {"steady": run(name, count)}
        for scenario, moments, outages in scenarios(count, arrivals):
            outcome = simulate(hardware, count, moments, name, outages, seed)
            results[scenario] = result_of(outcome)
        plans[name] = count, results
    return plans


def show(
    plans: Mapping[str, tuple[int, Mapping[str, Result]]], hardware: Hardware, rate: float
) -> Table:
    """A row for each balancer and scenario."""
    table = Table(box=None)
    for heading in (
        "balancer",
        "replicas",
        "load",
        "scenario",
        "p50 ms",
        "p99 ms",
        "refused",
        "lost",
    ):
        table.add_column(
            heading, justify="left" if heading in {"balancer", "scenario"} else "right"
        )
    for name, (replicas, results) in plans.items():
        load = f"{rate / replicas / hardware.capacity:.2f}"
        for scenario, result in results.items():
            first = scenario == "steady"
            table.add_row(
                *((name, str(replicas), load) if first else ("", "", "")),
                *(scenario, f"{result.p50_ms:.1f}", f"{result.p99_ms:.1f}"),
                *(str(result.refused), str(result.lost)),
            )
    return table


def plot(hardware: Hardware, rate: float, p99_ms: float, requests: int, file: Path) -> None:
    """p99 over replicas and their cost in cores, a line for each balancer."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  needs Matplotlib
    from matplotlib.figure import Figure  # noqa: PLC0415

    arrivals = poisson(rate, requests)
    least = rate / hardware.capacity
    counts = sorted({ceil(least * factor) for factor in (1.02, 1.05, 1.1, 1.2, 1.4, 1.7, 2, 3)})
    figure = Figure(figsize=(7, 4))
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    for name in BALANCERS:
        results = [result_of(simulate(hardware, n, arrivals, name)) for n in counts]
        panel.plot(counts, [result.p99_ms for result in results], marker="o", label=name)
    panel.axhline(p99_ms, color="grey", linestyle="dashed")
    panel.set(xlabel="replicas", ylabel="p99, ms", yscale="log")
    panel.legend()
    cost = hardware.decoders / rate * 1e3
    scales = (lambda n: np.multiply(n, cost), lambda each: np.divide(each, cost))
    cores = panel.secondary_xaxis("top", functions=scales)
    cores.set_xlabel("cores for 1,000 requests a second")
    figure.tight_layout()
    figure.savefig(file, dpi=100)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulation.plan",
        description="Find the fewest replicas for a rate and a p99.",
    )
    parser.add_argument("--rate", type=float, required=True, help="requests a second")
    parser.add_argument("--p99", type=float, required=True, help="bound in milliseconds")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, help="ONNX file to measure on this CPU")
    source.add_argument("--latency-ms", metavar="L1,L2,...", help="L(1..max_batch)")
    parser.add_argument("--preset", help="preprocessing of --model")
    parser.add_argument("--image", type=Path, help="image to decode with --model")
    parser.add_argument("--decode-ms", type=float, default=0.0, help="with --latency-ms")
    parser.add_argument("--cores", type=int, default=1, help="of a replica (%(default)s)")
    parser.add_argument("--engines", type=int, default=1, help="of a replica (%(default)s)")
    parser.add_argument("--max-batch", type=int, default=8, help="with --model (%(default)s)")
    parser.add_argument("--replicas", type=int, help="instead of the fewest")
    parser.add_argument("--requests", type=int, default=200_000, help="a run (%(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw p99 over replicas there")
    options = parser.parse_args(arguments)
    if options.model and not options.image:
        parser.error("--model needs --image, the image whose decoding is timed")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, plan and show."""
    options = parse_arguments(arguments)
    if options.model:
        image = options.image.read_bytes()
        sizes = options.cores, options.max_batch
        hardware = measured(options.model, options.preset, image, *sizes, options.engines)
    else:
        seconds = tuple(float(ms) / 1e3 for ms in options.latency_ms.split(","))
        decode_s, engines = options.decode_ms / 1e3, options.engines
        hardware = Hardware(seconds, decode_s, options.cores, engines=engines)
    console = Console(highlight=False, soft_wrap=True)
    latencies = ", ".join(f"{1e3 * each:.2f}" for each in hardware.seconds)
    console.print(
        f"L(n) {latencies} ms, decoding {1e3 * hardware.decode_s:.2f} ms: "
        f"{hardware.capacity:.0f} requests a second and replica"
    )
    bound = options.rate, options.p99, options.requests
    plans = plan(hardware, *bound, replicas=options.replicas)
    console.print(show(plans, hardware, options.rate))
    if options.plot:
        plot(hardware, options.rate, options.p99, options.requests, options.plot)
        console.print(str(options.plot))


if __name__ == "__main__":
    main()
