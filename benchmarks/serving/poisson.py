"""A real network on the CPU under Poisson load: `python -m benchmarks.serving.poisson`.

    python -m benchmarks.serving.poisson [--model FILE] [--share S] [--seconds N] [--threads N]
                                 [--server-cores LIST --client-cores LIST] [--json FILE] [--record]

A `convoy serve` of its own is asked by `convoy loadtest`, one after another:

1. one client alone: L(1) and decoding, p50s of the server's own account (compute, decode);
2. 8 and 16 clients: the better throughput is the capacity, decoding and HTTP included;
3. Poisson arrivals at 80% of it, a load test long enough for a p99: the promise is p99 within
   3 L(1) + decode, from the moment at which a request was to be sent;
4. the same with that bound as the requests' deadline: shares in time and refused;
5. 16 clients again: at 80% of capacity, a machine that has become 10% slower doubles its p99, and
   the row should show that.

For comparison, a model: a queue (p99 of Poisson arrivals served in order, each in the time of a
request at capacity; and the share in time if all others were refused on arrival). Where batches
make images no cheaper, no policy that answers all requests does much better than the queue.
Client and server share the machine unless each is given cores of its own.
"""

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

from benchmarks.networks.light import light_network
from benchmarks.rows import RESULTS, ROOT, append, commit, now, versions
from benchmarks.serving.overhead import jpeg_of
from benchmarks.serving.served import CONVOY, served_on_cpu
from service.engine.cores import cpu_model

RECORD = RESULTS / "poisson.jsonl"
PACKAGES = ("onnxruntime", "numpy", "pillow", "uvicorn", "uvloop", "aiohttp")

BOUND_L1 = 3.0
SHARE = 0.8
CLIENTS = (8, 16)

# Of the images that are made up, each 640x480.
_BYTES = (60_000, 80_000, 100_000)


# Of the queue's model.
_CUSTOMERS = 200_000

Load = Callable[..., dict[str, Any]]
"""`convoy loadtest` with these arguments: a row of its JSON."""


@dataclass(frozen=True)
class Measured:
    """Milliseconds and requests a second."""

    l1_ms: float
    decode_ms: float
    capacity: float
    batch_ms: Mapping[int, float]  # mean of each size that ran
    rate: float
    latency_ms: Mapping[str, float]  # p50, p90, p99, of those answered
    answers: int
    errors: Mapping[str, int]
    in_time: float  # share, with the bound as a deadline
    refused: float  # share, likewise
    queue_p99_ms: float  # of a queue that serves at capacity, in order
    capacity_after: float  # at the end, of the most clients
    queue_in_time: float  # of it, with the bound as a deadline and perfect knowledge

    @property
    def bound_ms(self) -> float:
        """The bound on p99."""
        return BOUND_L1 * self.l1_ms + self.decode_ms

    @property
    def met(self) -> bool:
        """Whether p99 is within the bound and all requests were answered."""
        return self.latency_ms["p99"] <= self.bound_ms and not self.errors


