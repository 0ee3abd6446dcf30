"""Puts load on a server for a long time, while some clients disconnect early or send invalid bytes.

    python -m benchmarks.serving.soak [--seconds N] [--rate R] [--attackers] [--swaps S]
                                      [--record [FILE]] [-- OPTIONS]

Starts `convoy serve`, and measures its capacity with eight clients that send requests without
pause. Then requests arrive as a Poisson process, at 80% of this capacity. Every answer is compared
with the answer that the same image got when it was sent alone. This comparison detects answers that
belong to another image. A tenth of the clients disconnect early: in the middle of the headers, the
body or the answer, or while they wait. Some clients send noise, and a few send images of ten
megapixels. The exit status is 0 only if all of the following holds. No answer was lost, belonged to
another image or had a status 5xx, and the server's own counters agree. Memory, threads and open
files have not grown. SIGTERM ends the server with status 0.

With `--swaps S` the model changes every S seconds. Half of the requests are V2 requests,
alternately over HTTP and gRPC. Each answer names a version, and must have this version's scores or
embedding. Every third version has wrong scores, and the server must refuse it. The load is two
fifths of the capacity, because reading, converting and testing a version keeps a core busy for
seconds.

With `--attackers` a hostile client sends all kinds of the most expensive requests at once, and the
load is a fifth of the capacity. The p50 is also measured before the attack, for a tenth of the
time. The p50 under attack must be at most 3 times as high.
"""

import argparse
import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, TemporaryFile

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.rows import RESULTS, add_record, append
from benchmarks.serving.attacks.attackers import ATTACKED, Attack, attacks_on, under_attack
from benchmarks.serving.attacks.ways import UNANSWERED
from benchmarks.serving.overhead import where
from benchmarks.serving.served import end, last_lines
from benchmarks.serving.served import logged as serving
from benchmarks.serving.soak_clients import LEFT, NOISE_REFUSED, Rude, enlarged, p50_ms, told
from benchmarks.serving.swaps import (
    Clients,
    Rows,
    Swaps,
    first_version,
    serve_options,
    swapping,
    vectors_of,
)
from loadtest.client import Client
from loadtest.clock import precise_clock
from loadtest.images import SAMPLES, ImageFile, load_images
from loadtest.journal import NOT_SENT, OK, TOO_LATE, Journal, Outcome
from loadtest.loops import Arrivals, arrivals, closed_loop, open_loop

RECORD = RESULTS / "soak.jsonl"

LOAD = 0.8  # share of the capacity
ATTACKED_LOAD, SWAPPED_LOAD = 0.2, 0.4
MOST_P50 = 3.0  # times the p50 without attackers
LEAVING = 0.1  # share of the clients
NOISY = 0.02
LARGE = 0.001

_CLIENTS = 8
_CAPACITY_S = 3.0
_LARGE_S = 30.0  # within which a large image must be answered
_MAX_OUTSTANDING = 1000
_QUEUE_FULL = "429"

# The outcomes in a healthy run. With any other outcome, a request was lost or answered wrongly.
_GOOD = frozenset({OK, _QUEUE_FULL, LEFT, NOISE_REFUSED, NOT_SENT, TOO_LATE})

# The kinds of this many clients are drawn beforehand. The number is a prime, so that clients of
# every kind send every image.
_KINDS = 9973

# The number of V2 requests before the load.
_FIRST = 2

_GRPC_FILES = 4

# One of this many versions is bad.
_BAD_EVERY = 3

_SETTLE_S = 0.2
_FIRST_ATTACKS_S = 2.0
_SETTLE_LOOKS = 100

# If a larger share of the requests could not be sent, the load was lower than intended.
_MOST_NOT_SENT = 0.05


@dataclass(frozen=True)
class Process:
    """The memory, threads and open files of the server and its child processes."""

    resident_bytes: int
    threads: int
    files: int


