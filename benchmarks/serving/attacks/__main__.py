"""Measures an honest client while a hostile one attacks: `python -m benchmarks.serving.attacks`.

    python -m benchmarks.serving.attacks [--model FILE --preset NAME] [--connections 1,4,16]
                                   [--seconds N] [--only TEXT] [--record [FILE]] [-- OPTIONS]

Starts `convoy serve`, by default with a SqueezeNet whose weights are random. An honest client sends
photographs one after another with pauses, first alone, and then during each attack. An attack
repeats one request that costs the server much time or memory per byte. Each attack runs once for
each number of connections. The exit status is 0 only if all of these conditions hold:

- The honest client's p50 is at most 3 times its p50 without an attack, and its longest latency is
  at most 0.5 s. All answers to this client are right.
- The server's memory grows by at most 500 MB, and is freed within 5 s after the attack.

The limit of 500 MB follows from numbers in deploy/README.md: decoding a WebP of 25 megapixels takes
430 MB, and the process that decodes it takes another 40 MB. Run the command on an idle machine with
at least two cores.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, TemporaryFile

import onnx
from rich.console import Console
from rich.table import Table

from benchmarks.networks.light import light_network
from benchmarks.rows import RESULTS, add_record, append
from benchmarks.serving.attacks.attackers import (
    ATTACKED,
    Attack,
    attacks_on,
    under_attack,
)
from benchmarks.serving.overhead import jpeg_of, where
from benchmarks.serving.served import logged as serving
from benchmarks.serving.soak import look_at, resident_bytes
from loadtest.client import Client
from loadtest.images import ImageFile
from loadtest.journal import OK

RECORD = RESULTS / "attacks.jsonl"

MOST_P50 = 3.0  # times the p50 without an attack
MOST_S = 0.5
MOST_GROWTH = 500_000_000  # bytes
BACK_S = 5.0  # after an attack
MOST_KEPT = 16_000_000  # bytes that need not be freed
CONNECTIONS = (1, 4, 16)

_IMAGES = (60_000, 80_000, 100_000)  # bytes
_PAUSE_S = 0.02
_FIRST_S = 1.0  # in which an attack takes effect
_LOOK_S = 0.5  # between two readings of the memory


@dataclass
class Honest:
    """Holds the latencies of an honest client's requests, and the server's memory meanwhile."""

    name: str
    connections: int
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # how other requests ended
    grown: int = 0  # bytes
    kept: int = 0  # bytes of `grown` that were not freed later
    attacks: Mapping[str, int] = field(default_factory=dict)  # by status

    @property
    def p50(self) -> float:
        """Return the median latency, in seconds."""
        return median(self.seconds) if self.seconds else float("inf")

    @property
    def worst(self) -> float:
        """Return the longest latency, in seconds."""
        return max(self.seconds, default=float("inf"))


def broken(seen: Honest, alone: Honest) -> list[str]:
    """Return a sentence for each limit that was exceeded during an attack."""
    what = f"{seen.name} on {seen.connections} connections"
    found = [f"{what}: an honest request ended with {kind}" for kind in sorted(set(seen.wrong))]
    if seen.p50 > MOST_P50 * alone.p50:
        found.append(
            f"{what}: p50 was {seen.p50 * 1e3:.0f} ms, {seen.p50 / alone.p50:.1f} times its value"
            " without an attack"
        )
    if seen.worst > MOST_S:
        found.append(f"{what}: the longest latency was {seen.worst * 1e3:.0f} ms")
    if seen.grown > MOST_GROWTH:
        found.append(f"{what}: memory grew by {seen.grown / 1e6:.0f} MB")
    if seen.kept > MOST_KEPT:
        found.append(
            f"{what}: {seen.kept / 1e6:.0f} MB were not freed within {BACK_S:g} s after the attack"
        )
    if not seen.attacks:
        found.append(f"{what}: the attack did not take place")
    return found


async def _ask(client: Client, pid: int, before: int, seconds: float, seen: Honest) -> None:
    """Send the honest client's requests for `seconds`, and record latencies and memory in `seen`.
    `before` is the server's memory in bytes before these requests."""
    end, number = time.monotonic() + seconds, 0
    while (started := time.monotonic()) < end:
        outcome = await client.send(number)
        number += 1
        if outcome.kind == OK:
            seen.seconds.append(time.monotonic() - started)
        else:
            seen.wrong.append(outcome.kind)
        seen.grown = max(seen.grown, look_at(pid).resident_bytes - before)
        await asyncio.sleep(_PAUSE_S)