def queue_p99(utilisation: float, servers: int = 1, seed: int = 0) -> float:
    """p99 from arrival to answer, in service times, of Poisson arrivals served in order.

    In order and taking equally long, every server gets each so-many-th arrival.
    """
    if utilisation >= 1:
        return float("inf")
    draw = np.random.default_rng(seed)
    arrivals = np.cumsum(draw.exponential(1 / (utilisation * servers), _CUSTOMERS))
    latencies = []
    for server in range(servers):
        moments = arrivals[server::servers]
        served = np.arange(len(moments))
        # Done is the latest arrival so far plus one service for it and each that came since.
        done = np.maximum.accumulate(moments - served) + served + 1
        latencies.append((done - moments)[len(moments) // 20 :])
    return float(np.quantile(np.concatenate(latencies), 0.99))


def queue_in_time(utilisation: float, bound: float, seed: int = 0) -> float:
    """Share of Poisson arrivals done within `bound` service times, all others refused as they come.

    In order, equally long and equally urgent: to refuse only who cannot make it is the best.
    """
    draw = np.random.default_rng(seed)
    free = made = 0.0
    for moment in np.cumsum(draw.exponential(1 / utilisation, _CUSTOMERS)):
        done = max(moment, free) + 1
        if done <= moment + bound:
            free = done
            made += 1
    return made / _CUSTOMERS


def measure(load: Load, batches: Callable[[], Mapping[int, float]], share: float) -> Measured:
    """`load` asks the server, `batches` tells the mean milliseconds of each size that ran."""
    alone = load("--clients", "1")
    l1_ms, decode_ms = (alone["phases_ms"][phase]["p50"] for phase in ("compute", "decode"))
    capacity = max(load("--clients", str(clients))["throughput"] for clients in CLIENTS)
    batch_ms = dict(batches())
    rate = share * capacity
    found = load("--rate", f"{rate:.3f}")
    bound_ms = BOUND_L1 * l1_ms + decode_ms
    hurried = load("--rate", f"{rate:.3f}", "--deadline", f"{bound_ms:.3f}ms")
    after = load("--clients", str(max(CLIENTS)))["throughput"]
    return Measured(
        l1_ms=l1_ms,
        decode_ms=decode_ms,
        capacity=capacity,
        capacity_after=after,
        batch_ms=batch_ms,
        rate=rate,
        latency_ms={q: found["latency_ms"][q] or float("inf") for q in ("p50", "p90", "p99")},
        answers=found["answered"],
        errors=found["errors"],
        in_time=(hurried["answered"] - hurried["late"]) / hurried["requests"],
        refused=hurried["refused"] / hurried["requests"],
        queue_p99_ms=1e3 / capacity * queue_p99(share),
        queue_in_time=queue_in_time(share, bound_ms / 1e3 * capacity),
    )


def show(measured: Measured, share: float, console: Console) -> None:
    """Return the measurements, and whether the promise is kept."""
    m = measured
    table = Table(box=None, show_header=False)
    table.add_row("L(1), p50", f"{m.l1_ms:.2f} ms")
    table.add_row("decode, p50", f"{m.decode_ms:.2f} ms")
    for n, took in sorted(m.batch_ms.items()):
        table.add_row(f"batch of {n}, mean", f"{took:.2f} ms, {took / n:.2f} an image")
    table.add_row("capacity", f"{m.capacity:.1f} requests/s, {m.capacity_after:.1f} afterwards")
    table.add_row(f"Poisson at {share:.0%}", f"{m.rate:.1f} requests/s, {m.answers} answers")
    for q, value in m.latency_ms.items():
        table.add_row(q, f"{value:.2f} ms")
    if m.errors:
        table.add_row("errors", ", ".join(f"{kind} x{n}" for kind, n in m.errors.items()))
    table.add_row("with that deadline", f"{m.in_time:.1%} in time, {m.refused:.1%} refused")
    table.add_row(
        "a queue by itself",
        f"p99 {m.queue_p99_ms:.2f} ms; {m.queue_in_time:.1%} in time with that deadline",
    )
    console.print(table)
    console.print(
        f"{'met' if m.met else 'NOT MET'}: p99 {m.latency_ms['p99']:.2f} ms at {share:.0%} of "
        f"capacity (promised: at most {BOUND_L1:g} L(1) + decode = {m.bound_ms:.2f} ms)"
    )


# --- the processes -------------------------------------------------------------------------------


@contextmanager
def on_cores(cores: Sequence[int] | None) -> Iterator[None]:
    """Run what is started inside on these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def serving(
    model: Path, preset: str | None, threads: int, cores: Sequence[int] | None
) -> Iterator[str]:
    """The address of a `convoy serve` on the CPU, and on these cores."""
    with ExitStack() as stack:
        with on_cores(cores):
            served = served_on_cpu(model, preset, ("--threads", str(threads)))
            url = stack.enter_context(served)
        yield url


def load_of(url: str, images: Path, seconds: float, cores: Sequence[int] | None) -> Load:
    """`convoy loadtest` against `url`; closed loops, whose numbers settle sooner, are shorter."""

    def load(*arguments: str) -> dict[str, Any]:
        lasts = seconds if "--rate" in arguments else max(1.0, seconds / 4)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "loadtest.json"
            command = [*CONVOY, "loadtest", url, *arguments, "--images", str(images)]
            command += ["--duration", f"{lasts:g}s", "--warmup", f"{min(2.0, lasts / 4):g}s"]
            with on_cores(cores):
                # Errors are told in the row, and are not the end of the measurement.
                subprocess.run(
                    [*command, "--max-errors", "1", "--json", str(file)],
                    cwd=ROOT,
                    stdout=subprocess.DEVNULL,
                    check=True,
                )
            (row,) = json.loads(file.read_text())["loads"]
        return dict(row)

    return load


def batches_of(url: str) -> Callable[[], Mapping[int, float]]:
    """Return the statistics of each batch size, by the extension of V2."""

    def batches() -> Mapping[int, float]:
        with urlopen(f"{url}/v2/models/stats", timeout=10) as response:
            (model,) = json.load(response)["model_stats"]
        return {
            each["batch_size"]: each["compute_infer"]["ns"] / each["compute_infer"]["count"] / 1e6
            for each in model["batch_stats"]
        }

    return batches


def _images(folder: Path) -> Path:
    folder.mkdir()
    for size in _BYTES:
        (folder / f"{size}.jpeg").write_bytes(jpeg_of(size))
    return folder


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.poisson",
        description="Hold a real network on the CPU to its p99 under Poisson load.",
    )

    def cores(text: str) -> list[int]:
        return [int(core) for core in text.split(",")]

    parser.add_argument("--model", type=Path, help="ONNX file (SqueezeNet with seeded weights)")
    parser.add_argument("--preset", help="what it expects of its pixels (its model.toml; imagenet)")
    parser.add_argument("--images", type=Path, help="folder of images (JPEGs of 640x480)")
    parser.add_argument("--share", type=float, default=SHARE, help="of capacity (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="of each load (%(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="of the server; 0: cores")
    parser.add_argument("--server-cores", type=cores, metavar="0,1", help="that it runs on (all)")
    parser.add_argument("--client-cores", type=cores, metavar="0,1", help="likewise (all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument(
        "--record", action="store_true", help=f"append them to {RECORD.relative_to(ROOT)}"
    )
    return parser.parse_args(arguments)


def main(command_line: Sequence[str] | None = None) -> None:
    """Measure, show, write down what was asked for; exit status 1 where it is not met."""
    arguments = parse_arguments(command_line)
    all_cores = sorted(os.sched_getaffinity(0))
    stands = {
        "date": now(),
        "commit": commit(),
        "cpu": cpu_model(),
        **versions(*PACKAGES),
        "load_average": round(os.getloadavg()[0], 2),
        "model": arguments.model.stem if arguments.model else "squeezenet",
        "share": arguments.share,
        "seconds": arguments.seconds,
        "threads": arguments.threads,
        "server_cores": len(arguments.server_cores or all_cores),
        "client_cores": len(arguments.client_cores or all_cores),
        "shared_cores": len(
            set(arguments.server_cores or all_cores) & set(arguments.client_cores or all_cores)
        ),
    }
    with tempfile.TemporaryDirectory() as folder:
        model, preset = arguments.model, arguments.preset
        if model is None:
            model = Path(folder) / "squeezenet.onnx"
            onnx.save(light_network("squeezenet"), model)
            preset = preset or "imagenet"
        images = arguments.images or _images(Path(folder) / "images")
        with serving(model, preset, arguments.threads, arguments.server_cores) as url:
            load = load_of(url, images, arguments.seconds, arguments.client_cores)
            measured = measure(load, batches_of(url), arguments.share)
    show(measured, arguments.share, Console(highlight=False, soft_wrap=True))
    row = {**stands, **asdict(measured), "bound_ms": measured.bound_ms, "met": measured.met}
    if arguments.json:
        arguments.json.write_text(json.dumps(row, indent=2) + "\n")
    if arguments.record:
        append(RECORD, [row])
    if not measured.met:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
