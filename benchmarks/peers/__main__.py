"""Compares Convoy with Triton, mosec, LitServe, BentoML and Ray Serve at the same work.

    python -m benchmarks.peers [--quick] [--seconds N] [--rounds N] [--record [FILE]]
    python -m benchmarks.peers --readme

Each peer is installed from the package index into an environment of its own, once. All do four
works: a no-op (a JPEG is read and not decoded, 1000 scores, the five likeliest), the built-in
digits through ONNX Runtime, decoding included, SqueezeNet, and SqueezeNet in INT8. Each peer is
tried in several settings and measured in the best. Every server's answers, and whether its
conditions are those of the others, are checked before it is timed.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console

from benchmarks.environments import Environment, NotInstalledError, environment, needed_by, size_mb
from benchmarks.peers.catalogue import CONVOY, PEERS, SAME_AS_CONVOY, Peer, requirements
from benchmarks.peers.comparison import CONNECTIONS, Contender, Effort, Say, measure
from benchmarks.peers.fairness import differences
from benchmarks.peers.report import readme_table, shown
from benchmarks.peers.works import WORKS, MissingModelError, tasks
from benchmarks.rows import RESULTS, ROOT, Row, add_record, append, commit, fill, read
from benchmarks.serving.overhead import where

CACHE = Path.home() / ".cache" / "convoy" / "peers"
RECORD = RESULTS / "peers.jsonl"
README = ROOT / "README.md"
BEGIN, END = "<!-- benchmarks.peers -->", "<!-- end of benchmarks.peers -->"

FULL = Effort(rounds=6, seconds=1.0)
QUICK = Effort(rounds=2, seconds=0.2, settings=1)


def compare(
    peers: Sequence[Peer], venvs: Path, works: Sequence[str], effort: Effort, say: Say
) -> list[Row]:
    """Return the rows of Convoy and of all peers."""
    contenders = [_convoy(), *(_contender(peer, venvs, say) for peer in peers)]
    # How much else the machine had to do, before this began.
    busy = {"load_average": round(os.getloadavg()[0], 2)}
    stands = where(*SAME_AS_CONVOY, "uvicorn", "uvloop", "fastapi") | busy
    stands |= {"rounds": effort.rounds, "seconds_a_round": effort.seconds}
    packages = {
        each.peer.name: size_mb(each.installed.packages())
        for each in contenders[1:]
        if each.installed
    }
    packages[CONVOY.name] = size_mb(needed_by(CONVOY.package))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="convoy-peers-") as name:
        folder = Path(name)
        for work in works:
            try:
                task = tasks([work], folder)[work]
            except MissingModelError as error:
                say(f"{work}: {error}")
                rows += [
                    {"server": each.peer.name, "work": work, "connections": n, "error": str(error)}
                    for each in contenders
                    for n in CONNECTIONS
                ]
                continue
            rows += measure(contenders, work, task, effort, folder, say)
    installed = {name: {"installed_mb": round(size, 1)} for name, size in packages.items()}
    return [{**stands, **installed.get(str(row["server"]), {}), **row} for row in rows]


def _convoy() -> Contender:
    """Return Convoy as it is in this environment."""
    return Contender(CONVOY, Environment(Path(sys.prefix), {}))


def _contender(peer: Peer, venvs: Path, say: Say) -> Contender:
    try:
        return Contender(peer, environment(peer.package, requirements(peer), venvs, say))
    except NotInstalledError as error:
        say(f"{peer.name} cannot be installed: {error}")
        return Contender(peer, None, str(error))


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Measure Convoy beside other servers at the same work.",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"see that all of it works: one setting each, {QUICK.rounds} rounds of "
        f"{QUICK.seconds:g} s",
    )
    parser.add_argument("--seconds", type=float, help=f"of load, each time ({FULL.seconds:g})")
    parser.add_argument("--rounds", type=int, help=f"for each server ({FULL.rounds})")
    names = [peer.package for peer in PEERS]
    parser.add_argument(
        "--peers", nargs="*", choices=names, default=names, help="whom to compare with (all)"
    )
    parser.add_argument(
        "--works", nargs="+", choices=list(WORKS), default=list(WORKS), help="what is done (all)"
    )
    parser.add_argument(
        "--venvs",
        type=Path,
        default=CACHE,
        metavar="FOLDER",
        help="where the peers are installed (%(default)s)",
    )
    add_record(parser, RECORD)
    parser.add_argument(
        "--readme", action="store_true", help="measure nothing; write the README's tables"
    )
    parsed = parser.parse_args(arguments)
    usual = QUICK if parsed.quick else FULL
    rounds = usual.rounds if parsed.rounds is None else parsed.rounds
    seconds = usual.seconds if parsed.seconds is None else parsed.seconds
    if rounds < 1:
        parser.error("--rounds must be at least 1")
    if seconds <= 0:
        parser.error("--seconds must be more than 0")
    if parsed.record == RECORD and commit().endswith("+"):
        parser.error("--record: commit first, or this tree cannot be measured again")
    parsed.effort = Effort(rounds, seconds, usual.settings)
    return parsed


def main(command_line: Sequence[str] | None = None) -> None:
    """Install, measure, print, and write down what is requested.

    Exits with 1 if the conditions of the servers differed; nothing is written down then.
    """
    arguments = parse_arguments(command_line)
    if arguments.readme:
        text = README.read_text(encoding="utf-8")
        README.write_text(fill(text, BEGIN, END, readme_table(read(RECORD))), encoding="utf-8")
        return
    console, begun = Console(highlight=False), monotonic()

    def say(line: str) -> None:
        passed = f"{(monotonic() - begun) / 60:5.1f} min  {line}"
        console.print(passed, style="dim", soft_wrap=True, markup=False)

    rows = compare(
        [peer for peer in PEERS if peer.package in arguments.peers],
        arguments.venvs.absolute(),
        arguments.works,
        arguments.effort,
        say,
    )
    console.print(shown(rows), soft_wrap=True, markup=False)
    if differences(rows):
        sys.exit(1)
    if arguments.record:
        append(arguments.record, rows)


if __name__ == "__main__":
    main()
