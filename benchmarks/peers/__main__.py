"""Compares Convoy with LitServe, BentoML and Ray Serve at the same work.

    python -m benchmarks.peers [--seconds N] [--rounds N] [--record [FILE]]
    python -m benchmarks.peers --readme

Each peer is installed from the package index into an environment of its own, once. All do two kinds
of work: a no-op (a JPEG is read and not decoded, 1000 scores, the five likeliest), and the built-in
digits through ONNX Runtime, decoding included. Each peer runs in several settings and counts with
the best of each number. Every server's answers are checked before it is timed.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.environments import NotInstalledError, environment
from benchmarks.peers.catalogue import PEERS, SAME_AS_CONVOY, Peer, requirements
from benchmarks.peers.comparison import (
    WORKS,
    Contender,
    Material,
    material,
    measure,
    missing,
    of_convoy,
    of_peer,
)
from benchmarks.peers.report import readme_table, show
from benchmarks.rows import RESULTS, ROOT, Row, add_record, append, commit, fill, read
from benchmarks.serving.overhead import where

CACHE = Path.home() / ".cache" / "convoy" / "peers"
RECORD = RESULTS / "peers.jsonl"
README = ROOT / "README.md"
BEGIN, END = "<!-- benchmarks.peers -->", "<!-- end of benchmarks.peers -->"


def compare(
    peers: Sequence[Peer],
    venvs: Path,
    works: Sequence[str],
    rounds: int,
    seconds: float,
    say: Callable[[str], None],
) -> list[Row]:
    """Return the rows of Convoy and of all peers."""
    # How much else the machine had to do, before this began.
    busy = {"load_average": round(os.getloadavg()[0], 2)}
    stands = where(*SAME_AS_CONVOY, "uvicorn", "uvloop", "fastapi") | busy
    not_there: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="convoy-peers-") as folder:
        given = material(Path(folder))
        contenders = [of_convoy()]
        for peer in peers:
            try:
                contenders += _of(peer, given, venvs, Path(folder), say)
            except NotInstalledError as error:
                say(f"{peer.name} cannot be installed: {error}")
                not_there += missing(peer, str(error), works)
        rows = measure(contenders, given, works, rounds, seconds, say)
    return [
        {**stands, "rounds": rounds, "seconds_a_round": seconds, **row}
        for row in (*rows, *not_there)
    ]


def _of(
    peer: Peer, given: Material, venvs: Path, folder: Path, say: Callable[[str], None]
) -> list[Contender]:
    installed = environment(peer.package, requirements(peer), venvs, say)
    return [
        of_peer(peer, setting, installed, given, folder / f"{peer.package}{number}")
        for number, setting in enumerate(peer.settings)
    ]


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Measure Convoy beside LitServe, BentoML and Ray Serve at the same work.",
    )
    parser.add_argument("--seconds", type=float, default=2, help="of load, each time (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="for each server (%(default)s)")
    names = [peer.package for peer in PEERS]
    parser.add_argument(
        "--peers", nargs="*", choices=names, default=names, help="whom to compare with (all)"
    )
    parser.add_argument(
        "--works", nargs="+", choices=list(WORKS), default=list(WORKS), help="what is done (both)"
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
        "--readme", action="store_true", help="measure nothing; write the README's table"
    )
    parsed = parser.parse_args(arguments)
    if parsed.rounds < 1:
        parser.error("--rounds must be at least 1")
    if parsed.seconds <= 0:
        parser.error("--seconds must be more than 0")
    if parsed.record == RECORD and commit().endswith("+"):
        parser.error("--record: commit first, or this tree cannot be measured again")
    return parsed


def main(command_line: Sequence[str] | None = None) -> None:
    """Install, measure, print, and write down what is requested."""
    arguments = parse_arguments(command_line)
    if arguments.readme:
        text = README.read_text(encoding="utf-8")
        README.write_text(fill(text, BEGIN, END, readme_table(read(RECORD))), encoding="utf-8")
        return
    console = Console(highlight=False)
    rows = compare(
        [peer for peer in PEERS if peer.package in arguments.peers],
        arguments.venvs.absolute(),
        arguments.works,
        arguments.rounds,
        arguments.seconds,
        lambda line: console.print(line, style="dim", soft_wrap=True, markup=False),
    )
    show(rows, console)
    if arguments.record:
        append(arguments.record, rows)


if __name__ == "__main__":
    main()