async def _back(pid: int, before: int) -> int:
    """After an attack, wait until the server's main process has freed nearly all the memory that it
    took, but at most BACK_S seconds. Return the bytes that are still not freed. Processes that
    decode large images are not counted, because they keep memory for the next image."""
    for _ in range(round(BACK_S / _LOOK_S)):
        await asyncio.sleep(_LOOK_S)
        kept = resident_bytes(pid) - before
        if kept <= MOST_KEPT:
            break
    return max(0, kept)


async def measure(
    url: str,
    grpc: str,
    pid: int,
    images: Sequence[ImageFile],
    attacks: Sequence[Attack],
    connections: Sequence[int],
    seconds: float,
) -> tuple[Honest, list[Honest]]:
    """Measure an honest client alone and during each attack, and return the results. Each attack
    runs once for each number of connections."""
    alone, found = Honest("nobody", 0), []
    async with Client(url, images) as client:
        await client.learn()
        await _ask(client, pid, 0, _FIRST_S, Honest("warming up", 0))
        await _ask(client, pid, look_at(pid).resident_bytes, seconds, alone)
        for attack in attacks:
            for count in connections:
                seen, before = Honest(attack.name, count), look_at(pid).resident_bytes
                own = resident_bytes(pid)
                async with under_attack(url, grpc, [attack], count) as attackers:
                    await asyncio.sleep(_FIRST_S)
                    await _ask(client, pid, before, seconds, seen)
                seen.attacks = dict(attackers.statuses)
                found.append(seen)
                seen.kept = await _back(pid, own)
    return alone, found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return 0 if no attack exceeds a limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.attacks")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--preset", default="imagenet")
    parser.add_argument("--connections", default=",".join(map(str, CONNECTIONS)))
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="time for each attack (%(default)s)"
    )
    parser.add_argument("--only", default="", help="only attacks whose names contain this text")
    add_record(parser, RECORD)
    parser.add_argument("serve", nargs="*", help="arguments for `convoy serve`")
    options = parser.parse_args(arguments)
    connections = [int(count) for count in options.connections.split(",")]
    images = [ImageFile(f"{size} bytes", jpeg_of(size), "image/jpeg") for size in _IMAGES]
    with TemporaryDirectory() as folder, TemporaryFile("w+") as log:
        model = options.model
        if model is None:
            model = Path(folder) / "squeezenet.onnx"
            onnx.save(light_network("squeezenet"), model)
        serve = [str(model), "--preset", options.preset, "--device", "cpu", *ATTACKED]
        with serving([*serve, *options.serve], log) as (process, url, grpc):
            every = attacks_on(url, by_grpc=bool(grpc))
            attacks = [attack for attack in every if options.only in attack.name]
            alone, found = asyncio.run(
                measure(url, grpc, process.pid, images, attacks, connections, options.seconds)
            )
    wrong = [line for seen in found for line in broken(seen, alone)]
    sizes = {attack.name: len(attack.body) for attack in attacks}
    _show(Console(), alone, found, sizes, wrong)
    row = _row(alone, found, sizes, wrong)
    if options.record:
        append(options.record, [row])
    return 1 if wrong else 0


def _row(
    alone: Honest, found: Sequence[Honest], sizes: Mapping[str, int], wrong: Sequence[str]
) -> Mapping[str, object]:
    def told(seen: Honest) -> Mapping[str, object]:
        row = asdict(seen)
        answers = len(row.pop("seconds"))
        return {
            **row,
            "answers": answers,
            "p50": seen.p50,
            "worst": seen.worst,
            "bytes": sizes.get(seen.name, 0),
        }

    return {
        **where("uvicorn", "uvloop", "httptools", "pillow", "onnxruntime"),
        "alone": told(alone),
        "attacked": [told(seen) for seen in found],
        "broken": list(wrong),
    }


def _show(
    console: Console,
    alone: Honest,
    found: Sequence[Honest],
    sizes: Mapping[str, int],
    wrong: Sequence[str],
) -> None:
    table = Table(title=f"an honest client, p50 without attack {alone.p50 * 1e3:.1f} ms")
    for column in (
        "beside",
        "kB",
        "connections",
        "p50 ms",
        "worst ms",
        "grown MB",
        "kept MB",
        "attacks",
    ):
        table.add_column(column)
    for seen in (alone, *found):
        table.add_row(
            seen.name,
            f"{sizes.get(seen.name, 0) / 1e3:.1f}",
            str(seen.connections),
            f"{seen.p50 * 1e3:.1f}",
            f"{seen.worst * 1e3:.0f}",
            f"{seen.grown / 1e6:.0f}",
            f"{seen.kept / 1e6:.0f}",
            ", ".join(f"{status}: {n}" for status, n in sorted(seen.attacks.items())),
        )
    console.print(table)
    for line in wrong:
        console.print(f"[bold red]broken[/]: {line}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