@dataclass
class Run:
    """Records the results of a run: outcomes of requests, and the server's counters and
    resources."""

    seconds: float
    rate: float = 0.0
    capacity: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    asked_before: int = 0  # good answers before the load
    counted: dict[str, int] = field(default_factory=dict)  # the server's counts, by status
    inside: float = 0.0  # images in the server at the end
    memory: list[int] = field(default_factory=list)  # bytes, once a second
    before: Process | None = None
    after: Process | None = None
    exit_status: int | None = None
    attacks: Counter[str] = field(default_factory=Counter)  # by status
    p50_alone_ms: float = 0.0
    p50_ms: float = 0.0
    swap_every_s: float = 0.0
    swaps: int = 0
    refused_swaps: int = 0  # bad versions that were refused
    failed_swaps: list[str] = field(default_factory=list)
    versions: int = 0  # number of versions that gave answers
    embeddings: int = 0  # right embeddings

    @property
    def kept_files(self) -> int:
        """Return by how many the open files may grow during the run. grpcio never closes some
        files: one for each of the calls that waited at the same time."""
        return _GRPC_FILES if self.swap_every_s else 0

    @property
    def growth(self) -> float:
        """Return by which fraction the memory grew between the second tenth and the last tenth of
        the run."""
        tenth = max(1, len(self.memory) // 10)
        if len(self.memory) < 3:
            return 0.0
        return median(self.memory[-tenth:]) / median(self.memory[tenth : 2 * tenth + 1]) - 1


def broken(run: Run, most_growth: float) -> list[str]:
    """Return a sentence for each reason why the run counts as failed."""
    found = [
        f"{count} requests ended with: {kind}"
        for kind, count in run.outcomes.items()
        if kind not in _GOOD
    ]
    sent = run.outcomes.total()
    unsent = run.outcomes[NOT_SENT] + run.outcomes[TOO_LATE]
    if unsent > _MOST_NOT_SENT * sent:
        found.append(f"{unsent} of {sent} requests could not be sent: the machine is too busy")
    least = run.outcomes[OK] + run.asked_before + run.attacks["200"]
    left = run.outcomes[LEFT] + run.attacks[UNANSWERED]
    if not least <= run.counted.get("200", 0) <= least + left:
        found.append(
            f"the server counted {run.counted.get('200', 0)} answers, but {least} arrived, and "
            f"{left} clients did not wait for their answers"
        )
    found += [
        f"the server counted {count} answers with status {status}"
        for status, count in run.counted.items()
        if status.startswith("5") and count > run.attacks[status]
    ]
    if run.p50_alone_ms and run.p50_ms > MOST_P50 * run.p50_alone_ms:
        found.append(
            f"p50 was {run.p50_ms:.1f} ms with attackers and {run.p50_alone_ms:.1f} ms without"
        )
    found += [f"a swap failed: {reason}" for reason in run.failed_swaps]
    if run.swaps > _BAD_EVERY and not run.refused_swaps:
        found.append(f"{run.swaps} swaps, but no bad version was refused")
    if run.swap_every_s and not run.embeddings:
        found.append("no embedding was answered")
    if run.swap_every_s and run.versions < min(2, run.swaps):
        found.append(f"{run.swaps} swaps, but only {run.versions} versions gave answers")
    if run.inside:
        found.append(f"{run.inside:.0f} images are still in the server")
    if run.growth > most_growth:
        found.append(f"memory grew by {run.growth:.1%}, more than {most_growth:.1%}")
    if run.before and run.after:
        if run.after.threads > run.before.threads:
            found.append(f"threads grew from {run.before.threads} to {run.after.threads}")
        if run.after.files > run.before.files + run.kept_files:
            found.append(f"open files grew from {run.before.files} to {run.after.files}")
    if run.exit_status not in (0, None):
        found.append(f"SIGTERM ended the server with status {run.exit_status}")
    return found


# --- the server ----------------------------------------------------------------------------------


def resident_bytes(pid: int) -> int:
    """Return the memory of a process without its children, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def look_at(pid: int) -> Process:
    """Read from /proc how much memory and how many threads and open files a process and its
    children use."""
    resident = threads = files = 0
    for member in _family(pid):
        folder = Path(f"/proc/{member}")
        tasks = list((folder / "task").iterdir())
        resident += resident_bytes(member)
        threads += len(tasks)
        files += len(list((folder / "fd").iterdir()))
    return Process(resident, threads, files)


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _family(int(child))


def counters(exposition: str) -> tuple[dict[str, int], float]:
    """Read two values from the server's /metrics: the number of requests by status, and the number
    of images in progress."""
    statuses: Counter[str] = Counter()
    inside = 0.0
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name == "convoy_requests_total":
                statuses[sample.labels["status"]] += int(sample.value)
            elif sample.name == "convoy_images_inside":
                inside += sample.value
    return dict(statuses), inside


@dataclass(frozen=True)
class ModelUnderSwaps:
    """A model that changes during the run: its folder, and the clients that check the answers of
    its versions."""

    clients: Clients
    folder: Path

    @asynccontextmanager
    async def running(self, every_s: float) -> AsyncIterator[Swaps]:
        """Change the model at regular intervals within this block."""
        async with (
            self.clients as clients,
            swapping(clients, self.folder, every_s, bad=_BAD_EVERY) as done,
        ):
            yield done


# --- the load ------------------------------------------------------------------------------------


async def soak(
    url: str,
    images: Sequence[ImageFile],
    run: Run,
    *,
    large: Sequence[ImageFile] = (),
    pid: int | None = None,
    seed: int = 0,
    attacks: Sequence[Attack] = (),
    grpc: str = "",
    swapped: ModelUnderSwaps | None = None,
    progress: Progress | None = None,
) -> None:
    """Put load on the server at `url`, and record the results in `run`. A few requests have one of
    the `large` images. If `swapped` is given, its model changes meanwhile, and its clients send
    half of the requests."""
    journal = Journal()
    rude = Rude(url, images, seed)
    kinds = np.random.default_rng(seed).random(_KINDS)
    async with Client(url, large, timeout_s=_LARGE_S) as burden:
        await burden.learn()  # this starts the processes that decode large images
    if swapped:
        async with swapped.clients as versions:  # this starts grpcio's threads
            for number in range(_FIRST):
                assert (await versions.send(number)).kind == OK
    async with under_attack(url, grpc, attacks, 1) as first:  # this starts all threads
        await asyncio.sleep(_FIRST_ATTACKS_S if attacks else 0)
    await asyncio.sleep(_SETTLE_S)
    run.before = look_at(pid) if pid else None

    async with (
        Client(url, images) as client,
        Client(url, large, timeout_s=_LARGE_S) as burden,
    ):
        for learner in (client, burden):
            await learner.learn()
        with precise_clock() as clock:
            warm = Journal()
            begin = clock.now()
            seconds = min(_CAPACITY_S, run.seconds / 4)
            await closed_loop(_CLIENTS, begin + seconds, client.send, warm, clock)
            run.capacity = warm.good / (clock.now() - begin)
            run.asked_before = sum(
                (warm.good, len(images), 2 * len(large), _FIRST if swapped else 0)
            )
            load = ATTACKED_LOAD if attacks else SWAPPED_LOAD if swapped else LOAD
            run.rate = run.rate or load * run.capacity
            if attacks:
                alone = Journal()
                moments = clock.now() + arrivals(Arrivals.POISSON, run.rate, run.seconds / 10, seed)
                await open_loop(moments, client.send, alone, clock, _MAX_OUTSTANDING)
                run.asked_before += alone.good
                run.p50_alone_ms = p50_ms(alone)

            async def send(number: int) -> Outcome:
                kind = kinds[number % _KINDS]
                if kind < LEAVING:
                    return await told(rude.leave(number))
                if kind < LEAVING + NOISY:
                    return await told(rude.disturb(number))
                if large and kind > 1 - LARGE:
                    return await burden.send(number)
                if swapped and number % 2:
                    return await swapped.clients.send(number // 2)
                return await client.send(number)

            watching = asyncio.create_task(_watch(run, pid, progress))
            moments = clock.now() + arrivals(Arrivals.POISSON, run.rate, run.seconds, seed)
            async with AsyncExitStack() as beside:
                attackers = await beside.enter_async_context(under_attack(url, grpc, attacks, 1))
                if swapped:
                    changes = await beside.enter_async_context(swapped.running(run.swap_every_s))
                await open_loop(moments, send, journal, clock, _MAX_OUTSTANDING)
            run.attacks = first.statuses + attackers.statuses
            if swapped:
                _count_swaps(run, changes, swapped.clients)
            watching.cancel()
    run.p50_ms = p50_ms(journal)
    columns = journal.columns()
    run.outcomes = Counter(columns.kinds[kind] for kind in columns.kind)


def _count_swaps(run: Run, changes: Swaps, clients: Clients) -> None:
    run.swaps, run.failed_swaps = len(changes.took_s), changes.failures
    run.refused_swaps = changes.refused
    run.versions, run.embeddings = len(clients.versions), clients.embeddings


async def _watch(run: Run, pid: int | None, progress: Progress | None) -> None:
    task = progress.add_task("soak", total=run.seconds) if progress else None
    while True:
        if pid:
            run.memory.append(look_at(pid).resident_bytes)
        await asyncio.sleep(1)
        if progress and task is not None:
            progress.advance(task, 1)


async def settle(url: str, run: Run, pid: int) -> None:
    """Wait until the server has closed all connections. Record the server's counts and resources in
    `run`."""
    async with Client(url, []) as client:
        for _ in range(_SETTLE_LOOKS):  # afterwards, `broken` reports what is still open
            run.counted, run.inside = counters(await client.metrics() or "")
            run.after = look_at(pid)
            # The connection of this client is not counted.
            run.after = Process(run.after.resident_bytes, run.after.threads, run.after.files - 1)
            quiet = run.before is None or run.after.files <= run.before.files + run.kept_files
            if quiet and not run.inside:
                return
            await asyncio.sleep(_SETTLE_S)


# --- the command ---------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return 0 if the run found no problem."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.soak")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument(
        "--rate", type=float, default=0.0, help="requests per second; 0: 80%% of the capacity"
    )
    parser.add_argument(
        "--most-growth", type=float, default=0.02, help="allowed growth of memory, as a share"
    )
    parser.add_argument("--attackers", action="store_true", help="add a hostile client")
    parser.add_argument(
        "--swaps", type=float, default=0.0, help="seconds between swaps of the model; 0: none"
    )
    parser.add_argument("--images", type=Path, default=SAMPLES)
    add_record(parser, RECORD)
    parser.add_argument("serve", nargs="*", help="arguments for `convoy serve`")
    options = parser.parse_args(arguments)

    run = Run(options.seconds, rate=options.rate, swap_every_s=options.swaps)
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console
    )
    images = load_images(options.images)
    large = enlarged(images)
    with TemporaryFile("w+") as log, TemporaryDirectory() as name:
        folder, serve, expected = Path(name), options.serve, None
        vectors: Rows = ()
        if options.swaps:
            expected = first_version(folder, images)
            vectors = vectors_of(folder, images)
            serve = [*serve_options(folder), *serve]
        elif options.attackers:
            serve = [*serve, *ATTACKED]
        with serving(serve, log) as (process, url, grpc):
            with bar:
                attacks = attacks_on(url, by_grpc=True) if options.attackers else ()
                swapped = (
                    ModelUnderSwaps(Clients(url, grpc, images, expected, vectors), folder)
                    if expected
                    else None
                )
                load = soak(
                    *(url, images, run),
                    large=large,
                    pid=process.pid,
                    attacks=attacks,
                    grpc=grpc,
                    swapped=swapped,
                    progress=bar,
                )
                asyncio.run(load)
            asyncio.run(settle(url, run, process.pid))
            run.exit_status = end(process)
        wrong = broken(run, options.most_growth)
        _show(Console(), run, wrong)
        if wrong:
            console.print(last_lines(log), highlight=False, markup=False)
    row = as_row(run, wrong)
    if options.record:
        append(options.record, [row])
    return 1 if wrong else 0


def as_row(run: Run, wrong: Sequence[str]) -> Mapping[str, object]:
    """Return the row to record."""
    seen = asdict(run)
    memory = seen.pop("memory")
    return {
        **where("uvicorn", "uvloop", "httptools", "aiohttp", "onnxruntime"),
        **seen,
        "outcomes": dict(run.outcomes),
        "memory_growth": run.growth,
        "memory_mb": [round(memory[0] / 1e6, 1), round(memory[-1] / 1e6, 1)] if memory else [],
        "broken": list(wrong),
    }


def _show(console: Console, run: Run, wrong: Sequence[str]) -> None:
    table = Table(title=f"{run.seconds:.0f} s at {run.rate:.0f} of {run.capacity:.0f} requests/s")
    table.add_column("requests")
    table.add_column("", justify="right")
    for kind, count in run.outcomes.most_common():
        table.add_row(kind, str(count))
    table.add_section()
    if run.attacks:
        table.add_row("attacks", ", ".join(f"{k}: {n}" for k, n in sorted(run.attacks.items())))
        table.add_row("p50 without, with", f"{run.p50_alone_ms:.1f}, {run.p50_ms:.1f} ms")
    table.add_row("memory grew by", f"{run.growth:.2%}")
    if run.before and run.after:
        table.add_row("threads", f"{run.before.threads} → {run.after.threads}")
        table.add_row("open files", f"{run.before.files} → {run.after.files}")
    table.add_row("exit status", str(run.exit_status))
    console.print(table)
    for line in wrong:
        console.print(f"[bold red]broken[/]: {line}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
