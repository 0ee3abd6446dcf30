"""Compares Convoy with Triton, mosec, LitServe, BentoML and Ray Serve, which all classify the same
images.

    python -m benchmarks.peers [--quick] [--seconds N] [--rounds N] [--record [FILE]]
    python -m benchmarks.peers --docs       # write the tables of the last recording
    python -m benchmarks.peers --repeated   # compare the last two recordings

Each other server (a peer) is installed once, from the package index into a separate environment.
All servers are measured with four workloads, called works. In the no-op, a server receives a JPEG
without decoding it, and returns the five likeliest of 1000 scores. In the other works, it decodes
an image and runs a model in ONNX Runtime: the built-in model for digits, SqueezeNet, or SqueezeNet
in INT8. Each peer is tried in several settings and measured in its best setting. Before a server is
timed, its answers and its conditions, such as threads and priority, are checked (fairness.py). The
results of each work are recorded as soon as it is measured, so an interrupted run loses only one
work. The tables show the last recording of each work.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from time import monotonic

from rich.console import Console

from benchmarks.environments import Environment, NotInstalledError, environment, needed_by, size_mb
from benchmarks.peers.catalogue import CONVOY, PEERS, SAME_AS_CONVOY, Peer, requirements
from benchmarks.peers.comparison import CONNECTIONS, Contender, Effort, Say, measure
from benchmarks.peers.fairness import differences
from benchmarks.peers.report import moved, page, readme_table, shown
from benchmarks.peers.works import WORKS, tasks
from benchmarks.rows import RESULTS, ROOT, Row, add_record, append, commit, fill, read
from benchmarks.serving.overhead import where
from service.hosting.download import NotDownloadedError

CACHE = Path.home() / ".cache" / "convoy" / "peers"
RECORD = RESULTS / "peers.jsonl"
BEGIN, END = "<!-- benchmarks.peers -->", "<!-- end of benchmarks.peers -->"

PAGES = {ROOT / "README.md": readme_table, ROOT / "docs" / "comparison.md": page}
"""For each page, the function that writes the tables between its marks."""

FULL = Effort(rounds=10, seconds=0.5)
QUICK = Effort(rounds=2, seconds=0.2, settings=1)


def compare(
    peers: Sequence[Peer], venvs: Path, works: Sequence[str], effort: Effort, say: Say
) -> Iterator[list[Row]]:
    """Measure Convoy and all peers, one work after another. Yield the rows of results of each work
    as soon as it is measured."""
    contenders = [_convoy(), *(_contender(peer, venvs, say) for peer in peers)]
    # The load from other programs, before this program adds its own.
    busy = {"load_average": round(os.getloadavg()[0], 2)}
    stands = where(*SAME_AS_CONVOY, "uvicorn", "uvloop", "fastapi") | busy
    stands |= {"rounds": effort.rounds, "seconds_a_round": effort.seconds}
    packages = {
        each.peer.name: size_mb(each.installed.packages())
        for each in contenders[1:]
        if each.installed
    }
    packages[CONVOY.name] = size_mb(needed_by(CONVOY.package))
    installed = {name: {"installed_mb": round(size, 1)} for name, size in packages.items()}

    def whole(rows: Iterable[Row]) -> list[Row]:
        return [{**stands, **installed.get(str(row["server"]), {}), **row} for row in rows]

    with tempfile.TemporaryDirectory(prefix="convoy-") as name:
        folder = Path(name)
        for work in works:
            try:
                task = tasks([work], folder)[work]
            except NotDownloadedError as error:
                say(f"{work}: {error}")
                yield whole(
                    {"server": each.peer.name, "work": work, "connections": n, "error": str(error)}
                    for each in contenders
                    for n in CONNECTIONS
                )
            else:
                yield whole(measure(contenders, work, task, effort, folder, say))


def _convoy() -> Contender:
    """Return a Contender that stands for the Convoy of this environment."""
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
        description="Measure Convoy and other servers at the same work.",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"only check that everything works: one setting each, {QUICK.rounds} rounds of "
        f"{QUICK.seconds:g} s",
    )
    parser.add_argument("--seconds", type=float, help=f"seconds per round ({FULL.seconds:g})")
    parser.add_argument("--rounds", type=int, help=f"rounds for each server ({FULL.rounds})")
    names = [peer.package for peer in PEERS]
    parser.add_argument(
        "--peers", nargs="*", choices=names, default=names, help="servers to compare with (all)"
    )
    parser.add_argument(
        "--works",
        nargs="+",
        choices=list(WORKS),
        default=list(WORKS),
        help="works to measure (all)",
    )
    parser.add_argument(
        "--venvs",
        type=Path,
        default=CACHE,
        metavar="FOLDER",
        help="folder in which the peers are installed (%(default)s)",
    )
    add_record(parser, RECORD)
    told = parser.add_mutually_exclusive_group()
    told.add_argument(
        "--docs",
        action="store_true",
        help="measure nothing; write the tables of the README and of docs/comparison.md",
    )
    told.add_argument(
        "--repeated",
        action="store_true",
        help="measure nothing; list the medians of the last recording that are outside the spread "
        "of the preceding recording, for servers with the same best setting",
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
        parser.error("--record: the sources have changes that are not committed; commit them first")
    parsed.effort = Effort(rounds, seconds, usual.settings)
    return parsed


def main(command_line: Sequence[str] | None = None) -> None:
    """Install the servers, measure them, print the results, and write the requested files. If the
    servers of a work ran under different conditions, the work is not recorded and the exit status
    is 1. With --repeated, the exit status is 1 if a median of the last recording lies outside the
    spread of the previous recording."""
    arguments = parse_arguments(command_line)
    if arguments.docs:
        for file, made in PAGES.items():
            text = file.read_text(encoding="utf-8")
            file.write_text(fill(text, BEGIN, END, made(read(RECORD))), encoding="utf-8")
        return
    if arguments.repeated:
        found = [*moved(read(arguments.record or RECORD))]
        print(
            *(found or ["every median is within the spread of the preceding recording"]), sep="\n"
        )
        sys.exit(bool(found))
    console, begun = Console(highlight=False), monotonic()

    def say(line: str) -> None:
        passed = f"{(monotonic() - begun) / 60:5.1f} min  {line}"
        console.print(passed, style="dim", soft_wrap=True, markup=False)

    rows: list[Row] = []
    for measured in compare(
        [peer for peer in PEERS if peer.package in arguments.peers],
        arguments.venvs.absolute(),
        arguments.works,
        arguments.effort,
        say,
    ):
        rows += measured
        if arguments.record and not differences(measured):
            append(arguments.record, measured)
    console.print(shown(rows), soft_wrap=True, markup=False)
    if differences(rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
